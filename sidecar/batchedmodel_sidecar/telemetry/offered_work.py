"""What was offered to this sidecar: work for the autoscaler, rows for the simulator, callers.

Written by the batcher and the data handler, read by the admin port. What was refused counts, read
or unread: an overload that is shed must not look like calm. No bodies are kept.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Collection, Iterator
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_contract.processes.sidecar_api import ARRIVALS_COLUMNS, ARRIVALS_PENDING
from batchedmodel_contract.processes.stats import BUCKET_SECONDS, BUCKETS, SidecarStats
from batchedmodel_scheduling.batching.items import Priority
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_sidecar.telemetry.ledger import Ledger


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
        self._ledger = ledger
        self._meter = WorkMeter(now)
        self._instance: Final = uuid.uuid4().hex
        """Another one after a restart, which is then no fall of the counters."""

    def add(self, work: float, rows: int, now: float) -> None:
        """A call of so many rows brought so much work."""
        self._meter.add(work, rows, now)

    def add_unseen(self, rows: int, now: float) -> None:
        """A call of so many rows at least was refused, as there was no room: it was offered."""
        self._ledger.rows_offered += rows
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
            instance=self._instance,
            model_ready=model_ready,
            draining=draining,
            # Whatever is known of the device comes from its profile.
            profile_known=signals.sustainable_rate is not None,
            sustainable_share=signals.sustainable_share,
            offered_work=self._meter.buckets(now),
            age_seconds=self._meter.age(now),
            backlog_work=max(0.0, self._ledger.work_live),
            queue_length=self._ledger.rows_waiting,
            outstanding=self._ledger.rows_live,
            settings_hash=settings.digest(),
            max_batch_size=settings.max_batch_size,
            max_concurrent_batches=policy.settings.max_concurrent_batches,
            waited_row_seconds=self._ledger.waiting_rows.integral(now),
            released_rows=self._ledger.waiting_rows.lowered,
            # No rate at all is the verdict on the target and says nothing about the device.
            rows_per_second=signals.sustainable_rate or None,
            shortest_latency_seconds=signals.smallest_feasible_target_seconds,
            profile=policy.pipeline.times.extent,
        )


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
        self._asked: dict[Share, float] = {}
        """When each asked last; the newest last."""

    def asks(self, share: Share, now: float) -> None:
        """One more call of a tenant."""
        self._asked.pop(share, None)
        self._asked[share] = now
        if len(self._asked) > _MOST_CALLERS:
            del self._asked[next(iter(self._asked))]

    def at(self, now: float) -> Iterator[Share]:
        """Those that asked lately."""
        return (share for share, asked in self._asked.items() if now - asked < _ASKED_SECONDS)
