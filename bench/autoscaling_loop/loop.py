"""The closed loop in virtual time: load, pods, sidecars, our formula, the HPA, and pods again.

The same windows, sight and formula as in the autoscaler's process, and the HPA's own arithmetic, so
that what is found here is found about the product. Simple where it can be: one kind of device, pods
start in equal time, a client's rows go to any ready pod. Equal arguments give equal runs.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Final

from autoscaling_loop import hpa
from autoscaling_loop.pods import Device
from autoscaling_loop.text_pods import TextDevice
from batchedmodel_autoscaler.replicas.formula import (
    ModelObservation,
    Target,
    Unseen,
    Verdict,
    required_replicas,
)
from batchedmodel_autoscaler.replicas.observation import PodState, model_sight
from batchedmodel_autoscaler.replicas.windows import History, Window
from batchedmodel_cli.simulator.workload import stream

TICK_SECONDS: Final = 1.0
_POLL_TICKS: Final = 2
_SYNC_TICKS: Final = round(hpa.SYNC_SECONDS / TICK_SECONDS)
WARM_UP_TICKS: Final = 90
"""Before the HPA looks and anything counts, so that a run begins with full windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Rows a second as a function of time, in pods' capacities at full batches.

    So a load says how many pods it keeps busy.
    """

    name: str
    seconds: float
    at: Callable[[float], float]
    """Pods' capacities offered at a time in seconds since the start."""
    changes: int
    """How often it changes for good: steps, ends of a ramp's climb, peaks and troughs."""


def steps(name: str, *parts: tuple[float, float]) -> Load:
    """Constant parts, each with its seconds and its amount."""
    ends, total = [], 0.0
    for seconds, _ in parts:
        total += seconds
        ends.append(total)

    def at(now: float) -> float:
        return parts[min(bisect_right(ends, now), len(parts) - 1)][1]

    return Load(name=name, seconds=total, at=at, changes=len(parts) - 1)


def ramp(name: str, low: float, high: float, *, rest: float, climb: float) -> Load:
    """Rests low, climbs evenly, rests high, falls evenly, rests low."""
    turns = (rest, rest + climb, 2 * rest + climb, 2 * rest + 2 * climb)

    def at(now: float) -> float:
        up = min(max(0.0, (now - turns[0]) / climb), 1.0)
        down = min(max(0.0, (now - turns[2]) / climb), 1.0)
        return low + (high - low) * (up - down)

    return Load(name=name, seconds=turns[3] + rest, at=at, changes=2)


def sine(name: str, low: float, high: float, *, period: float, periods: int) -> Load:
    """Begins at its trough."""

    def at(now: float) -> float:
        return low + (high - low) * (1 - math.cos(2 * math.pi * now / period)) / 2

    return Load(name=name, seconds=period * periods, at=at, changes=2 * periods)


def recorded(name: str, times: Sequence[float], *, bin_seconds: float, mean: float) -> Load:
    """A trace's rate in each bin, scaled to a mean amount; each bin counts as a change."""
    count = max(1, math.ceil((times[-1] - times[0]) / bin_seconds))
    bins = [0] * count
    for time in times:
        bins[min(int((time - times[0]) / bin_seconds), count - 1)] += 1
    scale = mean * count / len(times)

    def at(now: float) -> float:
        return bins[min(int(now / bin_seconds), count - 1)] * scale

    return Load(name=name, seconds=count * bin_seconds, at=at, changes=count)


