"""Puts the simulator behind the few questions of a study; the only module here that knows it.

Everything of the simulator is imported where it is used: this command line starts without numpy,
and other commands never need it.

A Service of Kubernetes spreads what it is sent over its pods at random, so each pod lives a life of
its own on a random part of the traffic. Drawn traffic can be as long as is wanted: of a large fleet
only as many pods are simulated as serve the wished number of requests. Of a trace, which is as long
as it is, all pods are.

What a foreign server's policy must learn from the traffic, it has learnt before anything is
counted: a pod that runs for days is what is asked about, not its first seconds.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from batchedmodel_cli.simulate.answers import Latency, Trial
from batchedmodel_cli.simulate.traffic import Traffic
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.spec import Lateness

if TYPE_CHECKING:
    from batchedmodel_contract.inference.profile import Profile
    from batchedmodel_scheduling.core.policy import Policy
    from batchedmodel_scheduling.simulator.engine import Request
    from batchedmodel_scheduling.simulator.plants import Plant
    from batchedmodel_scheduling.simulator.verdicts import Verdict

_MOST_DRAWN: Final = 2_000_000
_FEWEST_PER_POD: Final = 100
_LONGEST_SECONDS: Final = 1e6  # as a float, a time up to here is exact to a nanosecond
_FLOOD: Final = 2.0  # times what full batches of typical items would allow
_PATIENCE_SECONDS: Final = 86_400.0
_LESSON_BATCHES: Final = 128  # full ones; far more than it takes to learn a curve
_LONGEST_LESSON: Final = 20_000
_LESSON_RISES: Final = 20.0  # times, so that batches of all sizes are seen
_PAUSE: Final = 1_000_000_000  # nanoseconds between the lesson and what counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One replica's device and how it is reached."""

    profile: Profile
    told: bool
    """Whether the sidecar learns the profile: a server of ours tells it, a foreign one cannot."""
    hand_off_seconds: float
    depth: int
    """Batches that each worker of the server takes at once."""


