"""Puts a person's questions to the simulator, and draws the conclusions. Pure but for its calls.

Called by `command` and by `diff`. With a latency target, a rate is sustained if 99 % of the traffic
is in time. Without one, it is sustained up to the utilisation at which the autoscaler adds a pod:
that part of what one replica answers when more requests always wait.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from batchedmodel_cli.simulate.inputs import MOST_REPLICAS
from batchedmodel_cli.simulate.pods import SimulatedPods, Trial
from batchedmodel_cli.simulator.search import highest_rate
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, Objective, PolicyName
from batchedmodel_contract.schema.reading import Setting, declarations
from batchedmodel_contract.schema.rules import Broken
from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.cross_field_rules import CHECKS
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Spec, target_utilization_percent

IN_TIME: Final = 0.99
"""The part of the traffic that must be in time for a rate to count as sustained."""

_RULES: Final = {
    field.name: (declared.name, declared.rule)
    for field, declared in declarations(Batching)
    if isinstance(declared, Setting)
}
_SOME_WAIT: Final = 5  # milliseconds, for those who have none
_SHORTEST_EDGE: Final = 16
_ABSENT: Final = "absent"
_FIRST_GUESS: Final = 0.7  # of the throughput; where the search for the highest rate begins
_TOLERANCE: Final = 0.02
_STRESS: Final = 1.1  # of the highest rate: there the settings differ most
_SATURATED: Final = 0.95  # of the throughput: beyond, latency grows with the traffic's duration
_NEGLIGIBLE: Final = 0.001  # of the traffic
_LEAST_SHARE: Final = 0.01  # of the traffic; a gain of less, or over less, means nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting changed, everything else as it is."""

    field: str
    """As the manifest has it, below `spec.batching`."""
    present: str
    value: str
    settings: BatchSettings
    """The effective ones with the change."""


