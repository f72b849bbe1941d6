"""The passes of a batch: in parts between steps of texts, and again over rows of one that failed.

The device thread says how long the next part may take. How many rows that are is read off the times
of batches: those of the profile, corrected by what parts have taken since.

Where a pass fails, `RetryPlan` says which rows run next. It is pure; the runner runs them and tells
it how that went. An item whose pass fails is found by halving, an item that does not fit into
memory even alone is told so, and neither costs the others their answers.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from batchedmodel_contract.inference.bisection import Bisection, Rows
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_model_server.batching.items import Answered, Collated
from batchedmodel_model_server.batching.reply import Failure
from batchedmodel_model_server.errors import ForwardFailed, NoSlotFree, OutOfMemory
from batchedmodel_model_server.execution.memory import MemoryCap, lowered
from batchedmodel_scheduling.latency.batch_times import BatchTimes

_FAILED: Final = 500
_TOO_LARGE: Final = 413
_RETRY: Final = 503
_NO_TIME: Final = Failure(504, "no time was left to try this alone")


class PassResult(NamedTuple):
    """What came of one forward pass, and when it ran."""

    outcome: list[Answered] | ForwardFailed
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


class RetryPlan:
    """The passes of one batch: `next`, then `answered` or `failed`; `learn` when it is over."""

    def __init__(
        self,
        rows: int,
        cost: Callable[[Rows], int],
        cap: MemoryCap,
        *,
        bound: int | None,
        idempotent: bool,
        wanted_until: float = math.inf,
    ) -> None:
        """`cost` is what the device pays for some of so many rows in one pass.

        What is not `idempotent` is run once and never again.

        `bound` is the cap's cost when the batch's first pass began: which rows that had depends on
        it, whatever other batches have taught the cap since.

        Nothing is run a second time after `wanted_until`: nobody waits for the answer.
        """
        self._cost = cost
        self._cap = cap
        self._bound = bound
        self._search = Bisection(
            range(rows),
            [wanted_until] * rows,
            idempotent=idempotent,
            fits=lambda rows: self._bound is None or self._cost(rows) <= self._bound,
            gives_up=False,
        )
        self._rows: Rows = ()
        self._outgrown: list[Rows] = []
        self._largest_fine = 0
        self.failures: dict[int, Failure] = {}
        """By row."""

    def next(self, now: float) -> Rows | None:
        """The rows to run now; None when every row has its answer or its failure."""
        rows = self._search.next(now)
        for row in self._search.expired:
            self.failures[row] = _NO_TIME
        self._rows = rows or ()
        return rows

    def answered(self) -> None:
        """The pass went well."""
        self._search.fine()
        self._largest_fine = max(self._largest_fine, self._cost(self._rows))

    def failed(self, error: ForwardFailed) -> None:
        """It did not."""
        if isinstance(error, OutOfMemory):
            self._outgrown.append(self._rows)
            if len(self._rows) > 1:
                self._bound = lowered(self._bound, self._cost(self._rows))
            settled = self._search.outgrown()
            # Several that may not be tried again here would fit in smaller batches.
            status = _TOO_LARGE if len(settled) == 1 else _RETRY
        else:
            settled = self._search.refused(str(error))
            status = _RETRY if isinstance(error, NoSlotFree) else _FAILED
        for row in settled:
            self.failures[row] = Failure(status, str(error))

    def learn(self) -> None:
        """Tell the cap what this batch has shown."""
        giants = {rows[0] for rows in self._outgrown if len(rows) == 1}
        # A row that is too large by itself says nothing of how many others fit.
        outgrown = [rows for rows in self._outgrown if giants.isdisjoint(rows)]
        self._cap.outgrown(self._cost(rows) for rows in outgrown)
        if not self._outgrown and self._largest_fine:
            self._cap.fine(self._largest_fine)
