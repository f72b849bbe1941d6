"""Simulates a manifest's pods that serve batches; `generation_pods` does so for generated text.

A Kubernetes Service spreads requests over its pods at random, so each pod gets a random part of the
traffic. Drawn traffic can be of any length: of a large fleet only as many pods are simulated as
serve the wished number of requests. A trace has its length, so all pods are simulated.

A policy in front of an upstream server learns the device from the traffic. It has learnt before the
requests that count: the question is about a pod that has run for days, not about its first seconds.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from batchedmodel_cli.simulate.traffic import Traffic
from batchedmodel_cli.simulator.arrivals import Ramp
from batchedmodel_cli.simulator.curves import curve_of
from batchedmodel_cli.simulator.engine import NANOSECONDS, Request, simulate
from batchedmodel_cli.simulator.plants import Plant
from batchedmodel_cli.simulator.verdicts import Latency, Verdict, verdict
from batchedmodel_cli.simulator.workload import requests, stream
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_scheduling.batching.decisions import MemoryCap, Policy
from batchedmodel_scheduling.batching.policies import new_policy

_OUR_DEPTH: Final = 2
_UPSTREAM_DEPTH: Final = 1
"""Batches that each worker takes at once: of our model server, and of an upstream one."""
_MOST_DRAWN: Final = 2_000_000
_FEWEST_PER_POD: Final = 100
_LONGEST_SECONDS: Final = 1e6  # as a float, a time up to here is exact to a nanosecond
_FLOOD: Final = 2.0  # times the rate of full batches of typical items
_PATIENCE_SECONDS: Final = 86_400.0
_LESSON_BATCHES: Final = 128  # full ones; far more than a policy needs to learn a curve
_LONGEST_LESSON: Final = 20_000
_LESSON_RISES: Final = 20.0  # times, so that batches of all sizes are seen
_PAUSE: Final = 1_000_000_000  # nanoseconds between the lesson and what counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of one simulation; the first five shares add up to 1."""

    requests: int
    in_time_share: float
    """Answered within the target or, without one, within the request time-out."""
    longest_in_time_share: float
    """The same of the tenth of the requests that is longest."""
    late_share: float
    """Answered after it."""
    refused_share: float
    """Refused on arrival."""
    shed_share: float
    """Accepted, and given up before their time was over."""
    expired_share: float
    """Accepted, and not answered when their time was over."""
    latency: Latency | None
    """None if nothing was answered."""
    goodput: float
    """Answered in time, requests a second of the run."""
    busy_share: float
    """Part of the time in which the average device computed."""
    mean_batch: float


