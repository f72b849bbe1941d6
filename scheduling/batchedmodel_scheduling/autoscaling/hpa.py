"""What Kubernetes' HorizontalPodAutoscaler makes of one Object metric with an AverageValue target.

The arithmetic of its controller in 1.34 (pkg/controller/podautoscaler), step by step: tolerance,
stabilisation windows, scaling policies, bounds. Used by `loop`; held against a running controller
in tests. Time is `now` in seconds; what it remembers goes in and comes out.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from batchedmodel_scheduling.autoscaling.behavior import (
    DOWN_WINDOW_SECONDS,
    TOLERANCE,
    Behavior,
    PolicyType,
    Rules,
    Select,
    read_behavior,
)

SYNC_SECONDS: Final = 15.0
"""How often it looks, when nobody has changed it."""
_LEAST_UP: Final = 4
_MILLI: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    """The object, as far as its arithmetic goes."""

    min_replicas: int
    max_replicas: int
    average_value: float = 1.0
    behavior: Behavior | None = None
    """None where the object has none: then the controller goes by older rules than the defaults."""


def read_autoscaler(spec: Mapping[str, Any]) -> Autoscaler:
    """An autoscaler's `spec` in autoscaling/v2, whose first metric has an AverageValue target.

    That is a plain number or one of thousandths.
    """
    behavior = spec.get("behavior")
    return Autoscaler(
        min_replicas=spec.get("minReplicas", 1),
        max_replicas=spec["maxReplicas"],
        average_value=_quantity(spec["metrics"][0]["object"]["target"]["averageValue"]),
        behavior=None if behavior is None else read_behavior(behavior),
    )


def _quantity(text: str) -> float:
    return float(text[:-1]) / _MILLI if text.endswith("m") else float(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the controller remembers of one object; nothing of it survives its restart."""

    recommendations: tuple[tuple[float, int], ...] = ()
    """When, and how many replicas, before stabilisation."""
    changes: tuple[tuple[float, int], ...] = ()
    """When, and by how many the size was changed."""


class Limit(StrEnum):
    """What kept the size from what the metric asked for."""

    NONE = "None"
    NO_METRIC = "NoMetric"
    DISABLED = "ScalingDisabled"
    STABILIZED = "Stabilized"
    RATE = "Rate"
    BOUNDS = "Bounds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one look comes to."""

    replicas: int
    limit: Limit
    sentence: str
    memory: Memory


def step(
    autoscaler: Autoscaler, memory: Memory, *, value: float | None, present: int, now: float
) -> Step:
    """The size after a look at a metric, of which None says that it could not be had.

    A size beyond the bounds is moved to the nearest one whatever the metric says; a size of 0 is
    left alone.
    """
    lowest, highest = autoscaler.min_replicas, autoscaler.max_replicas
    if present == 0 and lowest > 0:
        return _held(present, memory, Limit.DISABLED, "a size of 0 means that nobody is to scale")
    if not lowest <= present <= highest:
        inside = min(max(present, lowest), highest)
        return _moved(inside, present, memory, now, Limit.BOUNDS, "the size was out of bounds")
    if value is None:
        return _held(present, memory, Limit.NO_METRIC, "the metric could not be had")
    wanted = recommended(autoscaler, value=value, present=present)
    # A controller that starts takes the present size for its first recommendation.
    said = memory.recommendations or ((now, present),)
    behavior = autoscaler.behavior
    if behavior is None:
        stable = max([wanted, *_since(said, now - DOWN_WINDOW_SECONDS, including=True)])
        bounds = lowest, min(highest, max(2 * present, _LEAST_UP))
        kept = DOWN_WINDOW_SECONDS
        longest = 0
    else:
        stable = _stabilized(wanted, present, said, behavior, now)
        bounds = _bounds(autoscaler, behavior, memory.changes, present, stable, now)
        kept = max(behavior.up.window_seconds, behavior.down.window_seconds)
        policies = (*behavior.up.policies, *behavior.down.policies)
        longest = max((policy.period_seconds for policy in policies), default=0)
    final = min(max(stable, bounds[0]), bounds[1])
    remembered = Memory(
        recommendations=tuple(one for one in (*said, (now, wanted)) if one[0] >= now - kept),
        changes=tuple(one for one in memory.changes if one[0] > now - longest),
    )
    told = f"{value:.3f} asks for {wanted} instead of {present}"
    if final == wanted:
        return _moved(final, present, remembered, now, Limit.NONE, told)
    if final == stable:
        return _moved(final, present, remembered, now, Limit.STABILIZED, told)
    limit = Limit.BOUNDS if final in (lowest, highest) else Limit.RATE
    return _moved(final, present, remembered, now, limit, told)


