"""The books: what was offered and what became of it, exact at every moment.

offered = accepted + rejected, and accepted = settled + waiting + in flight + passing. The data
handler writes the rejections, the passthrough what passes, the batcher everything else; metrics
only read.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from batchedmodel_contract.outcomes import Outcome, Rejection, ReleaseReason
from batchedmodel_scheduling.tenants import SharedRoom
from batchedmodel_sidecar.calls import Call

OTHER: Final = "other"
_NAMED: Final = 10
_CALLS_BETWEEN_NAMES: Final = 10_000
"""Calls after which the tenants that sent most lately are named."""
_MOST_TENANTS: Final = 1_000
"""Tenants that are counted to find those that send most."""


class TenantCount(NamedTuple):
    """Of one tenant, or of all that are not named."""

    tenant: str
    served: int
    refused: int
    waiting: int


@dataclass(slots=True)
class _Line:
    served: int = 0
    refused: int = 0


class TenantCounts:
    """What became of each tenant's rows: the largest ten tenants by name, all others as one.

    A row counts where its tenant stands when it counts, so no number ever falls. A tenant that is
    named anew begins at nothing. Who is named is decided anew after some thousand calls.
    """

    def __init__(self) -> None:
        self.room: Final = SharedRoom(0)
        """Of the queue; its size is that of the settings in force."""
        self._named: dict[str, _Line] = {}
        self._other = _Line()
        self._lately: Counter[str] = Counter()
        self._calls = 0

    def served(self, tenant: str, rows: int) -> None:
        """So many rows of a call were answered."""
        self._line(tenant, rows).served += rows

    def refused(self, tenant: str, rows: int) -> None:
        """So many rows of a call were not let in; one of a call that was not read."""
        self._line(tenant, rows).refused += rows

    def rows(self) -> Iterator[TenantCount]:
        """The named tenants, then all others together."""
        unnamed = self.room.taken
        for tenant, line in self._named.items():
            waiting = self.room.of(tenant)
            unnamed -= waiting
            yield TenantCount(tenant, line.served, line.refused, waiting)
        yield TenantCount(OTHER, self._other.served, self._other.refused, unnamed)

    def _line(self, tenant: str, rows: int) -> _Line:
        self._calls += 1
        if self._calls >= _CALLS_BETWEEN_NAMES:
            self._name_anew()
        if tenant in self._lately or len(self._lately) < _MOST_TENANTS:
            self._lately[tenant] += rows
        line = self._named.get(tenant)
        if line is None and len(self._named) < _NAMED and tenant != OTHER:
            line = self._named[tenant] = _Line()
        return line or self._other

    def _name_anew(self) -> None:
        """Name the tenants that sent most lately; older rows count for less."""
        self._calls = 0
        largest = [tenant for tenant, _ in self._lately.most_common(_NAMED) if tenant != OTHER]
        self._named = {tenant: self._named.get(tenant, _Line()) for tenant in largest}
        self._lately = Counter({name: rows // 2 for name, rows in self._lately.items() if rows > 1})


SECONDS: Final[Sequence[float]] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
_LAGS: Final[Sequence[float]] = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_ROWS: Final[Sequence[float]] = (
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0,
)  # fmt: skip


class Histogram:
    """A histogram that one thread writes and shows.

    It has no locks and no labels: `observe` of the client library's own histogram takes longer than
    everything else that is counted of a row.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper bound of each bucket but the last, which has none."""
        self.bounds: Final = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, amount: float) -> None:
        """Count a measurement in."""
        self._counts[bisect_left(self.bounds, amount)] += 1
        self.sum += amount

    def cumulative(self) -> list[int]:
        """How many were at most each bound, and last how many there were."""
        return list(accumulate(self._counts))


class Durations:
    """The histograms, which the batcher feeds as things happen."""

    def __init__(self) -> None:
        self.queue: Final = Histogram(SECONDS)
        """From a row's arrival to its release."""
        self.model: Final = Histogram(SECONDS)
        """Forward passes, as the server measured them."""
        self.request: Final = Histogram(SECONDS)
        """From a call's acceptance to its end."""
        self.loop_lag: Final = Histogram(_LAGS)
        """By how much the loop woke late."""
        self.batch_size: Final = Histogram(_ROWS)
        """Rows in a released batch."""


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

    def answered_call(self, tenant: str, call: Call) -> None:
        """All rows of a call were answered."""
        self.answered_rows(tenant, call.adapter_name, len(call.rows))

    def answered_rows(self, tenant: str, adapter: str | None, rows: int) -> None:
        """So many rows for an adapter, or for the model itself, were answered."""
        self.tenants.served(tenant, rows)
        if adapter is not None:
            self.adapters.served(adapter, rows)

    def refused_rows(self, tenant: str, adapter: str | None, rows: int) -> None:
        """So many rows were not let in; `adapter`: None as well while it is unknown."""
        self.tenants.refused(tenant, rows)
        if adapter is not None:
            self.adapters.refused(adapter, rows)
