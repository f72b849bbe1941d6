"""The event loop of the simulator: requests arrive, policies decide, devices take their time.

Called by `batchedmodel simulate`, by the benchmarks and by tests. Time is in integer nanoseconds,
and events of equal times keep their order. Only the router and some devices draw at random, each
from a stream of its own, so equal inputs give equal events. It drives the very policy objects that
the sidecar drives and knows nothing of what they do inside.
"""

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from numpy.random import Generator

from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.batching.decisions import Batch, Finished, HandedOver, Policy, Slots
from batchedmodel_scheduling.queue.items import Item, ItemId, Priority, RequestGroup

NANOSECONDS: Final = 1_000_000_000
_NEVER: Final = 1 << 62
_KEY: Final = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One row as a workload has it. `due` and `deadline` are times, not durations."""

    at: int
    length: int
    due: int
    deadline: int
    priority: Priority = Priority.NORMAL
    key: Hashable = _KEY
    request_group: RequestGroup | None = None
    adapter: int = 0


class Curve(Protocol):
    """How long a forward pass takes, without noise, by the lengths of its rows."""

    def seconds(self, lengths: Sequence[int]) -> float:
        """For at least one row."""
        ...


class Device(Protocol):
    """One accelerator behind one policy."""

    @property
    def workers(self) -> int:
        """Batches that run side by side."""
        ...

    @property
    def depth(self) -> int:
        """Batches that the server holds at once."""
        ...

    @property
    def hand_off(self) -> int:
        """Nanoseconds from the release of a batch until the device could begin it."""
        ...

    def duration(self, items: Sequence[Item], now: int) -> int:
        """Nanoseconds that a batch takes from `now` on; called once for each batch."""
        ...


@dataclass(slots=True, kw_only=True)
class Plant:
    """A device that keeps to its curve."""

    curve: Curve
    hand_off_seconds: float = 0.0
    workers: int = 1
    depth: int = 1

    @property
    def hand_off(self) -> int:
        """See `Device`."""
        return round(self.hand_off_seconds * NANOSECONDS)

    def duration(self, items: Sequence[Item], now: int) -> int:
        """See `Device`; at least 1."""
        return max(1, round(self.curve.seconds([item.length for item in items]) * NANOSECONDS))


@dataclass(slots=True, kw_only=True)
class Run:
    """What became of every request, by its index in the workload. Times in nanoseconds.

    They count from a start near zero: a second as a float is then exact to well below one.
    """

    released: list[int]
    """When each left for the device; -1 for those that never did."""
    finished: list[int]
    """When each was answered; -1 for those that were not."""
    ended: list[Outcome | Rejection | None]
    """How each ended, or why it was refused on arrival; None only while the run goes on."""
    batches: list[int] = field(default_factory=list)
    """Rows of each batch, pod by pod in order of release."""
    busy: int = 0
    """Time in which a worker computed, all workers of all devices together."""
    until: int = 0


def simulate(
    requests: Sequence[Request],
    pods: Sequence[tuple[Policy, Device]],
    *,
    router: Generator | None = None,
) -> Run:
    """Let the requests, ascending in time, be served; ends when all of them have ended.

    Each goes to a pod that `router` draws, as a Kubernetes service spreads connections; without one
    all go to the first.

    Raises `AssertionError` when a policy loses or repeats an item, releases one that is past its
    deadline or more batches than the device takes, or asks to be woken in the past.
    """
    count = len(requests)
    run = Run(released=[-1] * count, finished=[-1] * count, ended=[None] * count)
    shares: list[list[int]] = [[] for _ in pods]
    for number in range(count):
        drawn = router.integers(len(pods)) if router is not None and len(pods) > 1 else 0
        shares[int(drawn)].append(number)
    for (policy, device), numbers in zip(pods, shares, strict=True):
        _Pod(policy, device, requests, run).serve(numbers)
    lost = run.ended.count(None)
    assert not lost, f"{lost} accepted items were never released nor given up"
    return run


class _Pod:
    def __init__(
        self, policy: Policy, device: Device, requests: Sequence[Request], run: Run
    ) -> None:
        self._policy = policy
        self._device = device
        self._requests = requests
        self._run = run
        self._free = [0] * device.workers
        """When each worker is, a heap."""
        self._running: list[tuple[int, int, Batch, float, float]] = []
        """When each batch ends, its number, what it took and how long it waited; a heap."""
        self._released = 0
        self._wake = _NEVER

    def serve(self, numbers: Sequence[int]) -> None:
        """Take the next end of a batch, the timer or the next arrivals, then let the policy decide.

        Of equal times, the first of these comes first.
        """
        requests, running = self._requests, self._running
        next_one, total = 0, len(numbers)
        while True:
            arrival = requests[numbers[next_one]].at if next_one < total else _NEVER
            ends = running[0][0] if running else _NEVER
            now = min(ends, self._wake, arrival)
            if now == _NEVER:
                return
            if now == ends:
                self._finish(now)
            elif now == self._wake:
                self._wake = _NEVER
            else:
                while next_one < total and requests[numbers[next_one]].at == now:
                    self._arrive(numbers[next_one], now)
                    next_one += 1
            self._decide(now)

    def _arrive(self, number: int, now: int) -> None:
        request = self._requests[number]
        item = Item(
            id=ItemId(number),
            key=request.key,
            length=request.length,
            arrived=now / NANOSECONDS,
            due=request.due / NANOSECONDS,
            deadline=request.deadline / NANOSECONDS,
            priority=request.priority,
            request_group=request.request_group,
            adapter=request.adapter,
        )
        refusal = self._policy.offer(item, now / NANOSECONDS)
        if refusal is not None:
            self._run.ended[number] = refusal.reason

    def _decide(self, now: int) -> None:
        seconds, depth = now / NANOSECONDS, self._device.depth
        while True:
            slots = Slots(depth=depth, in_flight=len(self._running))
            decision = self._policy.poll(seconds, slots)
            for shed in decision.shed:
                assert self._run.ended[shed.item.id] is None, f"item {shed.item.id} ended twice"
                self._run.ended[shed.item.id] = shed.outcome
            if decision.release is None:
                break
            self._release(decision.release, now)
        self._wake = _NEVER
        if decision.wake_at * NANOSECONDS < _NEVER:
            assert decision.wake_at > seconds, f"woken at {seconds}, before {decision.wake_at}"
            # A wake a nanosecond late is normal input.
            self._wake = int(decision.wake_at * NANOSECONDS) + 1

    def _release(self, batch: Batch, now: int) -> None:
        run, device = self._run, self._device
        assert len(self._running) < device.depth, f"more batches than {device.depth} slots"
        for item in batch.items:
            new = run.released[item.id] < 0 and run.ended[item.id] is None
            assert new, f"item {item.id} was released twice or after its end"
            assert item.deadline * NANOSECONDS > now, f"item {item.id} is past its deadline"
            run.released[item.id] = now
        self._policy.observe(HandedOver(batch=batch.id), now / NANOSECONDS)
        there = now + device.hand_off
        start = max(there, self._free[0])
        took = device.duration(batch.items, start)
        heapq.heapreplace(self._free, start + took)
        run.busy += took
        run.batches.append(len(batch.items))
        self._released += 1
        times = (took / NANOSECONDS, (start - there) / NANOSECONDS)
        heapq.heappush(self._running, (start + took, self._released, batch, *times))

    def _finish(self, now: int) -> None:
        _, _, batch, took, queued = heapq.heappop(self._running)
        for item in batch.items:
            self._run.finished[item.id] = now
            self._run.ended[item.id] = Outcome.COMPLETED
        self._run.until = max(self._run.until, now)
        event = Finished(batch=batch.id, compute_seconds=took, queue_seconds=queued)
        self._policy.observe(event, now / NANOSECONDS)
