"""Simulated pods: devices that serve batches of what has arrived, and their sidecars' stats.

Arrivals are Poisson: spread at random over the pods, a Poisson stream stays one. Batches are those
of a policy that never idles. Rows that cannot be in time any more go last, as with the product's
`lateness: Serve`. The device pays a + b x rows for a batch.
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from numpy.random import Generator

from batchedmodel_contract.processes.stats import BUCKETS, SidecarStats
from batchedmodel_scheduling.batching.policy import sustainable_rate

_LONGEST_DRAIN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a pod can do. Seconds, rows."""

    fixed: float
    per_row: float
    max_batch_size: int
    target_seconds: float
    timeout_seconds: float
    max_queue_size: int

    def seconds(self, rows: int) -> float:
        """Of one batch."""
        return self.fixed + self.per_row * rows

    @property
    def work(self) -> float:
        """Of one row: its share of a full batch."""
        return self.seconds(self.max_batch_size) / self.max_batch_size

    @property
    def sustainable_share(self) -> float:
        """Of what full batches would answer, the part that is answered within the target."""
        table = [self.seconds(rows) for rows in range(self.max_batch_size + 1)]
        return sustainable_rate(table, self.target_seconds) * self.work

    def replicas(self) -> "Replicas":
        """No pods yet."""
        return Replicas(self)


@dataclass(slots=True)
class Tally:
    """Rows of all pods together that came at 0 or later; what came before warms a run up."""

    offered: int = 0
    on_time: int = 0


class SimulatedPod:
    """One pod. Times are seconds since the start of the run and only go forward."""

    def __init__(
        self,
        name: str,
        device: Device,
        random: Generator,
        tally: Tally,
        *,
        born: float,
        ready: float,
    ) -> None:
        self.name = name
        self.ready_at = ready
        self.leaving_since: float | None = None
        self._born = born
        self._device = device
        self._random = random
        self._tally = tally
        self._free = ready
        self._running = 0
        self._waiting: deque[tuple[float, int]] = deque()
        self._late: deque[tuple[float, int]] = deque()
        self._rows = 0
        """Waiting, late ones included."""
        self._waited = 0.0
        self._released = 0
        """Rows that wait no more, and the seconds that all of them together had waited."""
        self._offered: defaultdict[int, float] = defaultdict(float)

    @property
    def idle(self) -> bool:
        """Whether nothing waits."""
        return self._rows == 0

    def has_left(self, now: float) -> bool:
        """Whether it leaves and has nothing left, never began, or has used up its time."""
        since = self.leaving_since
        if since is None:
            return False
        return self.idle or self.ready_at > since or now - since >= _LONGEST_DRAIN_SECONDS

    def advance(self, start: float, end: float, rate: float) -> None:
        """Serve while rows come at a rate per second."""
        now = max(self._free, start)
        drawn = start
        while now < end:
            if now > drawn:
                self._arrive(int(self._random.poisson(rate * (now - drawn))), (drawn + now) / 2)
                drawn = now
            rows = self._form(now)
            if not rows:
                gap = self._random.exponential(1 / rate) if rate > 0 else math.inf
                if now + gap >= end:
                    return
                now = drawn = now + gap
                self._arrive(1, now)
                rows = self._form(now)
            self._running = rows
            now += self._device.seconds(rows)
            self._free = now
        self._arrive(int(self._random.poisson(rate * (end - drawn))), (drawn + end) / 2)

    def stats(self, now: float) -> SidecarStats:
        """What its sidecar would tell."""
        device, second = self._device, math.floor(now)
        for old in [one for one in self._offered if one <= second - BUCKETS]:
            del self._offered[old]
        outstanding = self._rows + (self._running if self._free > now else 0)
        return SidecarStats(
            instance=self.name,
            model_ready=now >= self.ready_at,
            draining=self.leaving_since is not None,
            profile_known=now >= self.ready_at,
            offered_work=tuple(
                self._offered.get(one, 0.0) for one in range(second - BUCKETS + 1, second + 1)
            ),
            age_seconds=now - self._born,
            backlog_work=outstanding * device.work,
            queue_length=self._rows,
            outstanding=outstanding,
            settings_hash="",
            max_batch_size=device.max_batch_size,
            sustainable_share=device.sustainable_share,
            waited_row_seconds=self._waited
            + sum((now - at) * count for at, count in (*self._waiting, *self._late)),
            released_rows=self._released,
        )

    def _arrive(self, count: int, at: float) -> None:
        if not count:
            return
        if at >= 0:
            self._tally.offered += count
        self._offered[math.floor(at)] += count * self._device.work
        taken = min(count, self._device.max_queue_size - self._rows)
        if taken > 0:
            self._waiting.append((at, taken))
            self._rows += taken

    def _form(self, now: float) -> int:
        """Take the rows of the next batch out of the queue; counts those that will be in time."""
        device = self._device
        most = device.max_batch_size
        likely = now + device.seconds(min(most, max(1, self._rows)))
        while self._waiting and self._waiting[0][0] + device.target_seconds < likely:
            self._late.append(self._waiting.popleft())
        while self._late and self._late[0][0] + device.timeout_seconds < now:
            self._release([self._late.popleft()], now)
        chosen = _take(self._waiting, most)
        rows = sum(count for _, count in chosen)
        late = _take(self._late, most - rows)
        rows += sum(count for _, count in late)
        ends = now + device.seconds(rows)
        self._tally.on_time += sum(
            count for at, count in chosen if at >= 0 and ends <= at + device.target_seconds
        )
        self._release([*chosen, *late], now)
        return rows

    def _release(self, rows: list[tuple[float, int]], now: float) -> None:
        for at, count in rows:
            self._rows -= count
            self._released += count
            self._waited += (now - at) * count


def _take(queue: deque[tuple[float, int]], most: int) -> list[tuple[float, int]]:
    taken = []
    while queue and most > 0:
        at, count = queue.popleft()
        if count > most:
            queue.appendleft((at, count - most))
            count = most
        taken.append((at, count))
        most -= count
    return taken


class Replicas:
    """The pods of one model: rows go in equal parts to those that are ready and stay."""

    def __init__(self, device: Device) -> None:
        self.tally = Tally()
        self._device = device
        self._pods: list[SimulatedPod] = []

    @property
    def pods(self) -> Sequence[SimulatedPod]:
        """Those that exist, the oldest first; some may start or drain."""
        return self._pods

    def add(self, name: str, random: Generator, *, born: float, ready: float) -> SimulatedPod:
        """One more."""
        pod = SimulatedPod(name, self._device, random, self.tally, born=born, ready=ready)
        self._pods.append(pod)
        return pod

    def serve(self, start: float, end: float, amount: float) -> None:
        """Let an amount of full pods' capacities be offered for a while."""
        rate = amount / self._device.work
        taking = [pod for pod in self._pods if pod.leaving_since is None and pod.ready_at <= start]
        for pod in self._pods:
            share = rate / len(taking) if pod in taking else 0.0
            if pod.ready_at <= start:
                pod.advance(start, end, share)
        if not taking:
            # Nobody takes them, and nobody but the callers knows.
            self.tally.offered += round(rate * (end - start))

    def bury(self, now: float) -> list[SimulatedPod]:
        """Ends pods that leave and have nothing left, never began, or have used up their time."""
        ended = [pod for pod in self._pods if pod.has_left(now)]
        self._pods = [pod for pod in self._pods if pod not in ended]
        return ended
