"""The books: what was offered and what became of it, exact at every moment.

offered = accepted + rejected, and accepted = settled + waiting + in flight + passing. The data
handler writes the rejections, the passthrough what passes, the batcher everything else; metrics
only read. Beside the counts stand the work for the autoscaler, the rows of lately for the
simulator, and callers. What was refused counts as offered, read or unread: an overload that is shed
must not look like calm. No bodies are kept.
"""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection, ReleaseReason
from batchedmodel_contract.processes.sidecar_api import ARRIVALS_COLUMNS, ARRIVALS_PENDING
from batchedmodel_contract.processes.stats import BUCKET_SECONDS, BUCKETS, SidecarStats
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.items import Priority
from batchedmodel_scheduling.queue.shared_room import SharedRoom

OTHER: Final = "other"
_CANCELLED: Final = Outcome.CANCELLED  # an enum finds its members by Python's code
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
        unnamed = self.room.in_use
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
        self.cancelled_in_flight += outcome is _CANCELLED
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
        left = outcome is _CANCELLED
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


class WorkMeter:
    """How much work was offered in each second of the last minute; times are monotonic seconds."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._buckets = [0.0] * BUCKETS
        self._newest = self._second(started)
        self._changes_at = (self._newest + 1) * BUCKET_SECONDS
        self._requests = self._rows = 0
        self.total = 0.0
        """Work since the start."""

    def add(self, work: float, rows: int, now: float) -> None:
        """A request of so many rows brought so much work."""
        self._requests += 1
        self._rows += rows
        self._put(work, now)

    def add_unseen(self, rows: int, now: float) -> None:
        """A request was refused before its rows were read: it counts as an average one.

        Where several rows were counted, each counts as an average one.
        """
        if rows > 1 and self._rows:
            self.add(self.total / self._rows * rows, rows, now)
        elif self._requests:
            self._put(self.total / self._requests, now)
            self._requests += 1

    def at_least(self, work: float, now: float) -> None:
        """The present second counts as so much work, unless it is more already."""
        self._advance(now)
        bucket = self._newest % BUCKETS
        self._buckets[bucket] = max(self._buckets[bucket], work)

    def buckets(self, now: float) -> tuple[float, ...]:
        """The last minute, oldest second first; the present second is the last and not over yet."""
        self._advance(now)
        start = (self._newest + 1) % BUCKETS
        return tuple(self._buckets[start:] + self._buckets[:start])

    def age(self, now: float) -> float:
        """Seconds since counting began."""
        return now - self._started

    def _put(self, work: float, now: float) -> None:
        if now >= self._changes_at:
            self._advance(now)
        self._buckets[self._newest % BUCKETS] += work
        self.total += work

    def _advance(self, now: float) -> None:
        second = self._second(now)
        for passed in range(max(self._newest, second - BUCKETS) + 1, second + 1):
            self._buckets[passed % BUCKETS] = 0.0
        self._newest = max(self._newest, second)
        self._changes_at = (self._newest + 1) * BUCKET_SECONDS

    @staticmethod
    def _second(now: float) -> int:
        return int(now // BUCKET_SECONDS)


class OfferedWork:
    """Work by second, beside the books."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        self.ledger: Final = ledger
        self._meter = WorkMeter(now)
        self._instance: Final = uuid.uuid4().hex
        """Another one after a restart, which is then no fall of the counters."""

    def add(self, work: float, rows: int, now: float) -> None:
        """A call of so many rows brought so much work."""
        self._meter.add(work, rows, now)

    def add_unseen(self, rows: int, now: float) -> None:
        """A call of so many rows at least was refused, as there was no room: it was offered."""
        self.ledger.rows_offered += rows
        self._meter.add_unseen(rows, now)

    def start_over(self, now: float) -> None:
        """Work is counted in another unit from now on, and the two must not be added up."""
        self._meter = WorkMeter(now)

    def stats(
        self,
        settings: BatchSettings,
        now: float,
        policy: BasePolicy,
        *,
        model_ready: bool,
        draining: bool,
    ) -> SidecarStats:
        """What the autoscaler is told; the policy may use fewer workers than the settings have."""
        signals = policy.signals()
        return SidecarStats(
            model_ready=model_ready,
            draining=draining,
            # Whatever is known of the device comes from its profile.
            profile_known=signals.sustainable_rate is not None,
            sustainable_share=signals.sustainable_share,
            offered_work=self._meter.buckets(now),
            backlog_work=max(0.0, self.ledger.work_live),
            max_batch_size=settings.max_batch_size,
            max_concurrent_batches=policy.settings.max_concurrent_batches,
            # No rate at all is the verdict on the target and says nothing about the device.
            rows_per_second=signals.sustainable_rate or None,
            shortest_latency_seconds=signals.smallest_feasible_target_seconds,
            profile=policy.pipeline.times.extent,
            **self._counted(settings, now),
        )

    def _counted(self, settings: BatchSettings, now: float) -> dict[str, Any]:
        """What is told whatever the work is."""
        ledger = self.ledger
        return {
            "instance": self._instance,
            "age_seconds": self._meter.age(now),
            "queue_length": ledger.rows_waiting,
            "outstanding": ledger.rows_live,
            "settings_hash": settings.digest(),
            "waited_row_seconds": ledger.waiting_rows.integral(now),
            "released_rows": ledger.waiting_rows.lowered,
        }


