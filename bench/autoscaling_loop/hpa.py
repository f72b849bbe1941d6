"""What Kubernetes' HorizontalPodAutoscaler makes of one Object metric with an AverageValue target.

The arithmetic of its controller in 1.34 (pkg/controller/podautoscaler), step by step: tolerance,
stabilisation windows, scaling policies, bounds. Field names and defaults are those of
autoscaling/v2 (defaults.go). The simulated loop uses it; tests hold it against a running
controller. Time is `now` in seconds; what the controller remembers goes in and comes out.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

SYNC_SECONDS: Final = 15.0
"""How often it looks, when nobody has changed it."""
_DOWN_WINDOW_SECONDS: Final = 300
"""What the controller waits for before it scales down, where nobody says otherwise."""
_TOLERANCE: Final = 0.1
_LEAST_UP: Final = 4
_MILLI: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """By how much the size may change within a period."""

    type: str
    """`Pods` or `Percent`: what the value is in."""
    value: int
    period_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One direction."""

    window_seconds: int
    """Of all recommendations within it the most careful one counts."""
    select: str
    """`Max`, `Min` or `Disabled`: which of several policies counts."""
    policies: tuple[Policy, ...]
    tolerance: float
    """A metric that is off its target by less changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """Both directions."""

    up: Rules
    down: Rules


_UP: Final = Rules(
    window_seconds=0,
    select="Max",
    policies=(
        Policy(type="Pods", value=4, period_seconds=15),
        Policy(type="Percent", value=100, period_seconds=15),
    ),
    tolerance=_TOLERANCE,
)
_DOWN: Final = Rules(
    window_seconds=_DOWN_WINDOW_SECONDS,
    select="Max",
    policies=(Policy(type="Percent", value=100, period_seconds=15),),
    tolerance=_TOLERANCE,
)


def read_behavior(found: Mapping[str, Any]) -> Behavior:
    """A behaviour that an API server has taken; what is absent has Kubernetes' default."""
    return Behavior(
        up=_rules(found.get("scaleUp") or {}, _UP), down=_rules(found.get("scaleDown") or {}, _DOWN)
    )


def _rules(found: Mapping[str, Any], default: Rules) -> Rules:
    policies = found.get("policies")
    return Rules(
        window_seconds=found.get("stabilizationWindowSeconds", default.window_seconds),
        select=found.get("selectPolicy", default.select),
        policies=default.policies
        if policies is None
        else tuple(
            Policy(type=p["type"], value=p["value"], period_seconds=p["periodSeconds"])
            for p in policies
        ),
        tolerance=float(found.get("tolerance", default.tolerance)),
    )


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
    average: str = spec["metrics"][0]["object"]["target"]["averageValue"]
    return Autoscaler(
        min_replicas=spec.get("minReplicas", 1),
        max_replicas=spec["maxReplicas"],
        average_value=float(average[:-1]) / _MILLI if average.endswith("m") else float(average),
        behavior=None if behavior is None else read_behavior(behavior),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the controller remembers of one object; nothing of it survives its restart."""

    recommendations: tuple[tuple[float, int], ...] = ()
    """When, and how many replicas, before stabilisation."""
    changes: tuple[tuple[float, int], ...] = ()
    """When, and by how many the size was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one look comes to."""

    replicas: int
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
        return Step(replicas=0, memory=memory)
    if not lowest <= present <= highest:
        return _moved(min(max(present, lowest), highest), present, memory, now)
    if value is None:
        return Step(replicas=present, memory=memory)
    wanted = recommended(autoscaler, value=value, present=present)
    # A controller that starts takes the present size for its first recommendation.
    said = memory.recommendations or ((now, present),)
    behavior = autoscaler.behavior
    if behavior is None:
        stable = max([wanted, *_since(said, now - _DOWN_WINDOW_SECONDS, including=True)])
        bounds = lowest, min(highest, max(2 * present, _LEAST_UP))
        kept = _DOWN_WINDOW_SECONDS
        longest = 0
    else:
        # Moved no farther than all recommendations of each window agree on.
        least = min([wanted, *_since(said, now - behavior.up.window_seconds)])
        most = max([wanted, *_since(said, now - behavior.down.window_seconds)])
        stable = min(max(present, least), most)
        bounds = _bounds(autoscaler, behavior, memory.changes, present, stable, now)
        kept = max(behavior.up.window_seconds, behavior.down.window_seconds)
        policies = (*behavior.up.policies, *behavior.down.policies)
        longest = max((policy.period_seconds for policy in policies), default=0)
    remembered = Memory(
        recommendations=tuple(one for one in (*said, (now, wanted)) if one[0] >= now - kept),
        changes=tuple(one for one in memory.changes if one[0] > now - longest),
    )
    return _moved(min(max(stable, bounds[0]), bounds[1]), present, remembered, now)


def recommended(autoscaler: Autoscaler, *, value: float, present: int) -> int:
    """Replicas by the metric alone: the present ones while it is near enough to its target."""
    usage, target = round(value * _MILLI), round(autoscaler.average_value * _MILLI)
    behavior = autoscaler.behavior
    up = _TOLERANCE if behavior is None else behavior.up.tolerance
    down = _TOLERANCE if behavior is None else behavior.down.tolerance
    if present and 1 - down <= usage / (target * present) <= 1 + up:
        return present
    return math.ceil(usage / target)


def _moved(size: int, present: int, memory: Memory, now: float) -> Step:
    if size != present:
        memory = replace(memory, changes=(*memory.changes, (now, size - present)))
    return Step(replicas=size, memory=memory)


def _since(
    said: Iterable[tuple[float, int]], cutoff: float, *, including: bool = False
) -> list[int]:
    return [size for at, size in said if at > cutoff or (including and at == cutoff)]


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
    if rules.select == "Disabled" or not rules.policies:
        return present
    proposed = []
    for policy in rules.policies:
        start = present - sum(by for at, by in changes if at > now - policy.period_seconds)
        if policy.type == "Pods":
            proposed.append(start + sign * policy.value)
        else:
            # Rounded away from the present size upwards, or one pod could never become two.
            moved = start * (1 + sign * policy.value / 100)
            proposed.append(math.ceil(moved) if sign > 0 else int(moved))
    farthest: Callable[[list[int]], int] = max if sign > 0 else min
    nearest: Callable[[list[int]], int] = min if sign > 0 else max
    return farthest(proposed) if rules.select == "Max" else nearest(proposed)