def recommended(autoscaler: Autoscaler, *, value: float, present: int) -> int:
    """Replicas by the metric alone: the present ones while it is near enough to its target."""
    usage, target = round(value * _MILLI), round(autoscaler.average_value * _MILLI)
    behavior = autoscaler.behavior
    up = TOLERANCE if behavior is None else behavior.up.tolerance
    down = TOLERANCE if behavior is None else behavior.down.tolerance
    if present and 1 - down <= usage / (target * present) <= 1 + up:
        return present
    return math.ceil(usage / target)


def _held(present: int, memory: Memory, limit: Limit, sentence: str) -> Step:
    return Step(replicas=present, limit=limit, sentence=sentence, memory=memory)


def _moved(
    size: int, present: int, memory: Memory, now: float, limit: Limit, sentence: str
) -> Step:
    if size != present:
        memory = Memory(
            recommendations=memory.recommendations,
            changes=(*memory.changes, (now, size - present)),
        )
    return Step(replicas=size, limit=limit, sentence=sentence, memory=memory)


def _since(
    said: Iterable[tuple[float, int]], cutoff: float, *, including: bool = False
) -> list[int]:
    return [size for at, size in said if at > cutoff or (including and at == cutoff)]


def _stabilized(
    wanted: int,
    present: int,
    said: Iterable[tuple[float, int]],
    behavior: Behavior,
    now: float,
) -> int:
    """The present size, moved no farther than all recommendations of each window agree on."""
    lowest = min([wanted, *_since(said, now - behavior.up.window_seconds)])
    highest = max([wanted, *_since(said, now - behavior.down.window_seconds)])
    return min(max(present, lowest), highest)


def _bounds(
    autoscaler: Autoscaler,
    behavior: Behavior,
    changes: tuple[tuple[float, int], ...],
    present: int,
    stable: int,
    now: float,
) -> tuple[int, int]:
    """Lowest and highest size that the policies of the direction in question allow."""
    if stable > present:
        allowed = _allowed(behavior.up, changes, present, now, sign=1)
        return present, max(present, min(autoscaler.max_replicas, allowed))
    if stable < present:
        allowed = _allowed(behavior.down, changes, present, now, sign=-1)
        return min(present, max(autoscaler.min_replicas, allowed)), present
    return present, present


def _allowed(
    rules: Rules, changes: tuple[tuple[float, int], ...], present: int, now: float, *, sign: int
) -> int:
    if rules.select is Select.DISABLED or not rules.policies:
        return present
    proposed = []
    for policy in rules.policies:
        start = present - sum(by for at, by in changes if at > now - policy.period_seconds)
        if policy.type is PolicyType.PODS:
            proposed.append(start + sign * policy.value)
        else:
            # Rounded away from the present size upwards, or one pod could never become two.
            moved = start * (1 + sign * policy.value / 100)
            proposed.append(math.ceil(moved) if sign > 0 else int(moved))
    farthest: Callable[[list[int]], int] = max if sign > 0 else min
    nearest: Callable[[list[int]], int] = min if sign > 0 else max
    return farthest(proposed) if rules.select is Select.MAX else nearest(proposed)