@dataclass(slots=True, kw_only=True)
class SimulatedPods:
    """An `answers.Simulator`. Equal fields give equal answers."""

    traffic: Traffic
    pod: Pod
    seed: int
    on_run: Callable[[], None] = field(default=lambda: None)
    """Called before each simulation."""
    _taught: dict[BatchSettings, tuple[Policy, int]] = field(init=False, default_factory=dict)
    """Policies that know their device, and when they did, in nanoseconds."""

    @property
    def rate(self) -> float:
        """See `Simulator`."""
        return self.traffic.rate

    def run(self, settings: BatchSettings, replicas: int, rate: float) -> Trial:
        """See `Simulator`."""
        from batchedmodel_scheduling.simulator.engine import simulate
        from batchedmodel_scheduling.simulator.verdicts import verdict
        from batchedmodel_scheduling.simulator.workload import stream

        self.on_run()
        begins = self._taught_policy(settings)[1]
        requests, pods = self._drawn(settings, replicas, rate, begins)
        fleet = [self._ready_pod(settings) for _ in range(pods)]
        ran = simulate(requests, fleet, router=stream(self.seed, "router"))
        workers = settings.max_concurrent_batches
        return _trial(verdict(requests, ran, pods=pods, workers=workers))

    def throughput(self, settings: BatchSettings) -> float:
        """See `Simulator`."""
        from batchedmodel_scheduling.simulator.engine import NANOSECONDS, simulate

        self.on_run()
        patient = dataclasses.replace(
            settings,
            target_seconds=None,
            lateness=Lateness.SERVE,
            request_timeout_seconds=_PATIENCE_SECONDS,
        )
        flood = _FLOOD * self._rate_of_full_batches(settings)
        requests, _ = self._drawn(patient, 1, flood, self._taught_policy(patient)[1])
        ran = simulate(requests, [self._ready_pod(patient)])
        answered = sum(at >= 0 for at in ran.finished)
        if not answered:
            return 0.0
        return answered * NANOSECONDS / (ran.until - requests[0].at)

    def alone_seconds(self) -> float:
        """See `Simulator`."""
        from batchedmodel_scheduling.simulator.curves import curve_of

        forward = curve_of(self.pod.profile).seconds([self.traffic.typical_length])
        return self.pod.hand_off_seconds + forward

    def _rate_of_full_batches(self, settings: BatchSettings) -> float:
        plant = self._plant(settings)
        full = [self.traffic.typical_length] * settings.max_batch_size
        return plant.workers * len(full) / plant.curve.seconds(full)

    def _ready_pod(self, settings: BatchSettings) -> tuple[Policy, Plant]:
        """A policy of its own that knows the device as well as it ever will, and the device."""
        # A copy, since lessons are the same for all pods and take as long as what is asked.
        return copy.deepcopy(self._taught_policy(settings)[0]), self._plant(settings)

    def _plant(self, settings: BatchSettings) -> Plant:
        from batchedmodel_scheduling.simulator.curves import curve_of
        from batchedmodel_scheduling.simulator.plants import Plant

        pod, workers = self.pod, settings.max_concurrent_batches
        return Plant(
            curve=curve_of(pod.profile),
            hand_off_seconds=pod.hand_off_seconds,
            workers=workers,
            depth=workers * pod.depth,
        )

    def _taught_policy(self, settings: BatchSettings) -> tuple[Policy, int]:
        """A policy as a sidecar makes it, after its lesson if it needs one, and when that ended."""
        from batchedmodel_scheduling.core.policies import new_policy
        from batchedmodel_scheduling.core.policy import MemoryCap

        if settings not in self._taught:
            pod = self.pod
            policy = new_policy(settings, pod.profile if pod.told else None)
            if pod.told and pod.profile.max_cost is not None:
                policy.observe(MemoryCap(cost=pod.profile.max_cost), 0.0)
            self._taught[settings] = policy, 0 if pod.told else self._teach(policy, settings)
        return self._taught[settings]

    def _teach(self, policy: Policy, settings: BatchSettings) -> int:
        """Let it serve traffic of these lengths that rises until all batches are full.

        Returns when, in nanoseconds, what counts may begin.
        """
        from batchedmodel_scheduling.simulator.arrivals import Ramp
        from batchedmodel_scheduling.simulator.engine import simulate
        from batchedmodel_scheduling.simulator.workload import requests, stream

        count = min(_LESSON_BATCHES * settings.max_batch_size, _LONGEST_LESSON)
        rise = Ramp(factor=_LESSON_RISES)
        rate = self._rate_of_full_batches(settings) / 2  # the mean; in the end it is twice that
        lesson = requests(
            rise.times(count, rate, stream(self.seed, "lesson arrivals")),
            self.traffic.lengths.draw(count, stream(self.seed, "lesson lengths")),
            settings.request_timeout_seconds,
            request_timeout_seconds=settings.request_timeout_seconds,
        )
        ran = simulate(lesson, [(policy, self._plant(settings))])
        return max(ran.until, lesson[-1].at) + _PAUSE

    def _drawn(
        self, settings: BatchSettings, replicas: int, rate: float, begins: int
    ) -> tuple[list[Request], int]:
        """What some pods of the fleet are sent from `begins` on, and how many pods these are."""
        from batchedmodel_scheduling.simulator.workload import requests, stream

        traffic = self.traffic
        total, pods = self._sizes(replicas, rate)
        times = traffic.arrivals.times(total, rate, stream(self.seed, "arrivals"))
        lengths = traffic.lengths.draw(total, stream(self.seed, "lengths"))
        priorities = None if traffic.priorities is None else traffic.priorities[:total]
        if pods < replicas:
            ours = stream(self.seed, "thinning").random(total) < pods / replicas
            kept = ours.nonzero()[0].tolist()
            times, lengths = [times[n] for n in kept], [lengths[n] for n in kept]
        target = settings.target_seconds
        drawn = requests(
            [begins + at for at in times],
            lengths,
            settings.request_timeout_seconds if target is None else target,
            refuse=settings.lateness is Lateness.REFUSE,
            request_timeout_seconds=settings.request_timeout_seconds,
            priorities=priorities,
        )
        return drawn, pods

    def _sizes(self, replicas: int, rate: float) -> tuple[int, int]:
        """How many requests a fleet of so many is sent, and how many of its pods are simulated."""
        wished = self.traffic.requests
        longest = max(_FEWEST_PER_POD * replicas, int(rate * _LONGEST_SECONDS))
        if self.traffic.priorities is not None:
            return min(wished, longest), replicas
        total = min(wished * replicas, _MOST_DRAWN, longest)
        return total, min(replicas, -(-replicas * wished // total))


def _trial(found: Verdict) -> Trial:
    gone = found.refused_share + found.shed_share + found.expired_share
    latency = found.latency
    return Trial(
        requests=found.requests,
        in_time_share=found.on_time_share,
        # What is left of the whole, where a sum of fractions may miss it by a last digit.
        late_share=max(0.0, round(1 - found.on_time_share - gone, 12)),
        refused_share=found.refused_share,
        shed_share=found.shed_share,
        expired_share=found.expired_share,
        latency=None
        if latency is None
        else Latency(mean=latency.mean, p50=latency.p50, p95=latency.p95, p99=latency.p99),
        goodput=found.goodput,
        busy_share=found.busy_share,
        mean_batch=found.mean_batch,
    )
