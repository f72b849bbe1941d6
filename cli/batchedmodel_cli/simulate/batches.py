"""Simulates a manifest's pods that serve batches; `texts` does so for generated text.

A Kubernetes Service spreads requests over its pods at random, so each pod gets a random part of the
traffic. Drawn traffic can be of any length, so one pod is simulated, with the wished number of
requests. A trace has its length, so all pods are simulated.

A policy in front of an upstream server learns the device from the traffic. It has learnt before the
requests that count: the question is about a pod that has run for days, not about its first seconds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from batchedmodel_cli.simulate.changes import Change, batch_changes
from batchedmodel_cli.simulate.study import Throughput
from batchedmodel_cli.simulate.traffic import Traffic
from batchedmodel_cli.simulator.arrivals import nanoseconds
from batchedmodel_cli.simulator.engine import NANOSECONDS, Plant, Request, Run, simulate
from batchedmodel_cli.simulator.verdicts import Verdict, verdict
from batchedmodel_cli.simulator.workload import requests, stream
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_scheduling.batching.decisions import MemoryCap, Policy
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.latency.batch_times import Curve

_OUR_DEPTH: Final = 2
_UPSTREAM_DEPTH: Final = 1
"""Batches that each worker takes at once: of our model server, and of an upstream one."""
_FLOOD: Final = 2.0  # times the rate of full batches of typical items
_PATIENCE_SECONDS: Final = 86_400.0
_LESSON_BATCHES: Final = 128  # full ones; far more than a policy needs to learn a curve
_LONGEST_LESSON: Final = 20_000
_LESSON_RISES: Final = 20.0  # times, so that batches of all sizes are seen
_PAUSE: Final = 1_000_000_000  # nanoseconds between the lesson and what counts


@dataclass(slots=True, kw_only=True)
class BatchPods:
    """Pods of one kind, each with a device of its own. Equal fields give equal results."""

    traffic: Traffic
    profile: Profile
    upstream: bool
    """The server is not ours: it tells its sidecar no profile."""
    hand_off_seconds: float
    """Time of a batch on its way to the device."""
    seed: int
    on_run: Callable[[], None] = field(default=lambda: None)
    """Called before each simulation."""
    curve: Curve = field(init=False)
    """Of the device."""

    def __post_init__(self) -> None:
        self.curve = Curve(self.profile)

    @property
    def largest_measured(self) -> int:
        """Rows of the largest batch in the profile."""
        return max(point.rows for point in self.profile.points)

    @property
    def alone_seconds(self) -> float:
        """The latency of a request of typical length on an idle replica."""
        return self.hand_off_seconds + self.curve.seconds([self.traffic.sizes.typical])

    def run(self, settings: BatchSettings, replicas: int, rate: float) -> Verdict:
        """See `study.Pods`."""
        offered, ran, pods = self._ran(settings, replicas, rate)
        return verdict(offered, ran, pods=pods, workers=settings.max_concurrent_batches)

    def throughput(self, settings: BatchSettings) -> Throughput:
        """See `study.Pods`."""
        patient = replace(
            settings,
            target_seconds=None,
            lateness=Lateness.SERVE,
            request_timeout_seconds=_PATIENCE_SECONDS,
        )
        offered, ran, _ = self._ran(patient, 1, _FLOOD * self._rate_of_full_batches(settings))
        answered = sum(at >= 0 for at in ran.finished)
        seconds = (ran.until - offered[0].at) / NANOSECONDS
        return Throughput(requests=answered / seconds if answered else 0.0)

    def alone_share(self, settings: BatchSettings) -> float | None:
        """See `study.Pods`: all or none, by a request of typical length."""
        target = settings.target_seconds
        return None if target is None else float(self.alone_seconds <= target)

    def changes(self, spec: Spec) -> Iterator[Change]:
        """See `study.Pods`."""
        return batch_changes(spec, self.traffic.sizes.longest, self.largest_measured)

    def _rate_of_full_batches(self, settings: BatchSettings) -> float:
        full = [self.traffic.sizes.typical] * settings.max_batch_size
        return settings.max_concurrent_batches * len(full) / self.curve.seconds(full)

    def _ran(
        self, settings: BatchSettings, replicas: int, rate: float
    ) -> tuple[list[Request], Run, int]:
        """What a part of the fleet was offered, how it went, and how many pods that part has."""
        self.on_run()
        pods, total = self.traffic.part(replicas)
        fleet, begins = list[tuple[Policy, Plant]](), 0
        for _ in range(pods):
            policy, begins = self._new_policy(settings)
            fleet.append((policy, self._plant(settings)))
        offered = self._requests(settings, total, rate, begins, part=pods / replicas)
        return offered, simulate(offered, fleet, router=stream(self.seed, "router")), pods

    def _plant(self, settings: BatchSettings) -> Plant:
        workers = settings.max_concurrent_batches
        return Plant(
            curve=self.curve,
            hand_off_seconds=self.hand_off_seconds,
            workers=workers,
            depth=workers * (_UPSTREAM_DEPTH if self.upstream else _OUR_DEPTH),
        )

    def _new_policy(self, settings: BatchSettings) -> tuple[Policy, int]:
        """A policy as a sidecar makes it, and the time in nanoseconds from which requests count.

        Before an upstream server it has served traffic that rose until all batches were full.
        """
        if not self.upstream:
            policy = new_policy(settings, self.profile)
            if self.profile.max_cost is not None:
                policy.observe(MemoryCap(cost=self.profile.max_cost), 0.0)
            return policy, 0
        policy = new_policy(settings, None)
        count = min(_LESSON_BATCHES * settings.max_batch_size, _LONGEST_LESSON)
        highest = self._rate_of_full_batches(settings)
        gaps = stream(self.seed, "lesson arrivals").standard_exponential(count)
        times = np.cumsum(gaps / np.linspace(highest / _LESSON_RISES, highest, count))
        lesson = requests(
            nanoseconds(times),
            self.traffic.sizes.lengths.draw(count, stream(self.seed, "lesson lengths")),
            settings.request_timeout_seconds,
            request_timeout_seconds=settings.request_timeout_seconds,
        )
        ran = simulate(lesson, [(policy, self._plant(settings))])
        return policy, max(ran.until, lesson[-1].at) + _PAUSE

    def _requests(
        self, settings: BatchSettings, total: int, rate: float, begins: int, *, part: float
    ) -> list[Request]:
        """A random part of so many requests."""
        traffic, target = self.traffic, settings.target_seconds
        offered = requests(
            [
                begins + at
                for at in traffic.arrivals.times(total, rate, stream(self.seed, "arrivals"))
            ],
            traffic.sizes.lengths.draw(total, stream(self.seed, "lengths")),
            settings.request_timeout_seconds if target is None else target,
            refuse=settings.lateness is Lateness.REFUSE,
            request_timeout_seconds=settings.request_timeout_seconds,
            priorities=None if traffic.priorities is None else traffic.priorities[:total],
        )
        if part == 1:
            return offered
        ours = stream(self.seed, "thinning").random(total) < part
        return [offered[n] for n in ours.nonzero()[0].tolist()]


def longest_measured(profile: Profile) -> int:
    """The greatest length in the profile, at least 1."""
    return max(1, *(point.length for point in profile.points))
