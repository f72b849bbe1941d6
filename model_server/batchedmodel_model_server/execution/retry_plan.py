"""Which items of a batch to run next, by what became of those before.

Pure; the runner asks it for rows, runs them and tells it how that went. An item whose pass fails
is found by halving, an item that does not fit into memory even alone is told so, and neither costs
the others their answers.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from batchedmodel_contract.inference.isolation import Isolation, Rows
from batchedmodel_model_server.errors import ForwardFailed, NoSlotFree, OutOfMemory
from batchedmodel_model_server.execution.memory import MemoryCap, lowered

_FAILED: Final = 500
_TOO_LARGE: Final = 413
_RETRY: Final = 503


class Failure(NamedTuple):
    """What an item without an answer is told."""

    status: int
    error: str


_NO_TIME: Final = Failure(504, "no time was left to try this alone")


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
        self._search = Isolation(
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

    @property
    def passes(self) -> int:
        """How many were begun."""
        return self._search.calls

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
            settled = self._search.spoilt(str(error))
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
