"""How many replicas a model needs, and what to say while some of its pods cannot be heard.

Called by the autoscaler for every question of an HPA, and by the simulated loop. Silence is never
read as calm: see `_seen`.

    required = (rate of offered work + backlog / tau) / rho

The rate feeds forward, so the answer is right for any load at once. The backlog is only a trim: a
loop with a delay swings back and forth unless delay / (rho tau) is at most 1/e, so tau must not be
shorter. Work is in seconds of a device by its own curve. So a pod's capacity is 1, and a revision
that is slower offers more work.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from batchedmodel_autoscaler.replicas.windows import PANIC_SECONDS, WINDOW_SECONDS

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
    """Rows that wait or are under way, as a part of what a pod has under way in full batches. Only
    where no profile tells how long they take."""
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
    """Whether it is ready and stays, so that it should answer."""
    answers: bool
    now: Demand
    """Of a silent pod only the work of the last minute, as far as it had told of it."""
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
    """Too little is known to say a size; the message says what is missing."""


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
    """No pod is ready. Callers reach none, so that little work is offered says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An answer for the HPA."""

    value: float
    reason: Reason
    sentence: str


def drain_seconds(reaction_seconds: float, utilization: float) -> float:
    """tau: in which time a backlog is to be worked off."""
    return max(SHORTEST_DRAIN_SECONDS, math.e * reaction_seconds / utilization)


def required_replicas(model: ModelObservation, target: Target) -> Verdict:
    """A whole number of replicas; raises `Unseen`.

    Whole, because the HPA divides by the pods there are, also those of a rollout's surge: a
    fraction above 1 would add a pod in every rollout.
    """
    drain = drain_seconds(model.reaction_seconds, target.utilization)
    minute = model.departed_rate + sum(pod.now.work_rate for pod in model.pods)
    panic = model.departed_panic_rate + sum(pod.now.panic_rate for pod in model.pods)
    chance = math.sqrt(sum(pod.now.panic_variance for pod in model.pods))
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
    departed = rate(model.departed_rate, model.departed_panic_rate) / target.utilization
    seen = _seen(model, replicas, departed=departed, band=up_band)
    value = seen.present
    if seen.direction > 0:
        value = _ceil(seen.amount)
    elif seen.direction < 0:
        value = _ceil(seen.amount / (1 - _DOWN_BAND))
    return Verdict(
        value=value,
        reason=seen.reason,
        sentence=f"{seen.sentence}; by the last {window:.0f} s, tau {drain:.0f} s, "
        f"rho {target.utilization:.2f}",
    )


def queue_length(model: ModelObservation, target: Target) -> Verdict:
    """Rows that wait in all pods together; raises `Unseen`."""
    return _total(model, lambda demand: demand.queue_length, per_pod=target.queue_length)


def outstanding(model: ModelObservation, target: Target) -> Verdict:
    """Rows that wait or are under way in all pods together; raises `Unseen`."""
    return _total(model, lambda demand: demand.outstanding, per_pod=target.outstanding)


def queue_wait(model: ModelObservation, target: Target) -> Verdict:
    """Seconds that a row waits, summed over the pods; raises `Unseen`.

    The HPA divides the sum by the target. So a wait of twice the target asks for twice the pods
    that answer, as a target of type Value does with the pods that are ready. Pods that still start
    add nothing, so none is ordered twice. Unlike there, no ready pod does not mean that none is
    needed.
    """
    told = tuple(
        pod if pod.now.queue_wait is not None else replace(pod, answers=False) for pod in model.pods
    )
    return _total(
        replace(model, pods=told),
        lambda demand: demand.queue_wait or 0.0,
        per_pod=target.queue_wait_seconds,
    )


def _total(
    model: ModelObservation, amount: Callable[[Demand], float], *, per_pod: float
) -> Verdict:
    """Of a gauge that the HPA divides by what is right for one pod."""
    seen = _seen(model, lambda demand: amount(demand) / per_pod, departed=0.0, band=_UP_BAND)
    return Verdict(value=seen.amount * per_pod, reason=seen.reason, sentence=seen.sentence)


class _Seen(NamedTuple):
    amount: float
    """In replicas at their target; the present size itself when nothing may be concluded."""
    direction: int
    """Above 0 for more replicas, below 0 for fewer."""
    reason: Reason
    sentence: str
    present: int


def _seen(
    model: ModelObservation, replicas: Callable[[Demand], float], *, departed: float, band: float
) -> _Seen:
    """What the pods that answer ask for. Pods that are silent never change the direction.

    That is the HPA's rule for pods without metrics. Upwards a silent pod counts as what it had told
    of; downwards as at least one pod at its target. While no pod is ready the direction is never
    down: no caller reaches those that answer.
    """
    silent = [pod for pod in model.pods if pod.expected and not pod.answers]
    expected = sum(pod.expected for pod in model.pods)
    answering = sum(pod.answers for pod in model.pods)
    present = model.present
    if present is None:
        raise Unseen("the size of its Deployment is not known")
    if not answering or (expected and len(silent) == expected):
        raise Unseen(f"none of its {expected} ready pods answers")
    known = departed + sum(replicas(pod.now) for pod in model.pods)
    heard = f"{answering} pods need {known:.3f} replicas, {present} are there"
    direction = _direction(known, present, band)
    if not expected and direction <= 0:
        return _Seen(float(present), 0, Reason.NONE_READY, f"{heard}; no pod is ready", present)
    if not silent:
        reasons = (Reason.IN_BAND, Reason.MORE_WORK, Reason.LESS_WORK)
        return _Seen(known, direction, reasons[direction], heard, present)
    heard += f"; {len(silent)} of {expected} ready pods are silent"
    if direction > 0:
        return _Seen(known, direction, Reason.MORE_WORK_ALREADY, heard, present)
    worst = known + sum(max(1.0, replicas(pod.last)) - replicas(pod.now) for pod in silent)
    if _direction(worst, present, band) < 0:
        heard += f", at worst {worst:.3f}"
        return _Seen(worst, -1, Reason.LESS_WORK_AT_WORST, heard, present)
    return _Seen(float(present), 0, Reason.HELD, heard, present)


def _direction(amount: float, present: int, band: float) -> int:
    if amount > present * (1 + band) + _ROUNDING:
        return 1
    return -1 if _ceil(amount / (1 - _DOWN_BAND)) < present else 0


def _ceil(amount: float) -> int:
    return math.ceil(amount - _ROUNDING)
