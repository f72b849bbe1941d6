"""The latency curve that a model server measures while it warms up.

Schedulers start from it and correct it by what they observe; the simulator replays it.

A device that pays in tiles, waves or captured sizes jumps. Between two measured sizes it is
believed to go straight only where both lie on the lines through their own neighbours, or so little
is between the two that it does not matter. Elsewhere the time jumps at some unknown size.
The warm-up looks there next; a scheduler keeps to the safe side there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.invalid_input import InvalidInput, readable
from batchedmodel_contract.manifest.batching import MAX_BATCH_SIZE
from batchedmodel_contract.schema.reading import ruled
from batchedmodel_contract.schema.rules import ANY_TEXT, Real, Rule, Truth, Whole

# Within these bounds no product or quotient of a point's numbers leaves the range of a float, and
# no list that a scheduler makes of them fills the memory.
_MAX_POINTS: Final = 1024
_NUMBER: Final = Real(minimum=0.0, maximum=2.0**31)
_POINT: Final[Mapping[str, Rule]] = {
    "rows": Whole(minimum=1, maximum=MAX_BATCH_SIZE),
    "length": Whole(minimum=0, maximum=2**31),
    "seconds": _NUMBER,
}
_MAX_COST: Final = Whole(minimum=1, maximum=2**40)
_MAX_PHASES: Final = 64
_TRUTH: Final = Truth()
_CLOCK_TICK: Final = 1e-9  # seconds; a shorter time was not measured, and to divide by it is unsafe
_STRAIGHT: Final = 0.03
"""By what part of its time a size may be off the line and still lie on it: what noise does."""


class ProfileExtent(StrEnum):
    """How much of a device was measured."""

    ABSENT = "absent"
    PARTIAL = "partial"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """One measured forward pass of `rows` items, each `length` long."""

    rows: int
    length: int
    seconds: float


class Knot(NamedTuple):
    """A measured size, in rows or tokens, and the seconds that it takes."""

    size: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsureStretch:
    """Numbers of rows of this length between two measured ones, among which a jump may lie."""

    length: int
    above: int
    below: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measured points, in ascending order of rows and length, and what the device pays for."""

    cost_rule: CostRule
    device: str
    points: tuple[ProfilePoint, ...]
    max_cost: int | None = None
    """What fits into the device's memory at once, in what the cost rule counts (rows x longest,
    sum of lengths, or rows); None when nobody has met a bound."""
    sharing: str = ""
    """How items of different length share a pass, as the self-test found; empty: not tried."""
    sharing_reason: str = ""
    start_up: tuple[tuple[str, float], ...] = ()
    """Phases of the server's start, in order, and the seconds of each."""
    cached: bool = False
    """Whether the points were measured by an earlier process, and only checked by this one."""
    partial: bool = False
    """Whether the server will measure more of it in idle moments. Its points foretell times; what a
    device can do at most does not follow from them."""

    @property
    def unsure(self) -> tuple[UnsureStretch, ...]:
        """Where a jump may lie that was not found."""
        found: list[UnsureStretch] = []
        for length in sorted({point.length for point in self.points}):
            # A file may hold a point twice; then the later one counts.
            times = {p.rows: p.seconds for p in self.points if p.length == length}
            knots = sorted(Knot(rows, seconds) for rows, seconds in times.items())
            found += [
                UnsureStretch(length=length, above=int(before.size), below=int(after.size))
                for before, after, jumps in zip(knots, knots[1:], unsure(knots), strict=False)
                if jumps
            ]
        return tuple(found)

    def to_mapping(self) -> dict[str, Any]:
        """The JSON document of the profile endpoint."""
        told = {"start_up": dict(self.start_up), "unsure": [asdict(one) for one in self.unsure]}
        return asdict(self) | told


def extent_of(profile: Profile | None) -> ProfileExtent:
    """How much this says of its device."""
    if profile is None:
        return ProfileExtent.ABSENT
    return ProfileExtent.PARTIAL if profile.partial else ProfileExtent.WHOLE


@readable("profile")
def profile_from_mapping(mapping: Mapping[str, Any]) -> Profile:
    """The profile in a JSON document; raises `InvalidInput`.

    A point has 1 to 4096 rows of length 0 to 2^31 and took 0 to 2^31 seconds; less than a
    nanosecond reads as 0. `max_cost` is absent, null or 1 to 2^40. What came later than these
    (`sharing`, `sharing_reason`, `start_up`, `cached`, `partial`) may be absent. `unsure` is not
    read, as it follows from the points.
    """
    cost_rule = CostRule(mapping["cost_rule"])
    device, listed, max_cost = mapping["device"], mapping["points"], mapping.get("max_cost")
    if not isinstance(device, str) or not device.isprintable():
        raise InvalidInput("profile.device", "is not a string of printable characters", device)
    if not isinstance(listed, list) or len(listed) > _MAX_POINTS:
        raise InvalidInput("profile.points", f"is not a list of at most {_MAX_POINTS}", listed)
    points = tuple(_point(entry, f"profile.points[{n}]") for n, entry in enumerate(listed))
    return Profile(
        cost_rule=cost_rule,
        device=device,
        points=points,
        max_cost=None if max_cost is None else ruled(_MAX_COST, max_cost, "profile.max_cost"),
        sharing=ruled(ANY_TEXT, mapping.get("sharing", ""), "profile.sharing"),
        sharing_reason=ruled(ANY_TEXT, mapping.get("sharing_reason", ""), "profile.sharing_reason"),
        start_up=_start_up(mapping.get("start_up")),
        cached=ruled(_TRUTH, mapping.get("cached", False), "profile.cached"),
        partial=ruled(_TRUTH, mapping.get("partial", False), "profile.partial"),
    )


def unsure(knots: Sequence[Knot]) -> list[bool]:
    """Whether each stretch between neighbours may hold a jump; knots ascend in both."""
    # The ends have one neighbour, which contradicts nothing.
    straight = [
        n in {0, len(knots) - 1} or _on_the_line(knots[n - 1], knots[n], knots[n + 1])
        for n in range(len(knots))
    ]
    return [
        after.size - before.size > 1
        and after.seconds - before.seconds > _STRAIGHT * after.seconds
        and not (straight[n] and straight[n + 1])
        for n, (before, after) in enumerate(pairwise(knots))
    ]


def _on_the_line(before: Knot, middle: Knot, after: Knot) -> bool:
    part = (middle.size - before.size) / (after.size - before.size)
    line = before.seconds + part * (after.seconds - before.seconds)
    return abs(middle.seconds - line) <= _STRAIGHT * middle.seconds


def _start_up(entry: object) -> tuple[tuple[str, float], ...]:
    if entry is None:
        return ()
    if not isinstance(entry, Mapping) or len(entry) > _MAX_PHASES:
        raise InvalidInput("profile.start_up", f"is not an object of {_MAX_PHASES} phases", entry)
    return tuple(
        (str(name), ruled(_NUMBER, seconds, f"profile.start_up.{name}"))
        for name, seconds in entry.items()
    )


def _point(entry: object, field: str) -> ProfilePoint:
    if not isinstance(entry, Mapping):
        raise InvalidInput(field, "is not an object", entry)
    found = {name: ruled(rule, entry.get(name), f"{field}.{name}") for name, rule in _POINT.items()}
    if found["seconds"] < _CLOCK_TICK:
        found["seconds"] = 0.0
    return ProfilePoint(**found)