def part(load: Load, *, start: float, seconds: float) -> Load:
    """A while of another load, whose changes are taken to lie evenly in it."""
    changes = round(load.changes * seconds / load.seconds)
    return Load(
        name=load.name, seconds=seconds, at=lambda now: load.at(start + now), changes=changes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time in which the autoscaler does not hear some pods, or is not there at all."""

    start: float
    end: float
    silent_share: float = 1.0
    """Of the pods, the oldest first."""
    forgets: bool = False
    """A new process stands at its end, with nothing remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What does not change within a run."""

    device: Device | TextDevice
    autoscaler: hpa.Autoscaler
    target: Target
    startup_seconds: float
    decide: Callable[[ModelObservation, Target], Verdict] = required_replicas
    outages: tuple[Outage, ...] = ()
    sync_offset: int = 0
    """Ticks from the start to the HPA's first look."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of a run."""

    offered: int = 0
    on_time: int = 0
    replica_seconds: float = 0.0
    """Every pod that exists, those that start or drain included."""
    ideal_seconds: float = 0.0
    """The fewest pods whose capacity at the target covers the load, at every moment."""
    sizes: list[tuple[float, int]] = field(default_factory=list)
    """When the HPA changed the size, and to what."""

    @property
    def on_time_share(self) -> float:
        """Of all rows offered, refused ones included."""
        return self.on_time / max(1, self.offered)

    @property
    def cost(self) -> float:
        """Replica-seconds against ideal."""
        return self.replica_seconds / self.ideal_seconds

    @property
    def reversals(self) -> int:
        """How often a change of size took back the one before."""
        sizes = [size for _, size in self.sizes]
        moves = [b - a for a, b in pairwise(sizes)]
        return sum((a > 0) != (b > 0) for a, b in pairwise(moves))

    @property
    def events(self) -> int:
        """Changes of size."""
        return len(self.sizes) - 1


def run(setup: Setup, load: Load, seed: int) -> Result:
    """Let one load be served from its start to its end."""
    return _Loop(setup, load, seed).run()


def ideal_replicas(setup: Setup, amount: float) -> int:
    """The fewest pods whose capacity at the target covers an amount of full pods' capacities."""
    capacity = setup.target.utilization * setup.device.sustainable_share
    needed = math.ceil(amount / capacity - 1e-9)
    return max(setup.autoscaler.min_replicas, min(setup.autoscaler.max_replicas, needed))


class _Loop:
    def __init__(self, setup: Setup, load: Load, seed: int) -> None:
        self._setup = setup
        self._load = load
        self._seed = seed
        self._replicas = setup.device.replicas()
        self._histories: dict[str, History] = {}
        self._departed: list[Window] = []
        self._numbers = count()
        self._memory = hpa.Memory()

    def run(self) -> Result:
        """Tick by tick; the HPA looks at every fifteenth."""
        setup, load = self._setup, self._load
        size = ideal_replicas(setup, load.at(0.0))
        for _ in range(size):
            self._add(-WARM_UP_TICKS * TICK_SECONDS, startup_seconds=0.0)
        for tick in range(-WARM_UP_TICKS, 0):
            self._tick(tick, load.at(0.0))
        result = Result(sizes=[(0.0, size)])
        for tick in range(round(load.seconds / TICK_SECONDS)):
            amount = load.at(tick * TICK_SECONDS)
            result.replica_seconds += len(self._replicas.pods) * TICK_SECONDS
            result.ideal_seconds += ideal_replicas(setup, amount) * TICK_SECONDS
            now = self._tick(tick, amount)
            if tick % _SYNC_TICKS == setup.sync_offset % _SYNC_TICKS:
                wanted = self._look(size, now)
                if wanted != size:
                    self._resize(wanted - size, now)
                    size = wanted
                    result.sizes.append((now, size))
        result.offered, result.on_time = self._replicas.tally.offered, self._replicas.tally.on_time
        return result

    def _tick(self, tick: int, amount: float) -> float:
        """Pods serve and tell; returns when it is over."""
        now = tick * TICK_SECONDS
        self._replicas.serve(now, now + TICK_SECONDS, amount)
        now += TICK_SECONDS
        self._bury(now)
        outages = self._setup.outages
        if any(one.forgets and now - TICK_SECONDS < one.end <= now for one in outages):
            self._histories.clear()
            self._departed.clear()
        if tick % _POLL_TICKS == 0:
            silent = [one.silent_share for one in outages if one.start <= now < one.end]
            pods = self._replicas.pods
            for pod in pods[math.ceil(max(silent, default=0.0) * len(pods)) :]:
                self._histories.setdefault(pod.name, History()).record(pod.stats(now), now)
        return now

    def _look(self, size: int, now: float) -> int:
        setup = self._setup
        states = [
            PodState(
                ready=pod.ready_at <= now,
                leaving=pod.leaving_since is not None,
                history=self._histories.get(pod.name, History()),
            )
            for pod in self._replicas.pods
        ]
        sight = model_sight(
            states,
            self._departed,
            present=size,
            startup_seconds=setup.startup_seconds,
            poll_seconds=_POLL_TICKS * TICK_SECONDS,
            sync_seconds=hpa.SYNC_SECONDS,
            now=now,
        )
        value: float | None = None
        with suppress(Unseen):
            value = setup.decide(sight, setup.target).value
        step = hpa.step(setup.autoscaler, self._memory, value=value, present=size, now=now)
        self._memory = step.memory
        return step.replicas

    def _resize(self, by: int, now: float) -> None:
        for _ in range(by):
            self._add(now, startup_seconds=self._setup.startup_seconds)
        staying = [pod for pod in self._replicas.pods if pod.leaving_since is None]
        # A ReplicaSet takes away those first that are not ready, then the youngest.
        staying.sort(key=lambda pod: (pod.ready_at <= now, -pod.ready_at))
        for pod in staying[: max(0, -by)]:
            pod.leaving_since = now

    def _bury(self, now: float) -> None:
        """What was offered to pods that have ended still counts for a minute."""
        for pod in self._replicas.bury(now):
            history = self._histories.pop(pod.name, None)
            window = history.window() if history is not None else None
            if window is not None:
                self._departed = [one for one in self._departed if not one.over(now)]
                self._departed.append(window)

    def _add(self, now: float, *, startup_seconds: float) -> None:
        name = f"pod-{next(self._numbers)}"
        random = stream(self._seed, name)
        self._replicas.add(name, random, born=now, ready=now + startup_seconds)
