"""How long a forward pass takes, without noise."""

from collections.abc import Sequence
from typing import Protocol

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_scheduling.latency.batch_times import Curve as MeasuredCurve


class Curve(Protocol):
    """Time of a forward pass by the lengths of its rows."""

    def seconds(self, lengths: Sequence[int]) -> float:
        """For at least one row."""
        ...


def curve_of(profile: Profile) -> MeasuredCurve:
    """The curve through the points of a profile; raises `InvalidInput` if they say nothing."""
    try:
        return MeasuredCurve(profile)
    except ValueError as error:
        raise InvalidInput("profile.points", f"are no curve: {error}") from error
