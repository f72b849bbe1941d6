"""How eagerly an HPA follows: the profiles, and what the time that pods take to start changes.

Pure; called by `autoscaler`. The benchmark of scaling simulates what comes of it.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_contract.manifest.workload import ScalingMetric, ScalingProfile
from batchedmodel_operator.render.common import Manifest

_SEEN_SECONDS: Final = 17.0
"""From a change of load to the HPA's look at it: its own period, and that of the autoscaler."""
_LONGEST_WINDOW_SECONDS: Final = 3600
"""That an HPA takes."""
_LEAST_DOWN_PERIOD_SECONDS: Final = 60
_LONGEST_UP_PERIOD_SECONDS: Final = 300
_ROUNDED_TO_SECONDS: Final = 30
"""Pods' starts differ, and the HPA need not be written anew for each."""
_BY_QUEUE: Final = frozenset(
    {ScalingMetric.QUEUE_LENGTH, ScalingMetric.OUTSTANDING, ScalingMetric.QUEUE_WAIT}
)
"""Metrics that go on calling for pods while those that they called for start."""


def _policy(kind: str, value: int, period_seconds: int) -> Manifest:
    return {"type": kind, "value": value, "periodSeconds": period_seconds}


def _direction(window_seconds: int, *policies: Manifest) -> Manifest:
    return {
        "stabilizationWindowSeconds": window_seconds,
        # The one that changes most. Said, for what is left out stays as anybody sets it.
        "selectPolicy": "Max",
        "policies": [*policies],
    }


_PROFILES: Final[Mapping[ScalingProfile, Manifest]] = {
    ScalingProfile.BALANCED: {
        "scaleUp": _direction(0, _policy("Percent", 100, 60), _policy("Pods", 2, 60)),
        "scaleDown": _direction(300, _policy("Percent", 10, 60), _policy("Pods", 1, 60)),
    },
    ScalingProfile.FAST: {
        "scaleUp": _direction(0, _policy("Percent", 200, 15), _policy("Pods", 4, 15)),
        "scaleDown": _direction(120, _policy("Percent", 25, 30), _policy("Pods", 1, 30)),
    },
    ScalingProfile.CONSERVATIVE: {
        "scaleUp": _direction(60, _policy("Pods", 1, 60)),
        "scaleDown": _direction(900, _policy("Pods", 1, 300)),
    },
}
"""What one step of the load may change, and how long a need must have lasted."""


def behavior(
    profile: ScalingProfile, metric: ScalingMetric, startup_seconds: float | None
) -> Manifest:
    """In the form of autoscaling/v2; `startup_seconds` is what was learnt of the model's pods.

    A pod that is given up must not be missed before another could serve in its place: the need for
    fewer must have lasted twice the time that a need for more takes to be met, and a quarter of the
    pods or one goes in a minute. By a queue no more pods are ordered before those of the last order
    can have shortened it.
    """
    chosen = _PROFILES[profile]
    if startup_seconds is None:
        return chosen
    up, down = chosen["scaleUp"], chosen["scaleDown"]
    calm = min(_LONGEST_WINDOW_SECONDS, _rounded(2 * (startup_seconds + _SEEN_SECONDS)))
    if metric in _BY_QUEUE:
        up = _paced(up, min(_LONGEST_UP_PERIOD_SECONDS, _rounded(startup_seconds)))
    window = max(down["stabilizationWindowSeconds"], calm)
    down = _paced(down, _LEAST_DOWN_PERIOD_SECONDS) | {"stabilizationWindowSeconds": window}
    return {"scaleUp": up, "scaleDown": down}


def _paced(direction: Manifest, period_seconds: int) -> Manifest:
    """The same steps, none of them more often than once in so many seconds."""
    policies: list[dict[str, Any]] = [
        policy | {"periodSeconds": max(policy["periodSeconds"], period_seconds)}
        for policy in direction["policies"]
    ]
    return direction | {"policies": policies}


def _rounded(seconds: float) -> int:
    return math.ceil(seconds / _ROUNDED_TO_SECONDS) * _ROUNDED_TO_SECONDS
