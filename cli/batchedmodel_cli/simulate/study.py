"""Puts a person's questions to the simulator, and draws the conclusions. Pure but for its calls.

It knows neither batches nor texts: what serves is `Pods`. With a
target, a rate is sustained if 99 % of the traffic is in time. Without one, it is sustained up to
the utilisation at which the autoscaler adds a pod: that part of what one replica answers when more
requests always wait.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from batchedmodel_cli.simulate.changes import Change
from batchedmodel_cli.simulate.inputs import MOST_REPLICAS
from batchedmodel_cli.simulate.traffic import Traffic
from batchedmodel_cli.simulator.search import highest_rate
from batchedmodel_cli.simulator.token_verdicts import TokenVerdict
from batchedmodel_cli.simulator.verdicts import Verdict
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Spec, target_utilization_percent

Result: TypeAlias = Verdict | TokenVerdict

IN_TIME: Final = 0.99
"""The part of the traffic that must be in time for a rate to count as sustained."""

_FIRST_GUESS: Final = 0.7  # of the throughput; where the search for the highest rate begins
_TOLERANCE: Final = 0.02
_STRESS: Final = 1.1  # of the highest rate: there the settings differ most
_SATURATED: Final = 0.95  # of the throughput: beyond, latency grows with the traffic's duration
_NEGLIGIBLE: Final = 0.005  # of the traffic, and of a rate
_LEAST_SHARE: Final = 0.01  # of the traffic; a gain of less, or over less, means nothing


class Throughput(NamedTuple):
    """What one replica answers, however late, when more requests always wait."""

    requests: float
    """A second."""
    output_tokens: float | None = None
    """A second, of generated text."""


class Pods(Protocol):
    """What serves: traffic, and pods of which each has a device or an engine of its own."""

    @property
    def traffic(self) -> Traffic:
        """What they are offered."""
        ...

    def run(self, settings: BatchSettings, replicas: int, rate: float) -> Result:
        """The traffic at this rate, in requests a second, in front of so many replicas."""
        ...

    def throughput(self, settings: BatchSettings) -> Throughput:
        """Of one replica."""
        ...

    def alone_share(self, settings: BatchSettings) -> float | None:
        """The part of the requests that is in time on an idle replica; None: without a target."""
        ...

    def changes(self, spec: Spec) -> Iterable[Change]:
        """The changes of the manifest that are worth trying."""
        ...


class Measure(StrEnum):
    """How settings are compared."""

    IN_TIME = "in_time"
    """By the part of the traffic that is answered in time."""
    P99 = "p99"
    """By the 99th percentile of the latency, or of the time to the first token."""
    THROUGHPUT = "throughput"
    """By what one replica answers when more wait."""


WORTH: Final = {Measure.IN_TIME: 0.02, Measure.THROUGHPUT: 0.02, Measure.P99: 0.05}
"""The least gain for which a change is advised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The result of a change."""

    change: Change
    gain: float
    """As a part of the present value; above 0 is better."""
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All changes on the same traffic, the best first."""

    measure: Measure
    rate: float
    """Requests a second at which they were compared."""
    present: Result
    tried: tuple[Tried, ...]
    advised: Tried | None
    """The change that is worth making, if there is one."""
    rate_with_advised: float | None
    """The highest rate that the replicas sustain with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How the replicas do as they are."""

    offered: Result
    throughput: Throughput
    highest_rate: float
    """Requests a second that the replicas sustain; 0 if they sustain no rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers to a person's questions."""

    replicas: int
    outlook: Outlook
    replicas_needed: int | None
    """For the offered rate; None if `MOST_REPLICAS` are not enough."""
    comparison: Comparison


def utilisation(spec: Spec) -> float:
    """The part of a replica's throughput that is meant to be used."""
    scaling = spec.autoscaling
    percent = None if scaling is None else scaling.target_utilization_percent
    return target_utilization_percent(percent) / 100


