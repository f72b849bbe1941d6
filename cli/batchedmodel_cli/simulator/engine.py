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
    """Rows of each batch, in order of release."""
    busy: int = 0
    """Time in which a worker computed, all workers of all devices together."""
    until: int = 0


@dataclass(slots=True)
class _Pod:
    policy: Policy
    device: Device
    free: list[int]
    """When each worker is, a heap."""
    in_flight: int = 0
    wake: int = _NEVER


class BrokenPolicyError(Exception):
    """A policy did what none may: the run means nothing."""


def simulate(
    requests: Sequence[Request],
    pods: Sequence[tuple[Policy, Device]],
    *,
    router: Generator | None = None,
) -> Run:
    """Let the requests, ascending in time, be served; ends when all of them have ended.

    Each goes to a pod that `router` draws, as a Kubernetes service spreads connections; without one
    all go to the first.

    Raises `BrokenPolicyError` when a policy loses or repeats an item, releases one that is past its
    deadline or more batches than the device takes, or asks to be woken in the past.
    """
    return _Simulation(requests, pods, router).run()


class _Simulation:
    def __init__(
        self,
        requests: Sequence[Request],
        pods: Sequence[tuple[Policy, Device]],
        router: Generator | None,
    ) -> None:
        self._requests = requests
        self._pods = [_Pod(policy, device, [0] * device.workers) for policy, device in pods]
        self._router = router
        count = len(requests)
        self._run = Run(released=[-1] * count, finished=[-1] * count, ended=[None] * count)
        # (time, order, pod, batch and its measured times, or None for a timer)
        self._events: list[tuple[int, int, int, tuple[Batch, float, float] | None]] = []
        self._order = 0

    def run(self) -> Run:
        """Take the next arrivals or the next event, whichever is first, then let pods decide."""
        requests, events, pods = self._requests, self._events, self._pods
        arrival, total = 0, len(requests)
        while arrival < total or events:
            now = requests[arrival].at if arrival < total else _NEVER
            if events and events[0][0] <= now:
                now, _, index, what = heapq.heappop(events)
                pod = pods[index]
                if what is not None:
                    self._finish(index, what, now)
                elif pod.wake != now:
                    continue  # a timer that was set anew
                else:
                    pod.wake = _NEVER
                self._decide(index, now)
                continue
            touched = set()
            while arrival < total and requests[arrival].at == now:
                touched.add(self._arrive(arrival, now))
                arrival += 1
            for index in sorted(touched):
                self._decide(index, now)
        lost = self._run.ended.count(None)
        if lost:
            raise BrokenPolicyError(f"{lost} accepted items were never released nor given up")
        return self._run

    def _arrive(self, number: int, now: int) -> int:
        request = self._requests[number]
        index = 0
        if self._router is not None and len(self._pods) > 1:
            index = int(self._router.integers(len(self._pods)))
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
        refusal = self._pods[index].policy.offer(item, now / NANOSECONDS)
        if refusal is not None:
            self._run.ended[number] = refusal.reason
        return index

    def _decide(self, index: int, now: int) -> None:
        pod = self._pods[index]
        seconds = now / NANOSECONDS
        depth = pod.device.depth
        while True:
            decision = pod.policy.poll(seconds, Slots(depth=depth, in_flight=pod.in_flight))
            for shed in decision.shed:
                if self._run.ended[shed.item.id] is not None:
                    raise BrokenPolicyError(f"item {shed.item.id} ended twice")
                self._run.ended[shed.item.id] = shed.outcome
            if decision.release is None:
                break
            self._release(index, decision.release, now)
        if decision.wake_at * NANOSECONDS < _NEVER:
            if decision.wake_at <= seconds:
                raise BrokenPolicyError(f"asked at {seconds} to be woken at {decision.wake_at}")
            # A wake a nanosecond late is normal input.
            wake = int(decision.wake_at * NANOSECONDS) + 1
            if wake != pod.wake:
                pod.wake = wake
                self._order += 1
                heapq.heappush(self._events, (wake, self._order, index, None))
        else:
            pod.wake = _NEVER

    def _release(self, index: int, batch: Batch, now: int) -> None:
        pod = self._pods[index]
        pod.in_flight += 1
        if pod.in_flight > pod.device.depth:
            raise BrokenPolicyError(f"{pod.in_flight} batches for {pod.device.depth} slots")
        for item in batch.items:
            if self._run.released[item.id] >= 0 or self._run.ended[item.id] is not None:
                raise BrokenPolicyError(f"item {item.id} was released twice or after its end")
            if item.deadline * NANOSECONDS <= now:
                raise BrokenPolicyError(f"item {item.id} was released past its deadline")
            self._run.released[item.id] = now
        pod.policy.observe(HandedOver(batch=batch.id), now / NANOSECONDS)
        there = now + pod.device.hand_off
        start = max(there, pod.free[0])
        took = pod.device.duration(batch.items, start)
        ends = start + took
        heapq.heapreplace(pod.free, ends)
        self._run.busy += took
        self._run.batches.append(len(batch.items))
        self._order += 1
        times = (batch, took / NANOSECONDS, (start - there) / NANOSECONDS)
        heapq.heappush(self._events, (ends, self._order, index, times))

    def _finish(self, index: int, what: tuple[Batch, float, float], now: int) -> None:
        batch, took, queued = what
        pod, run = self._pods[index], self._run
        pod.in_flight -= 1
        for item in batch.items:
            run.finished[item.id] = now
            run.ended[item.id] = Outcome.COMPLETED
        run.until = max(run.until, now)
        event = Finished(batch=batch.id, compute_seconds=took, queue_seconds=queued)
        pod.policy.observe(event, now / NANOSECONDS)