@dataclass(slots=True, kw_only=True)
class SimulatedPods:
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
    _taught: dict[BatchSettings, tuple[Policy, int]] = field(init=False, default_factory=dict)
    """Policies that know their device, and since when, in nanoseconds."""

    @property
    def largest_measured(self) -> int:
        """Rows of the largest batch in the profile."""
        return max(point.rows for point in self.profile.points)

    def run(self, settings: BatchSettings, replicas: int, rate: float) -> Trial:
        """The traffic at this rate, in requests a second, in front of so many replicas."""
        self.on_run()
        drawn, pods = self._drawn(settings, replicas, rate)
        fleet = [self._ready_pod(settings) for _ in range(pods)]
        ran = simulate(drawn, fleet, router=stream(self.seed, "router"))
        workers = settings.max_concurrent_batches
        return _trial(verdict(drawn, ran, edges=_tenth(drawn), pods=pods, workers=workers))

    def throughput(self, settings: BatchSettings) -> float:
        """Requests a second that one replica answers, however late, when more wait."""
        self.on_run()
        patient = dataclasses.replace(
            settings,
            target_seconds=None,
            lateness=Lateness.SERVE,
            request_timeout_seconds=_PATIENCE_SECONDS,
        )
        flood = _FLOOD * self._rate_of_full_batches(settings)
        drawn, _ = self._drawn(patient, 1, flood)
        ran = simulate(drawn, [self._ready_pod(patient)])
        answered = sum(at >= 0 for at in ran.finished)
        return answered * NANOSECONDS / (ran.until - drawn[0].at) if answered else 0.0

    def alone_seconds(self) -> float:
        """The latency of a request of typical length on an idle replica."""
        return self.hand_off_seconds + curve_of(self.profile).seconds([self.traffic.typical_length])

    def _rate_of_full_batches(self, settings: BatchSettings) -> float:
        plant = self._plant(settings)
        full = [self.traffic.typical_length] * settings.max_batch_size
        return plant.workers * len(full) / plant.curve.seconds(full)

    def _ready_pod(self, settings: BatchSettings) -> tuple[Policy, Plant]:
        """A policy that knows the device, and the device."""
        policy, _ = self._taught_policy(settings)
        if inspect.isfunction(type(policy).offer):
            # A lesson takes as long as a simulation and is the same for all pods.
            return copy.deepcopy(policy), self._plant(settings)
        # What is compiled cannot be copied, and learns several times as fast.
        return self._newly_taught(settings)[0], self._plant(settings)

    def _plant(self, settings: BatchSettings) -> Plant:
        workers = settings.max_concurrent_batches
        return Plant(
            curve=curve_of(self.profile),
            hand_off_seconds=self.hand_off_seconds,
            workers=workers,
            depth=workers * (_UPSTREAM_DEPTH if self.upstream else _OUR_DEPTH),
        )

    def _taught_policy(self, settings: BatchSettings) -> tuple[Policy, int]:
        """A policy as a sidecar makes it, after its lesson if it needs one, and when that ended."""
        if settings not in self._taught:
            self._taught[settings] = self._newly_taught(settings)
        return self._taught[settings]

    def _newly_taught(self, settings: BatchSettings) -> tuple[Policy, int]:
        policy = new_policy(settings, None if self.upstream else self.profile)
        if not self.upstream and self.profile.max_cost is not None:
            policy.observe(MemoryCap(cost=self.profile.max_cost), 0.0)
        return policy, self._teach(policy, settings) if self.upstream else 0

    def _teach(self, policy: Policy, settings: BatchSettings) -> int:
        """Let it serve traffic of these lengths that rises until all batches are full.

        Returns the time in nanoseconds from which requests may count.
        """
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
        self, settings: BatchSettings, replicas: int, rate: float
    ) -> tuple[list[Request], int]:
        """The requests to some pods of the fleet, and the number of these pods."""
        traffic = self.traffic
        begins = self._taught_policy(settings)[1]
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
        """Requests to a fleet of so many replicas, and how many of its pods are simulated."""
        wished = self.traffic.requests
        longest = max(_FEWEST_PER_POD * replicas, int(rate * _LONGEST_SECONDS))
        if self.traffic.priorities is not None:
            return min(wished, longest), replicas
        total = min(wished * replicas, _MOST_DRAWN, longest)
        return total, min(replicas, -(-replicas * wished // total))


def _tenth(drawn: list[Request]) -> tuple[int, ...]:
    """Edges of two length buckets, of which the upper one has the longest tenth; or of one."""
    lengths = sorted(request.length for request in drawn)
    below = lengths[9 * len(lengths) // 10] - 1
    return (below, lengths[-1]) if below >= lengths[0] else (lengths[-1],)


def _trial(found: Verdict) -> Trial:
    gone = found.refused_share + found.shed_share + found.expired_share
    return Trial(
        requests=found.requests,
        in_time_share=found.on_time_share,
        longest_in_time_share=found.by_length[max(found.by_length)].on_time_share,
        # The rest; rounded, because a sum of fractions may be off in its last digit.
        late_share=max(0.0, round(1 - found.on_time_share - gone, 12)),
        refused_share=found.refused_share,
        shed_share=found.shed_share,
        expired_share=found.expired_share,
        latency=found.latency,
        goodput=found.goodput,
        busy_share=found.busy_share,
        mean_batch=found.mean_batch,
    )
