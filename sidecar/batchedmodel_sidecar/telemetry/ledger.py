"""The books: what was offered and what became of it, exact at every moment.

offered = accepted + rejected, and accepted = settled + waiting + in flight + passing. The data
handler writes the rejections, the passthrough what passes, the batcher everything else; metrics
only read.
"""

from collections import Counter
from dataclasses import dataclass, field

from batchedmodel_contract.outcomes import Outcome, Rejection, ReleaseReason
from batchedmodel_sidecar.calls import Call
from batchedmodel_sidecar.telemetry.tenant_counts import TenantCounts


@dataclass(slots=True)
class Level:
    """A number that goes up and down, and its integral over time.

    The integral's rate is the exact average between two scrapes, whatever happened in between; the
    number itself says what was at one moment.
    """

    value: int = 0
    lowered: int = 0
    """By how much it has gone down in all."""
    _integral: float = 0.0
    _since: float = 0.0

    def change(self, by: int, now: float) -> None:
        """Change the number from now on; `now` is in monotonic seconds."""
        self._integral += self.value * (now - self._since)
        self._since = now
        self.value += by
        if by < 0:
            self.lowered -= by

    def integral(self, now: float) -> float:
        """Of the number, in its unit times seconds."""
        return self._integral + self.value * (now - self._since)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Plain numbers with one writer each."""

    accepted: int = 0
    rejected: Counter[Rejection] = field(default_factory=Counter)
    settled: Counter[Outcome] = field(default_factory=Counter)
    late: int = 0
    """Of the completed calls, those that were answered after their target."""
    untrusted_priorities: int = 0
    """Calls that asked for more priority than callers are trusted with, and got the default."""
    cancelled_waiting: int = 0
    cancelled_in_flight: int = 0
    waiting: int = 0
    """Accepted calls of which no row has left."""
    in_flight: int = 0
    """Accepted calls of which a row has left and which are not settled."""
    passing: int = 0
    """Accepted calls that go to the server unbatched and are not settled."""
    waiting_rows: Level = field(default_factory=Level)
    rows_at_model: Level = field(default_factory=Level)
    rows_live: int = 0
    """Rows of accepted calls that are not settled."""
    work_live: float = 0.0
    """Their work: seconds of the device, or full batches while nobody has measured it."""
    rows_offered: int = 0
    rows_returned: int = 0
    """Rows that waited again because the server died over them or asked for rest."""
    batches: Counter[ReleaseReason] = field(default_factory=Counter)
    batches_in_flight: int = 0
    tokens: int = 0
    """Of rows that were answered, as the server counts them."""
    padded_tokens: int = 0
    """What the device computed for them."""
    long_rows: int = 0
    """That ran alone for longer than texts beside them had time for."""
    tenants: TenantCounts = field(default_factory=TenantCounts)
    adapters: TenantCounts = field(default_factory=TenantCounts)
    """Rows of adapters, counted as those of tenants are; those of the model itself are not."""

    @property
    def rows_waiting(self) -> int:
        """Rows that wait now."""
        return self.waiting_rows.value

    @property
    def offered(self) -> int:
        """Calls that were told a verdict or left before it."""
        return self.accepted + self.rejected.total()

    def accept(self, rows: int, work: float, now: float) -> None:
        """A call was accepted; all its rows wait."""
        self.accepted += 1
        self.waiting += 1
        self.work_live += work
        self.rows_live += rows
        self.waiting_rows.change(rows, now)

    def pass_on(self) -> None:
        """A call was accepted that goes past the queue."""
        self.accepted += 1
        self.passing += 1

    def passed(self, outcome: Outcome) -> None:
        """A call that went past the queue ended."""
        self.passing -= 1
        self.cancelled_in_flight += outcome is Outcome.CANCELLED
        self.settled[outcome] += 1

    def leave(self, rows: int, waiting: int) -> None:
        """A row of an accepted call leaves in a batch; `waiting` of its rows waited until now."""
        if waiting == rows:
            self.waiting -= 1
            self.in_flight += 1

    def batch_leaves(self, reason: ReleaseReason, rows: int, now: float) -> None:
        """A batch of rows that have left is on its way."""
        self.batches[reason] += 1
        self.batches_in_flight += 1
        self.waiting_rows.change(-rows, now)
        self.rows_at_model.change(rows, now)

    def batch_ends(self, rows: int, now: float) -> None:
        """A batch is off the server, however it ended."""
        self.batches_in_flight -= 1
        self.rows_at_model.change(-rows, now)

    def computed(self, tokens: int, padded_tokens: int, long_rows: int) -> None:
        """The server has answered so many tokens, and computed so many for them.

        `long_rows`: see `BatchReply`.
        """
        self.tokens += tokens
        self.padded_tokens += padded_tokens
        self.long_rows += long_rows

    def come_back(self, rows: int, waiting: int, now: float) -> None:
        """A row of an accepted call waits again; now `waiting` of its rows do."""
        if waiting == rows:
            self.waiting += 1
            self.in_flight -= 1
        self.waiting_rows.change(1, now)
        self.rows_returned += 1

    def settle(self, outcome: Outcome, rows: int, work: float, now: float, *, waiting: int) -> None:
        """An accepted call ended; `waiting` of its rows still waited."""
        left = outcome is Outcome.CANCELLED
        if waiting == rows:
            self.waiting -= 1
            self.cancelled_waiting += left
        else:
            self.in_flight -= 1
            self.cancelled_in_flight += left
        if waiting:
            self.waiting_rows.change(-waiting, now)
        self.work_live -= work
        self.rows_live -= rows
        self.settled[outcome] += 1

    def leaves_alone(self, now: float) -> None:
        """A call of one row goes to the server by itself."""
        self.leave(1, 1)
        self.waiting_rows.change(-1, now)
        self.rows_at_model.change(1, now)

    def comes_back_alone(self, now: float) -> None:
        """Such a call waits again."""
        self.rows_at_model.change(-1, now)
        self.come_back(1, 1, now)

    def settle_alone(self, outcome: Outcome, work: float, now: float, *, waiting: bool) -> None:
        """Such a call ended."""
        if not waiting:
            self.rows_at_model.change(-1, now)
        self.settle(outcome, 1, work, now, waiting=int(waiting))

    @property
    def live(self) -> int:
        """Accepted calls that the batcher has not settled."""
        return self.waiting + self.in_flight


def answered_call(books: Ledger, tenant: str, call: Call) -> None:
    """All rows of a call were answered."""
    answered_rows(books, tenant, call.adapter_name, len(call.rows))


def answered_rows(books: Ledger, tenant: str, adapter: str | None, rows: int) -> None:
    """So many rows for an adapter, or for the model itself, were answered."""
    books.tenants.served(tenant, rows)
    if adapter is not None:
        books.adapters.served(adapter, rows)


def refused_rows(books: Ledger, tenant: str, adapter: str | None, rows: int) -> None:
    """So many rows were not let in; `adapter`: None as well where nobody knows it yet."""
    books.tenants.refused(tenant, rows)
    if adapter is not None:
        books.adapters.refused(adapter, rows)
