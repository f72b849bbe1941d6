"""Asks the simulator what a person wants to know, and draws the conclusions.

Pure but for the simulations that its laboratory runs: called by `command`, tested with a pretended
laboratory. With a latency target, sustained means that 99 % of the traffic is in time. Without one,
it means the utilisation at which the autoscaler would add a pod: what one replica answers when more
wait, times that part.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from batchedmodel_cli.simulate.answers import (
    Answers,
    Comparison,
    Measure,
    Simulator,
    Trial,
    Tried,
)
from batchedmodel_cli.simulate.variants import changes
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.effective import target_utilization_percent
from batchedmodel_contract.manifest.spec import Spec

MOST_REPLICAS: Final = 64
IN_TIME: Final = 0.99
"""The part of the traffic that must be in time for a rate to count as sustained."""
WORTH: Final = {Measure.IN_TIME: 0.02, Measure.THROUGHPUT: 0.02, Measure.P99: 0.05}
"""The gain from which on a change is worth advising."""

_FIRST_GUESS: Final = 0.7  # of the throughput; where the search for the highest rate begins
_TOLERANCE: Final = 0.02
_STRESS: Final = 1.1  # of the highest rate: there, what a setting is worth shows
_SATURATED: Final = 0.95  # of the throughput: beyond, latency says how long the traffic was
_NEGLIGIBLE: Final = 0.001  # of the traffic
_LEAST_SHARE: Final = 0.01  # of the traffic; a gain of less, or over less, means nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be answered, apart from the traffic and the device."""

    spec: Spec
    replicas: int
    longest: int
    """Greatest length in the traffic."""
    largest_measured: int
    """Rows of the largest batch in the profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How replicas fare as they are."""

    offered: Trial
    throughput: float
    """Requests a second that one replica answers, however late, when more wait."""
    highest_rate: float
    """Requests a second that the replicas sustain; 0 if not even a trickle is."""


def answer(question: Question, simulator: Simulator) -> Answers:
    """Every answer; some thirty simulations."""
    settings = BatchSettings.of(question.spec.batching)
    found = outlook(question, simulator)
    offered, throughput, highest = found.offered, found.throughput, found.highest_rate
    return Answers(
        replicas=question.replicas,
        rate=simulator.rate,
        offered=offered,
        throughput=throughput,
        highest_rate=highest,
        replicas_needed=_replicas_needed(question, settings, highest, simulator),
        comparison=_comparison(question, offered, throughput, highest, simulator),
    )


def outlook(question: Question, simulator: Simulator) -> Outlook:
    """How the offered traffic fares, and what is sustained at most; some ten simulations."""
    settings = BatchSettings.of(question.spec.batching)
    throughput = simulator.throughput(settings)
    return Outlook(
        offered=simulator.run(settings, question.replicas, simulator.rate),
        throughput=throughput,
        highest_rate=_highest_rate(question, settings, throughput, simulator),
    )


def utilisation(spec: Spec) -> float:
    """The part of a replica's throughput that is meant to be used."""
    scaling = spec.autoscaling
    given = None if scaling is None else scaling.target_utilization_percent
    return target_utilization_percent(given) / 100


