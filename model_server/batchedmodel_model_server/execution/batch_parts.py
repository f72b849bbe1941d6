"""A batch that runs in one pass, or in several between which steps of texts run.

The device thread says how long the next part may take. How many rows that are is read off the times
of batches: those of the profile, corrected by what parts have taken since.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_model_server.batching.collate import Collated, Output
from batchedmodel_model_server.errors import ForwardFailed
from batchedmodel_scheduling.latency.batch_times import BatchTimes


class PassResult(NamedTuple):
    """What came of one forward pass, and when it ran."""

    outcome: Mapping[str, Output] | ForwardFailed
    began: float
    ended: float

    @property
    def failed(self) -> bool:
        """Whether no row of it has an answer."""
        return isinstance(self.outcome, ForwardFailed)


class PartTimes:
    """How many rows fit into a time. Of the device thread alone."""

    def __init__(self, profile: Profile) -> None:
        self._times: Final = BatchTimes(profile)

    def seconds(self, lengths: Sequence[int]) -> float:
        """What nine of ten passes over rows of these lengths keep; 0 while nothing is known."""
        return (self._times.predict(lengths) or 0.0) * self._times.drift.margin

    def fitting(self, lengths: Sequence[int], seconds: float) -> int:
        """How many of these rows, the first ones, such a pass may have; one at least."""
        times, within = self._times, seconds / self._times.upper
        if times.rule is CostRule.PACKED:
            return max(1, bisect_right(times.packed_table(lengths), within) - 1)
        longest = lengths[0]
        for rows, length in enumerate(lengths, 1):
            longest = max(longest, length)
            if times.table(longest, rows)[rows] > within:
                return max(1, rows - 1)
        return len(lengths)

    def took(self, lengths: Sequence[int], seconds: float) -> None:
        """A pass over rows of these lengths took so long."""
        self._times.observe(lengths, seconds)


class BatchParts:
    """The rows of one batch in their order; ends with the last, or with a pass that fails."""

    def __init__(
        self,
        whole: Collated,
        only: Callable[[range], Collated],
        compute: Callable[[Collated], PassResult],
        times: PartTimes,
    ) -> None:
        """`only` some of its rows; `compute` runs a pass."""
        self._whole: Final = whole
        self._only: Final = only
        self._compute: Final = compute
        self._times: Final = times
        self.done: Final[list[tuple[Collated, PassResult]]] = []
        """Passes that ran. Only the last one may have failed."""
        self.rows_done = 0
        """That were in them."""
        self.long_rows = 0
        """Of these, the ones that ran alone and took longer than was left for them."""

    @property
    def failed(self) -> tuple[Collated, PassResult] | None:
        """The pass that failed, if one has."""
        last = self.done[-1] if self.done else None
        return last if last is not None and last[1].failed else None

    def smallest_seconds(self) -> float:
        """How long the next row takes alone."""
        return self._times.seconds(self._whole.lengths[self.rows_done : self.rows_done + 1])

    def run(self, seconds: float) -> bool:
        """Run as many rows as take so long; whether nothing is left to do."""
        whole, first = self._whole, self.rows_done
        is_bounded = seconds < float("inf")
        rows = whole.rows - first
        if is_bounded:
            rows = self._times.fitting(whole.lengths[first:], seconds)
            self.long_rows += rows == 1 and self.smallest_seconds() > seconds
        self.rows_done += rows
        part = whole if rows == whole.rows else self._only(range(first, first + rows))
        result = self._compute(part)
        self.done.append((part, result))
        if is_bounded and not result.failed:
            self._times.took(part.lengths, result.ended - result.began)
        return result.failed or self.rows_done == whole.rows