class Measure(StrEnum):
    """How settings are compared."""

    IN_TIME = "in_time"
    """By the part of the traffic that is answered in time."""
    P99 = "p99"
    """By the 99th percentile of the latency."""
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
    beyond_profile: bool
    """Its batches are larger than any that was measured."""
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All changes on the same traffic, the best first."""

    measure: Measure
    rate: float
    """Requests a second at which they were compared."""
    present: Trial
    tried: tuple[Tried, ...]
    advised: Tried | None
    """The change that is worth making, if there is one."""
    rate_with_advised: float | None
    """The highest rate that the replicas sustain with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How the replicas do as they are."""

    offered: Trial
    throughput: float
    """Requests a second that one replica answers, however late, when more wait."""
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
    given = None if scaling is None else scaling.target_utilization_percent
    return target_utilization_percent(given) / 100


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
    pods: SimulatedPods

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

    def _run(self, settings: BatchSettings, rate: float) -> Trial:
        return self.pods.run(settings, self.replicas, rate)

    def _highest_rate(
        self, settings: BatchSettings, throughput: float, *, at_least: float = 0.0
    ) -> float:
        """The highest rate that the replicas sustain; 0.0 also if it is below `at_least`."""
        ceiling = self.replicas * throughput
        if settings.target_seconds is None or not ceiling:
            return ceiling * utilisation(self.spec)
        if self.pods.alone_seconds() > settings.target_seconds:
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
        if settings.target_seconds is None:
            return guess if guess <= MOST_REPLICAS else None
        if self.pods.alone_seconds() > settings.target_seconds:
            return None

        def enough(replicas: int) -> bool:
            return self.pods.run(settings, replicas, rate).in_time_share >= IN_TIME

        return smallest(enough, guess, MOST_REPLICAS)

    def _comparison(self, outlook: Outlook) -> Comparison:
        measure, rate = self._measure(outlook)
        present = outlook.offered
        if rate != self.pods.traffic.rate:
            present = self._run(self._settings, rate)
        tried = [
            self._tried(change, measure, rate, present, outlook.throughput)
            for change in changes(self.spec, self.pods.traffic.longest)
        ]
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
        if self._settings.target_seconds is not None:
            if outlook.offered.in_time_share < IN_TIME or not outlook.highest_rate:
                return Measure.IN_TIME, rate
            return Measure.IN_TIME, _STRESS * outlook.highest_rate
        saturated = rate > _SATURATED * self.replicas * outlook.throughput
        return Measure.THROUGHPUT if saturated else Measure.P99, rate

    def _tried(
        self, change: Change, measure: Measure, rate: float, present: Trial, throughput: float
    ) -> Tried:
        trial = self._run(change.settings, rate)
        if measure is Measure.THROUGHPUT:
            changed = self.pods.throughput(change.settings)
            gain = changed / throughput - 1 if throughput else 0.0
        else:
            gain = _gain(measure, present, trial)
        rows = change.settings.max_batch_size
        beyond = rows > max(self._settings.max_batch_size, self.pods.largest_measured)
        return Tried(change=change, gain=gain, beyond_profile=beyond, trial=trial)

    def _rate_with(self, tried: Tried, highest: float) -> float | None:
        """The highest rate with this change; None if it is lower than without.

        A change may gain in the comparison, where too much is offered, and still lower this rate.
        """
        settings = tried.change.settings
        throughput = self.pods.throughput(settings)
        rate = self._highest_rate(settings, throughput, at_least=highest)
        return rate if rate >= highest * (1 - _NEGLIGIBLE) else None


def _gain(measure: Measure, present: Trial, trial: Trial) -> float:
    if measure is Measure.IN_TIME:
        more = trial.in_time_share - present.in_time_share
        return more / max(present.in_time_share, _LEAST_SHARE)
    if trial.latency is None or present.latency is None:
        return 0.0
    gain = 1 - trial.latency.p99 / present.latency.p99
    # Refused requests have no latency, so to refuse more is no gain.
    loses = trial.in_time_share < present.in_time_share - _NEGLIGIBLE
    return min(gain, 0.0) if loses else gain


def _is_worth(tried: Tried, present: Trial, measure: Measure) -> bool:
    if tried.gain < WORTH[measure]:
        return False
    # Twice a tiny share is still a tiny share.
    more = tried.trial.in_time_share - present.in_time_share
    return measure is not Measure.IN_TIME or more >= _LEAST_SHARE


def changes(spec: Spec, longest: int) -> Iterator[Change]:
    """Every change that the manifest allows; `longest` is the greatest length in the traffic.

    A field that is left out has the value "absent".
    """
    for name, value in _candidates(spec.batching, longest):
        written, rule = _RULES[name]
        try:
            if value is not None:
                rule.read(value)
        except Broken:
            continue
        wanted: dict[str, Any] = {name: value}
        batching = dataclasses.replace(spec.batching, **wanted)
        changed = dataclasses.replace(spec, batching=batching)
        if any(check.broken(changed) for check in CHECKS):
            continue
        yield Change(
            field=written,
            present=_shown(getattr(spec.batching, name)),
            value=_shown(value),
            settings=batch_settings(changed),
        )


def _candidates(batching: Batching, longest: int) -> Iterator[tuple[str, Any]]:
    yield "max_batch_size", batching.max_batch_size * 2
    if batching.max_batch_size > 1:
        yield "max_batch_size", batching.max_batch_size // 2
    if batching.max_batch_tokens is not None:
        yield "max_batch_tokens", None
        yield "max_batch_tokens", batching.max_batch_tokens * 2
    if batching.policy is not PolicyName.GREEDY:
        wait = batching.max_wait_milliseconds
        if wait:
            yield "max_wait_milliseconds", 0
        yield "max_wait_milliseconds", wait * 4 or _SOME_WAIT
    for policy in PolicyName:
        if policy is not batching.policy:
            yield "policy", policy
    if batching.target_latency_milliseconds is not None:
        refuses = batching.lateness is Lateness.REFUSE
        yield "lateness", Lateness.SERVE if refuses else Lateness.REFUSE
        if batching.policy is PolicyName.DEADLINE and longest > _SHORTEST_EDGE:
            by_rows = batching.objective is Objective.ROWS
            yield "objective", Objective.WORK if by_rows else Objective.ROWS
    if batching.length_buckets:
        yield "length_buckets", ()
    elif batching.policy is not PolicyName.DEADLINE and longest > _SHORTEST_EDGE:
        # Deadline chooses its own; the others put everything into one class.
        yield "length_buckets", _edges(longest)


def _edges(longest: int) -> tuple[int, ...]:
    """16, 32, ... up to the first that is as long as the longest."""
    edges = [_SHORTEST_EDGE]
    while edges[-1] < longest:
        edges.append(edges[-1] * 2)
    return tuple(edges)


def _shown(value: object) -> str:
    if value is None:
        return _ABSENT
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