_CAPACITY: Final = 100_000
_ROWS_IN_A_PIECE: Final = 200  # half a millisecond to write
_VERDICTS: Final = (ARRIVALS_PENDING, *dict.fromkeys([*Outcome, *Rejection]))
_CODES: Final = {verdict: code for code, verdict in enumerate(_VERDICTS)}
_PENDING: Final = _CODES[ARRIVALS_PENDING]
_NO_WORK: Final = frozenset({Rejection.INVALID, Rejection.TOO_LARGE, Rejection.ABANDONED})
"""No pod would have served these, so a replay must not meet them."""


class RecentArrivals:
    """A ring of the last rows, in the order of their arrival; times are monotonic seconds."""

    def __init__(self, started: float, capacity: int = _CAPACITY) -> None:
        self._started: Final = started
        self._capacity: Final = capacity
        self._seconds = array("d", bytes(8 * capacity))
        self._lengths = array("q", bytes(8 * capacity))
        self._priorities = bytearray(capacity)
        self._verdicts = bytearray(capacity)
        self._recorded = 0

    def accepted(self, lengths: Collection[int], priority: Priority, now: float) -> int:
        """Note the rows of a call; returns the number of the first, for `settled`."""
        first = self._recorded
        self._note(lengths, priority, now, _PENDING)
        return first

    def settled(self, first: int, rows: int, outcome: Outcome) -> None:
        """Note what became of rows that were accepted; some may have left the ring."""
        code = _CODES[outcome]
        for number in range(max(first, self._recorded - self._capacity), first + rows):
            self._verdicts[number % self._capacity] = code

    def refused(
        self, lengths: Collection[int], priority: Priority, reason: Rejection, now: float
    ) -> None:
        """Note the rows of a call that was not accepted."""
        if reason not in _NO_WORK:
            self._note(lengths, priority, now, _CODES[reason])

    def refused_unread(self, reason: Rejection, rows: int, now: float) -> None:
        """Note a call of so many rows at least that was refused before they were read.

        Their length is nobody's knowledge; that of the row before stands in, which leaves the
        distribution of lengths what it is.
        """
        length = self._lengths[(self._recorded - 1) % self._capacity] if self._recorded else 1
        self.refused([length] * rows, Priority.NORMAL, reason, now)

    def csv(self) -> Iterator[bytes]:
        """The ring as CSV, oldest row first, in pieces between which others may go on recording.

        Rows that arrive meanwhile are left out, and so are those that they push out of the ring.
        """
        yield (",".join(ARRIVALS_COLUMNS) + "\n").encode()
        at, end = self._oldest(), self._recorded
        while (at := max(at, self._oldest())) < end:
            after = min(end, at + _ROWS_IN_A_PIECE)
            yield "".join(
                self._line(number % self._capacity) for number in range(at, after)
            ).encode()
            at = after

    def _oldest(self) -> int:
        return max(0, self._recorded - self._capacity)

    def _note(self, lengths: Collection[int], priority: int, now: float, code: int) -> None:
        seconds, number = now - self._started, self._recorded
        for length in lengths:
            slot = number % self._capacity
            self._seconds[slot] = seconds
            self._lengths[slot] = length
            self._priorities[slot] = priority
            self._verdicts[slot] = code
            number += 1
        self._recorded = number

    def _line(self, slot: int) -> str:
        verdict = _VERDICTS[self._verdicts[slot]]
        length, priority = self._lengths[slot], self._priorities[slot]
        return f"{self._seconds[slot]:.6f},{length},{priority},{verdict}\n"


_ASKED_SECONDS: Final = 1.0
_MOST_CALLERS: Final = 1_000


class RecentCallers:
    """The latest thousand at most. Pure."""

    def __init__(self) -> None:
        self._last_calls: dict[Share, float] = {}
        """When each asked last; the newest last."""

    def asks(self, share: Share, now: float) -> None:
        """One more call of a tenant."""
        self._last_calls.pop(share, None)
        self._last_calls[share] = now
        if len(self._last_calls) > _MOST_CALLERS:
            del self._last_calls[next(iter(self._last_calls))]

    def at(self, now: float) -> Iterator[Share]:
        """Those that asked lately."""
        return (share for share, at in self._last_calls.items() if now - at < _ASKED_SECONDS)
