"""Puts a person's questions about a language model to the simulator. Pure but for its calls.

A rate is sustained if 99 % of the requests meet both targets. Without a target it is sustained up
to the utilisation at which the autoscaler adds a pod.
"""

import math
from dataclasses import dataclass
from typing import Final

from batchedmodel_cli.simulate.generation_pods import GenerationPods
from batchedmodel_cli.simulate.inputs import MOST_REPLICAS
from batchedmodel_cli.simulate.study import IN_TIME, Measure, smallest, utilisation
from batchedmodel_cli.simulator.search import highest_rate
from batchedmodel_cli.simulator.token_verdicts import TokenVerdict
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Spec

WORTH: Final = {Measure.IN_TIME: 0.02, Measure.P99: 0.05}
"""The least gain for which another limit is advised."""
_FIRST_GUESS: Final = 0.7  # of the throughput; where the search for the highest rate begins
_TOLERANCE: Final = 0.02
_STRESS: Final = 1.1  # of the highest rate: there the limits differ most
_SLOWEST: Final = 0.01  # of the throughput: a rate below counts as none
_NEGLIGIBLE: Final = 0.005
_LEAST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One value of the engine's knob that was tried, everything else as it is."""

    value: int | None
    """None: left out."""
    gain: float
    result: TokenVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the very same requests."""

    measure: Measure
    rate: float
    """Requests a second at which they were compared."""
    present: TokenVerdict
    tried: tuple[Limit, ...]
    """In ascending order; first the field left out, where it is not."""
    advised: Limit | None
    rate_with_advised: float | None
    """The highest rate that the replicas sustain with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationAnswers:
    """The answers to a person's questions."""

    replicas: int
    offered: TokenVerdict
    flooded: TokenVerdict
    """One replica where more requests always wait."""
    highest_rate: float
    """Requests a second that the replicas sustain; 0 if they sustain no rate."""
    replicas_needed: int | None
    """For the offered rate; None if `MOST_REPLICAS` are not enough."""
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStudy:
    """Questions about so many replicas of a manifest."""

    spec: Spec
    replicas: int
    pods: GenerationPods

    def answers(self) -> GenerationAnswers:
        """Every answer; some twenty-five simulations."""
        offered = self._run(self._settings, self.pods.traffic.rate)
        flooded = self.pods.throughput(self._settings)
        highest = self._highest_rate(self._settings, flooded.answered)
        return GenerationAnswers(
            replicas=self.replicas,
            offered=offered,
            flooded=flooded,
            highest_rate=highest,
            replicas_needed=self._replicas_needed(highest),
            limits=self._limits(offered, highest),
        )

    @property
    def _settings(self) -> BatchSettings:
        return batch_settings(self.spec)

    def _run(self, settings: BatchSettings, rate: float) -> TokenVerdict:
        return self.pods.run(settings, self.replicas, rate)

    def _highest_rate(
        self, settings: BatchSettings, throughput: float, *, at_least: float = 0.0
    ) -> float:
        ceiling = self.replicas * throughput
        if not _has_target(settings) or not ceiling:
            return ceiling * utilisation(self.spec)

        def holds(rate: float) -> bool:
            return self._run(settings, rate).in_time_share >= IN_TIME

        if holds(ceiling):
            # At a higher rate more and more requests wait, but the traffic is too short to show it.
            return ceiling
        if not self._ever_in_time(settings) or not holds(at_least or _SLOWEST * ceiling):
            return 0.0
        return highest_rate(holds, at_least or _FIRST_GUESS * ceiling, tolerance=_TOLERANCE)

    def _replicas_needed(self, highest: float) -> int | None:
        settings, rate = self._settings, self.pods.traffic.rate
        guess = math.ceil(rate * self.replicas / highest) if highest else MOST_REPLICAS + 1
        if not _has_target(settings):
            return guess if guess <= MOST_REPLICAS else None
        if not self._ever_in_time(settings):
            return None

        def enough(replicas: int) -> bool:
            return self.pods.run(settings, replicas, rate).in_time_share >= IN_TIME

        return smallest(enough, guess, MOST_REPLICAS)

    def _ever_in_time(self, settings: BatchSettings) -> bool:
        return self.pods.alone_share(settings) >= IN_TIME

    def _limits(self, offered: TokenVerdict, highest: float) -> Limits:
        settings, rate = self._settings, self.pods.traffic.rate
        measure, present = Measure.P99, offered
        if _has_target(settings):
            measure = Measure.IN_TIME
            if offered.in_time_share >= IN_TIME and highest:
                rate = _STRESS * highest
                present = self._run(settings, rate)
        tried = []
        knob, figures = self.pods.engine.knob, self.pods.engine.figures(settings)
        for value in knob.values(knob.present(settings), figures["sequences"]):
            result = self._run(knob.turned(settings, value), rate)
            tried.append(Limit(value=value, gain=_gain(measure, present, result), result=result))
        advised, rate_with = None, None
        for one in sorted(tried, key=lambda one: -one.gain):
            if not _is_worth(one, present, measure):
                break
            changed = knob.turned(settings, one.value)
            throughput = self.pods.throughput(changed).answered
            rate_with = self._highest_rate(changed, throughput, at_least=highest)
            if rate_with >= highest * (1 - _NEGLIGIBLE):
                advised = one
                break
        return Limits(
            measure=measure,
            rate=rate,
            present=present,
            tried=tuple(tried),
            advised=advised,
            rate_with_advised=None if advised is None else rate_with,
        )


def _has_target(settings: BatchSettings) -> bool:
    targets = (settings.target_first_token_seconds, settings.target_token_seconds)
    return targets != (None, None)


def _gain(measure: Measure, present: TokenVerdict, result: TokenVerdict) -> float:
    if measure is Measure.IN_TIME:
        more = result.in_time_share - present.in_time_share
        return more / max(present.in_time_share, _LEAST_SHARE)
    if result.first_token is None or present.first_token is None:
        return 0.0
    gain = 1 - result.first_token.p99 / present.first_token.p99
    # What is refused has no first token, so to refuse more is no gain.
    loses = result.in_time_share < present.in_time_share - _NEGLIGIBLE
    return min(gain, 0.0) if loses else gain


def _is_worth(one: Limit, present: TokenVerdict, measure: Measure) -> bool:
    if one.gain < WORTH[measure]:
        return False
    more = one.result.in_time_share - present.in_time_share
    return measure is not Measure.IN_TIME or more >= _LEAST_SHARE
