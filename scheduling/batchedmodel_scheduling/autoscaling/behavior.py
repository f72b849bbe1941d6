"""The scaling behaviour of a HorizontalPodAutoscaler, from its form in autoscaling/v2.

Field names and defaults are Kubernetes' own (autoscaling/v2, defaults.go of 1.34). Read by `hpa`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

DOWN_WINDOW_SECONDS: Final = 300
"""What the controller waits for before it scales down, where nobody says otherwise."""
TOLERANCE: Final = 0.1


class Select(StrEnum):
    """Which of several policies counts."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


class PolicyType(StrEnum):
    """What a policy's value is in."""

    PODS = "Pods"
    PERCENT = "Percent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """By how much the size may change within a period."""

    type: PolicyType
    value: int
    period_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One direction."""

    window_seconds: int
    """Of all recommendations within it the most careful one counts."""
    select: Select
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
    select=Select.MAX,
    policies=(
        Policy(type=PolicyType.PODS, value=4, period_seconds=15),
        Policy(type=PolicyType.PERCENT, value=100, period_seconds=15),
    ),
    tolerance=TOLERANCE,
)
_DOWN: Final = Rules(
    window_seconds=DOWN_WINDOW_SECONDS,
    select=Select.MAX,
    policies=(Policy(type=PolicyType.PERCENT, value=100, period_seconds=15),),
    tolerance=TOLERANCE,
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
        select=Select(found.get("selectPolicy", default.select)),
        policies=default.policies if policies is None else tuple(map(_policy, policies)),
        tolerance=float(found.get("tolerance", default.tolerance)),
    )


def _policy(found: Mapping[str, Any]) -> Policy:
    return Policy(
        type=PolicyType(found["type"]),
        value=found["value"],
        period_seconds=found["periodSeconds"],
    )