def smallest(holds: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The smallest number from 1 to `most` that holds, if all larger ones do; None if none does.

    Each question is a simulation of seconds, so it asks little when the guess is near.
    """
    low, high = 0, most + 1  # low does not hold, high does or is out of bounds
    tried, step = min(max(guess, 1), most), 1
    while high - low > 1:
        if holds(tried):
            high = tried
            tried = high - step
        else:
            low = tried
            tried = low + step
        step *= 2
        if not low < tried < high:
            tried, step = (low + high) // 2, most
    return high if high <= most else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Questions about so many replicas of a manifest."""

    spec: Spec
    replicas: int
    pods: Pods

    def answers(self) -> Answers:
        """Every answer; some thirty simulations."""
        outlook = self.outlook()
        return Answers(
            replicas=self.replicas,
            outlook=outlook,
            replicas_needed=self._replicas_needed(outlook.highest_rate),
            comparison=self._comparison(outlook),
        )

    def outlook(self) -> Outlook:
        """How the offered traffic does, and the highest rate; some ten simulations."""
        throughput = self.pods.throughput(self._settings)
        return Outlook(
            offered=self._run(self._settings, self.pods.traffic.rate),
            throughput=throughput,
            highest_rate=self._highest_rate(self._settings, throughput),
        )

    @property
    def _settings(self) -> BatchSettings:
        return batch_settings(self.spec)

    def _run(self, settings: BatchSettings, rate: float) -> Result:
        return self.pods.run(settings, self.replicas, rate)

    def _highest_rate(
        self, settings: BatchSettings, throughput: Throughput, *, at_least: float = 0.0
    ) -> float:
        """The highest rate that the replicas sustain; 0.0 also if it is below `at_least`."""
        ceiling = self.replicas * throughput.requests
        alone = self.pods.alone_share(settings)
        if alone is None or not ceiling:
            return ceiling * utilisation(self.spec)
        if alone < IN_TIME:
            return 0.0

        def holds(rate: float) -> bool:
            return self._run(settings, rate).in_time_share >= IN_TIME

        if holds(ceiling):
            # At a higher rate more and more requests wait, but the traffic is too short to show it.
            return ceiling
        if at_least and not holds(at_least):
            return 0.0
        return highest_rate(holds, at_least or _FIRST_GUESS * ceiling, tolerance=_TOLERANCE)

    def _replicas_needed(self, highest: float) -> int | None:
        settings, rate = self._settings, self.pods.traffic.rate
        guess = math.ceil(rate * self.replicas / highest) if highest else MOST_REPLICAS + 1
        alone = self.pods.alone_share(settings)
        if alone is None:
            return guess if guess <= MOST_REPLICAS else None
        if alone < IN_TIME:
            return None

        def enough(replicas: int) -> bool:
            return self.pods.run(settings, replicas, rate).in_time_share >= IN_TIME

        return smallest(enough, guess, MOST_REPLICAS)

    def _comparison(self, outlook: Outlook) -> Comparison:
        measure, rate = self._measure(outlook)
        present = outlook.offered
        if rate != self.pods.traffic.rate:
            present = self._run(self._settings, rate)
        changes = self.pods.changes(self.spec)
        tried = [self._tried(change, measure, rate, present, outlook) for change in changes]
        tried.sort(key=lambda one: -one.gain)
        advised, rate_with = None, None
        for one in tried:
            if _is_worth(one, present, measure):
                rate_with = self._rate_with(one, outlook.highest_rate)
                if rate_with is not None:
                    advised = one
                    break
        return Comparison(
            measure=measure,
            rate=rate,
            present=present,
            tried=tuple(tried),
            advised=advised,
            rate_with_advised=rate_with,
        )

    def _measure(self, outlook: Outlook) -> tuple[Measure, float]:
        """How to compare changes, and at which rate, so that their gain shows."""
        rate = self.pods.traffic.rate
        if self.pods.alone_share(self._settings) is not None:
            if outlook.offered.in_time_share < IN_TIME or not outlook.highest_rate:
                return Measure.IN_TIME, rate
            return Measure.IN_TIME, _STRESS * outlook.highest_rate
        saturated = rate > _SATURATED * self.replicas * outlook.throughput.requests
        return Measure.THROUGHPUT if saturated else Measure.P99, rate

    def _tried(
        self, change: Change, measure: Measure, rate: float, present: Result, outlook: Outlook
    ) -> Tried:
        result = self._run(change.settings, rate)
        if measure is Measure.THROUGHPUT:
            throughput = outlook.throughput.requests
            changed = self.pods.throughput(change.settings).requests
            gain = changed / throughput - 1 if throughput else 0.0
        else:
            gain = _gain(measure, present, result)
        return Tried(change=change, gain=gain, result=result)

    def _rate_with(self, tried: Tried, highest: float) -> float | None:
        """The highest rate with this change; None if it is lower than without.

        A change may gain in the comparison, where too much is offered, and still lower this rate.
        """
        settings = tried.change.settings
        throughput = self.pods.throughput(settings)
        rate = self._highest_rate(settings, throughput, at_least=highest)
        return rate if rate >= highest * (1 - _NEGLIGIBLE) else None


def _gain(measure: Measure, present: Result, result: Result) -> float:
    if measure is Measure.IN_TIME:
        more = result.in_time_share - present.in_time_share
        return more / max(present.in_time_share, _LEAST_SHARE)
    if result.latency is None or present.latency is None:
        return 0.0
    gain = 1 - result.latency.p99 / present.latency.p99
    # Refused requests have no latency, so to refuse more is no gain.
    loses = result.in_time_share < present.in_time_share - _NEGLIGIBLE
    return min(gain, 0.0) if loses else gain


def _is_worth(tried: Tried, present: Result, measure: Measure) -> bool:
    if tried.gain < WORTH[measure]:
        return False
    # Twice a tiny share is still a tiny share.
    more = tried.result.in_time_share - present.in_time_share
    return measure is not Measure.IN_TIME or more >= _LEAST_SHARE
