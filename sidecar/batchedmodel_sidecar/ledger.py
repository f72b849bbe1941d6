"""The books: what was offered and what became of it, exact at every moment.

offered = accepted + rejected, and accepted = settled + waiting + in flight. The front writes the
rejections, the batcher everything else; metrics only read.
"""

from collections import Counter
from dataclasses import dataclass, field

from batchedmodel_contract.outcomes import Outcome, Rejection, ReleaseReason


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Plain numbers with one writer each."""

    accepted: int = 0
    rejected: Counter[Rejection] = field(default_factory=Counter)
    settled: Counter[Outcome] = field(default_factory=Counter)
    untrusted_priorities: int = 0
    """Calls that asked for more priority than callers are trusted with, and got the default."""
    cancelled_waiting: int = 0
    cancelled_in_flight: int = 0
    waiting: int = 0
    """Accepted calls of which no row has left."""
    in_flight: int = 0
    """Accepted calls of which a row has left and which are not settled."""
    rows_waiting: int = 0
    rows_live: int = 0
    """Rows of accepted calls that are not settled."""
    work_live: float = 0.0
    """Their work: seconds of the device, or full batches while nobody has measured it."""
    rows_offered: int = 0
    batches: Counter[ReleaseReason] = field(default_factory=Counter)
    batches_in_flight: int = 0

    @property
    def offered(self) -> int:
        """Calls that were told a verdict or left before it."""
        return self.accepted + self.rejected.total()

    def accept(self, rows: int, work: float) -> None:
        """A call was accepted; all its rows wait."""
        self.accepted += 1
        self.waiting += 1
        self.work_live += work
        self.rows_live += rows
        self.rows_waiting += rows

    def settle(self, outcome: Outcome, rows: int, work: float, *, waiting: int) -> None:
        """An accepted call ended, of whose rows so many still waited."""
        left = outcome is Outcome.CANCELLED
        if waiting == rows:
            self.waiting -= 1
            self.cancelled_waiting += left
        else:
            self.in_flight -= 1
            self.cancelled_in_flight += left
        self.rows_waiting -= waiting
        self.work_live -= work
        self.rows_live -= rows
        self.settled[outcome] += 1

    @property
    def live(self) -> int:
        """Accepted calls that are not settled."""
        return self.waiting + self.in_flight