def smallest(holds: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The smallest number from 1 to `most` that holds, if all larger ones do; None if none does.

    Asks little when the guess is near.
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


def _highest_rate(
    question: Question,
    settings: BatchSettings,
    throughput: float,
    simulator: Simulator,
    *,
    at_least: float = 0.0,
) -> float:
    """What the replicas sustain; 0.0 also where it is known to be below `at_least`."""
    # Late, as everything of the simulator: other commands do without its libraries.
    from batchedmodel_scheduling.simulator.search import highest_rate

    ceiling = question.replicas * throughput
    if settings.target_seconds is None or not ceiling:
        return ceiling * utilisation(question.spec)
    if simulator.alone_seconds() > settings.target_seconds:
        return 0.0

    def holds(rate: float) -> bool:
        return simulator.run(settings, question.replicas, rate).in_time_share >= IN_TIME

    if holds(ceiling):
        # More than that waits longer and longer; the traffic is too short for it to show.
        return ceiling
    # Begun at what must be reached, the search ends no lower where that holds.
    guess = at_least or _FIRST_GUESS * ceiling
    if at_least and not holds(at_least):
        return 0.0
    return highest_rate(holds, guess, tolerance=_TOLERANCE)


def _replicas_needed(
    question: Question, settings: BatchSettings, highest: float, simulator: Simulator
) -> int | None:
    rate = simulator.rate
    guess = math.ceil(rate * question.replicas / highest) if highest else MOST_REPLICAS
    if settings.target_seconds is None:
        return guess if highest and guess <= MOST_REPLICAS else None

    def holds(replicas: int) -> bool:
        return simulator.run(settings, replicas, rate).in_time_share >= IN_TIME

    return smallest(holds, guess, MOST_REPLICAS)


def _comparison(
    question: Question, offered: Trial, throughput: float, highest: float, simulator: Simulator
) -> Comparison:
    settings = BatchSettings.of(question.spec.batching)
    measure, rate = _measure(settings, question.replicas, offered, throughput, highest, simulator)
    present = offered
    if rate != simulator.rate:
        present = simulator.run(settings, question.replicas, rate)
    found: list[Tried] = []
    for change in changes(question.spec, question.longest):
        trial = simulator.run(change.settings, question.replicas, rate)
        if measure is Measure.THROUGHPUT:
            gain = simulator.throughput(change.settings) / throughput - 1 if throughput else 0.0
        else:
            gain = _gain(measure, present, trial)
        larger = change.settings.max_batch_size > settings.max_batch_size
        beyond = larger and change.settings.max_batch_size > question.largest_measured
        found.append(Tried(change=change, gain=gain, beyond_profile=beyond, trial=trial))
    found.sort(key=lambda tried: -tried.gain)
    advised, rate_with = _advised(
        [tried for tried in found if _is_worth(tried, present, measure)],
        question,
        highest,
        simulator,
    )
    return Comparison(
        measure=measure,
        rate=rate,
        present=present,
        tried=tuple(found),
        advised=advised,
        rate_with_advised=rate_with,
    )


def _measure(
    settings: BatchSettings,
    replicas: int,
    offered: Trial,
    throughput: float,
    highest: float,
    simulator: Simulator,
) -> tuple[Measure, float]:
    """By what and at which rate changes show what they are worth."""
    if settings.target_seconds is not None:
        if offered.in_time_share < IN_TIME or not highest:
            return Measure.IN_TIME, simulator.rate
        return Measure.IN_TIME, _STRESS * highest
    if simulator.rate > _SATURATED * replicas * throughput:
        return Measure.THROUGHPUT, simulator.rate
    return Measure.P99, simulator.rate


def _gain(measure: Measure, present: Trial, trial: Trial) -> float:
    if measure is Measure.IN_TIME:
        more = trial.in_time_share - present.in_time_share
        return more / max(present.in_time_share, _LEAST_SHARE)
    if trial.latency is None or present.latency is None:
        return 0.0
    gain = 1 - trial.latency.p99 / present.latency.p99
    # What is refused has no latency: that alone is no gain.
    loses = trial.in_time_share < present.in_time_share - _NEGLIGIBLE
    return min(gain, 0.0) if loses else gain


def _is_worth(tried: Tried, present: Trial, measure: Measure) -> bool:
    if tried.gain < WORTH[measure]:
        return False
    # Twice next to nothing is still next to nothing.
    more = tried.trial.in_time_share - present.in_time_share
    return measure is not Measure.IN_TIME or more >= _LEAST_SHARE


def _advised(
    worth: Sequence[Tried], question: Question, highest: float, simulator: Simulator
) -> tuple[Tried | None, float | None]:
    """The best that does not lower the rate which is sustained, and that rate with it.

    What is gained where far too much is offered may be lost where the replicas are meant to work.
    """
    for tried in worth:
        settings = tried.change.settings
        throughput = simulator.throughput(settings)
        rate = _highest_rate(question, settings, throughput, simulator, at_least=highest)
        if rate >= highest * (1 - _NEGLIGIBLE):
            return tried, rate
    return None, None
