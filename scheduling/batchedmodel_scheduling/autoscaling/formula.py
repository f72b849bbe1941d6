"""How many replicas a model needs, and what to say while some of its pods cannot be heard.

Called by the autoscaler for every question of an HPA, and by `loop` for the simulated one. Silence
is never read as calm: see `_seen`.

    required = (rate of offered work + backlog / tau) / rho

The rate feeds forward, so that the answer is right for any load at once; the backlog is only a
trim, and with a drain time below tau it would overshoot: a loop with a delay swings back and forth
unless delay / (rho tau) is at most 1/e. Work is in seconds of a device as its own curve has it, so
that a pod's capacity is 1 by construction, and a revision that is slower offers more work.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from batchedmodel_scheduling.autoscaling.windows import PANIC_SECONDS, WINDOW_SECONDS

SHORTEST_DRAIN_SECONDS: Final = 30.0
PANIC_DEVIATIONS: Final = 2.0
"""The panic window counts less so many standard deviations of what chance makes of it."""
_DOWN_BAND: Final = 0.1
_UP_BAND: Final = 0.1
"""As wide as the HPA's own tolerance, which integers below ten slip through."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the manifest asks for."""

    utilization: float
    """Share of a pod's time to be used, above 0 and below 1."""
    queue_length: int
    """Rows that may wait per pod."""
    outstanding: int
    """Rows that may wait or be under way per pod."""
    queue_wait_seconds: float
    """How long a row may wait."""

    def __post_init__(self) -> None:
        least = min(self.queue_length, self.outstanding)
        if not 0 < self.utilization < 1 or least < 1 or self.queue_wait_seconds <= 0:
            raise ValueError("a target is a share below 1 and at least one row; this is a bug")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked of one pod."""

    work_rate: float = 0.0
    """Device-seconds offered per second, over the last minute."""
    panic_rate: float = 0.0
    """The same over the panic window."""
    panic_variance: float = 0.0
    """Of the panic rate, by chance."""
    backlog: float = 0.0
    """Device-seconds that wait or are under way."""
    batches: float = 0.0
    """Where no profile tells how long they take, rows that wait or are under way: as a part of what
    a pod can have under way in full batches."""
    queue_length: float = 0.0
    """Rows that wait."""
    outstanding: float = 0.0
    """Rows that wait or are under way."""
    queue_wait: float | None = 0.0
    """Seconds that a row waits; None where the sidecar has not told enough yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodObservation:
    """One pod as far as it can be seen."""

    expected: bool
    """Ready and staying, so that its silence means something."""
    answers: bool
    now: Demand
    """Of a silent pod only the work of the last minute that it had told of."""
    last: Demand
    """As of its last answer; all zero when there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelObservation:
    """One model as far as it can be seen."""

    present: int | None
    """Replicas that its Deployment is to have now, without the surge of a rollout."""
    pods: tuple[PodObservation, ...]
    departed_rate: float
    """Device-seconds per second that were offered to pods and sidecars since gone."""
    departed_panic_rate: float
    """The same over the panic window."""
    reaction_seconds: float
    """From a change of load to a pod that serves it."""


class Unseen(Exception):
    """Nothing is known that a size could rest on; the message says what is missing."""


class Reason(StrEnum):
    """Why an answer is what it is."""

    IN_BAND = "InBand"
    MORE_WORK = "MoreWork"
    LESS_WORK = "LessWork"
    MORE_WORK_ALREADY = "MoreWorkAlready"
    """Some pods are silent, and those that answer need more by themselves."""
    LESS_WORK_AT_WORST = "LessWorkAtWorst"
    """Some pods are silent, and even if they were fully used fewer would do."""
    HELD = "Held"
    """Some pods are silent, and it depends on them."""
    NONE_READY = "NoneReady"
    """No pod is ready, so that callers reach none: that little is offered says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An answer for the HPA."""

    value: float
    reason: Reason
    sentence: str


class _Direction(StrEnum):
    UP = "up"
    DOWN = "down"
    STAY = "stay"


def drain_seconds(reaction_seconds: float, utilization: float) -> float:
    """tau: in which time a backlog is to be worked off."""
    return max(SHORTEST_DRAIN_SECONDS, math.e * reaction_seconds / utilization)


def required_replicas(sight: ModelObservation, target: Target) -> Verdict:
    """A whole number of replicas; raises `Unseen`.

    Whole, because the HPA divides by the pods there are, those of a rollout's surge included: a
    fraction above 1 would add a pod in every rollout.
    """
    drain = drain_seconds(sight.reaction_seconds, target.utilization)
    minute = sight.departed_rate + sum(pod.now.work_rate for pod in sight.pods)
    panic = sight.departed_panic_rate + sum(pod.now.panic_rate for pod in sight.pods)
    chance = math.sqrt(sum(pod.now.panic_variance for pod in sight.pods))
    sure = panic - PANIC_DEVIATIONS * chance
    rises = sure > minute
    window = PANIC_SECONDS if rises else WINDOW_SECONDS

    def rate(steady: float, lately: float) -> float:
        return lately * sure / panic if rises else steady

    def replicas(demand: Demand) -> float:
        work = rate(demand.work_rate, demand.panic_rate) + demand.backlog / drain
        return work / target.utilization + demand.batches

    # A pod may be used up to half-way between its target and its limit before another is added.
    up_band = min(_UP_BAND, (1 - target.utilization) / (2 * target.utilization))
    departed = rate(sight.departed_rate, sight.departed_panic_rate) / target.utilization
    seen = _seen(sight, replicas, departed=departed, band=up_band)
    match seen.direction:
        case _Direction.UP:
            value = _ceil(seen.amount)
        case _Direction.DOWN:
            value = _ceil(seen.amount / (1 - _DOWN_BAND))
        case _:
            value = seen.present
    return Verdict(
        value=value,
        reason=seen.reason,
        sentence=f"{seen.sentence}; by the last {window:.0f} s, tau {drain:.0f} s, "
        f"rho {target.utilization:.2f}",
    )


def queue_length(sight: ModelObservation, target: Target) -> Verdict:
    """Rows that wait in all pods together; raises `Unseen`."""
    return _total(sight, lambda demand: demand.queue_length, per_pod=target.queue_length)


def outstanding(sight: ModelObservation, target: Target) -> Verdict:
    """Rows that wait or are under way in all pods together; raises `Unseen`."""
    return _total(sight, lambda demand: demand.outstanding, per_pod=target.outstanding)


def queue_wait(sight: ModelObservation, target: Target) -> Verdict:
    """Seconds that a row waits, summed over the pods; raises `Unseen`.

    A sum, which the HPA divides by the target, asks for as many times the pods that answer as the
    wait is above the target: what a target of type Value does with the pods that are ready. Pods
    that still start add nothing, so that none is ordered twice; and unlike there, none are ready
    does not mean that none are needed.
    """
    told = tuple(
        pod if pod.now.queue_wait is not None else replace(pod, answers=False) for pod in sight.pods
    )
    return _total(
        replace(sight, pods=told),
        lambda demand: demand.queue_wait or 0.0,
        per_pod=target.queue_wait_seconds,
    )


def _total(
    sight: ModelObservation, amount: Callable[[Demand], float], *, per_pod: float
) -> Verdict:
    """Of a gauge that the HPA divides by what is right for one pod."""
    seen = _seen(sight, lambda demand: amount(demand) / per_pod, departed=0.0, band=_UP_BAND)
    return Verdict(value=seen.amount * per_pod, reason=seen.reason, sentence=seen.sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    amount: float
    """In replicas at their target; the present size itself when nothing may be concluded."""
    present: int
    direction: _Direction
    reason: Reason
    sentence: str


def _seen(
    sight: ModelObservation, replicas: Callable[[Demand], float], *, departed: float, band: float
) -> _Seen:
    """The HPA's rule for pods without metrics, on our side: silent pods never change the direction.

    Upwards they count as what they had told of; downwards as at least one pod at its target.
    While no pod is ready the direction is never down: no caller reaches those that answer.
    """
    silent = [pod for pod in sight.pods if pod.expected and not pod.answers]
    expected = sum(pod.expected for pod in sight.pods)
    answering = sum(pod.answers for pod in sight.pods)
    if sight.present is None:
        raise Unseen("the size of its Deployment is not known")
    if not answering or (expected and len(silent) == expected):
        raise Unseen(f"none of its {expected} ready pods answers")
    present = sight.present
    known = departed + sum(replicas(pod.now) for pod in sight.pods)
    heard = f"{answering} pods need {known:.3f} replicas, {present} are there"

    def seen(amount: float, direction: _Direction, reason: Reason, more: str = "") -> _Seen:
        sentence = heard + more
        return _Seen(
            amount=amount, present=present, direction=direction, reason=reason, sentence=sentence
        )

    direction = _direction(known, present, band)
    if not expected and direction is not _Direction.UP:
        return seen(float(present), _Direction.STAY, Reason.NONE_READY, "; no pod is ready")
    if not silent:
        return seen(known, direction, _REASONS[direction])
    missing = f"; {len(silent)} of {expected} ready pods are silent"
    if direction is _Direction.UP:
        return seen(known, direction, Reason.MORE_WORK_ALREADY, missing)
    worst = known + sum(max(1.0, replicas(pod.last)) - replicas(pod.now) for pod in silent)
    if _direction(worst, present, band) is _Direction.DOWN:
        more = f"{missing}, at worst {worst:.3f}"
        return seen(worst, _Direction.DOWN, Reason.LESS_WORK_AT_WORST, more)
    return seen(float(present), _Direction.STAY, Reason.HELD, missing)


_REASONS: Final = {
    _Direction.UP: Reason.MORE_WORK,
    _Direction.DOWN: Reason.LESS_WORK,
    _Direction.STAY: Reason.IN_BAND,
}


def _direction(amount: float, present: int, band: float) -> _Direction:
    if amount > present * (1 + band) + _ROUNDING:
        return _Direction.UP
    if _ceil(amount / (1 - _DOWN_BAND)) < present:
        return _Direction.DOWN
    return _Direction.STAY


def _ceil(amount: float) -> int:
    return math.ceil(amount - _ROUNDING)
