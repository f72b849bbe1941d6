"""The latency curve that a model server measures while it warms up.

Schedulers start from it and correct it by what they observe; the simulator replays it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from batchedmodel_contract.description import CostRule
from batchedmodel_contract.mistakes import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """One measured forward pass of `rows` items, each `length` long."""

    rows: int
    length: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measured points, in ascending order of rows and length, and what the device pays for."""

    cost_rule: CostRule
    device: str
    points: tuple[ProfilePoint, ...]

    def to_mapping(self) -> dict[str, Any]:
        """The JSON document of the profile endpoint."""
        return asdict(self)


def profile_from_mapping(mapping: Mapping[str, Any]) -> Profile:
    """The profile in a JSON document; raises `InvalidInput`."""
    try:
        points = tuple(
            ProfilePoint(
                rows=int(point["rows"]),
                length=int(point["length"]),
                seconds=float(point["seconds"]),
            )
            for point in mapping["points"]
        )
        if any(point.rows < 1 or point.length < 0 for point in points):
            raise InvalidInput("profile", "has a point without rows or of negative length")
        return Profile(
            cost_rule=CostRule(mapping["cost_rule"]), device=str(mapping["device"]), points=points
        )
    except InvalidInput:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("profile", f"cannot be read: {error!r}") from error
