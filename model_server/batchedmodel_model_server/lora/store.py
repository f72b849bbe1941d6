"""Weights of adapters in main memory: who needs them, and which make room for others.

Pure. The bound holds for those that are neither on the device nor in work; the least recently used
of them goes first, and is read from its files again when it is asked for. One that was replaced or
removed stays until nobody has asked for it for a while, as its files may be others by now.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from batchedmodel_model_server.sources.folder import Content
from batchedmodel_scheduling.core.policy import NEVER

Weights = Any
"""One adapter in main memory, as its bank made it: nothing here looks into it."""
QUIET_SECONDS: Final = 60.0
"""One that was replaced and that nobody asks for so long is forgotten."""


@dataclass(slots=True, eq=False)
class Kept:
    """One version of an adapter."""

    number: Final[int]
    content: Final[Content]
    """What it was read from."""
    weights: Weights | None
    """None: not in main memory now."""
    size: int
    labels: Final[tuple[str, ...] | None] = None
    """Of its own classification."""
    in_work: int = 0
    retired: bool = False
    quiet_since: float = NEVER
    """Of one that is retired: when it was asked for last."""


class Lender(Protocol):
    """Lends adapters to texts, on the event loop."""

    def hold(self, number: int) -> Kept | None:
        """Its adapter until `give_back`; None where it is unknown."""
        ...

    async def in_memory(self, kept: Kept) -> Weights:
        """The weights of one that is held; raises `CannotLoad`."""
        ...

    def give_back(self, kept: Kept) -> None:
        """The end of what `hold` began."""
        ...


class AdapterStore:
    """Those that were read, by number."""

    def __init__(self, bound: int | None) -> None:
        """`bound`: bytes; None for no bound."""
        self._bound: Final = bound
        self._kept: Final[OrderedDict[int, Kept]] = OrderedDict()
        """The one that was used last at the end."""

    def __contains__(self, number: object) -> bool:
        return number in self._kept

    def add(self, kept: Kept) -> None:
        """Another one was read."""
        self._kept[kept.number] = kept

    def hold(self, number: int) -> Kept | None:
        """Somebody needs it until `release`; None where it is unknown."""
        kept = self._kept.get(number)
        if kept is not None:
            kept.in_work += 1
            self._kept.move_to_end(number)
        return kept

    def labels_of(self, number: int) -> tuple[str, ...] | None:
        """Of an adapter's own classification, if it is here and has any."""
        kept = self._kept.get(number)
        return None if kept is None else kept.labels

    def release(self, kept: Kept, now: float) -> None:
        """The end of what `hold` began."""
        kept.in_work -= 1
        if kept.retired:
            kept.quiet_since = now

    def retire(self, numbers: Iterable[int], now: float) -> None:
        """Another version takes the place of these, or none: late requests may still come."""
        for number in numbers:
            kept = self._kept.get(number)
            if kept is not None:
                kept.retired, kept.quiet_since = True, now

    def expire(self, now: float) -> list[int]:
        """Forget those that are retired and that nobody needs."""
        over = [
            number
            for number, kept in self._kept.items()
            if kept.retired and not kept.in_work and kept.quiet_since + QUIET_SECONDS <= now
        ]
        for number in over:
            del self._kept[number]
        return over

    @property
    def wake_at(self) -> float:
        """When `expire` may have something to forget."""
        return min(
            [
                kept.quiet_since + QUIET_SECONDS
                for kept in self._kept.values()
                if kept.retired and not kept.in_work
            ],
            default=NEVER,
        )

    def make_room(self, resident: Collection[int]) -> None:
        """Let weights go until the bound holds again; `resident`: what the device has."""
        if self._bound is None:
            return
        idle = [
            kept
            for number, kept in self._kept.items()
            if kept.weights is not None and not kept.in_work and number not in resident
        ]
        over = sum([kept.size for kept in idle]) - self._bound
        for kept in idle:
            if over <= 0:
                return
            if not kept.retired:
                kept.weights = None
                over -= kept.size
