"""Named scaling behaviours in the form of autoscaling/v2, for a start-up time that was learnt.

For whoever writes the HorizontalPodAutoscaler of a BatchedModel, and for the simulator of the loop.
`Load` says how many pods the load needs, and says the same until they serve: it may be followed at
once. A queue says only that they are too few, and goes on saying so while they start, so that the
same need would be ordered several times over: there sizes change no faster than pods start.
"""

from enum import StrEnum
from typing import Any, Final

from batchedmodel_contract.spec import ScalingMetric

POLL_AND_SYNC_SECONDS: Final = 17.0
"""Of the autoscaler and of the HPA, as they come."""
_LONGEST_PERIOD: Final = 300
_LONGEST_WINDOW: Final = 3600  # Kubernetes takes no longer one
_QUEUE_DOWN_PERIOD: Final = 120


class ScalingProfile(StrEnum):
    """How boldly a model is scaled."""

    BALANCED = "Balanced"
    FAST = "Fast"
    CONSERVATIVE = "Conservative"


def scaling_behavior(
    profile: ScalingProfile, metric: ScalingMetric, startup_seconds: float
) -> dict[str, Any]:
    """The behaviour of a profile for pods that take so long to start."""
    started = round(min(max(startup_seconds, 15.0), _LONGEST_PERIOD))
    reaction = startup_seconds + POLL_AND_SYNC_SECONDS
    # Until pods that were ordered serve, nothing shows whether there are too many.
    careful = round(min(2 * reaction, _LONGEST_WINDOW))
    by_load = metric is ScalingMetric.LOAD
    quick = 15 if by_load else started
    one_less = _rules(max(300, careful), ("Pods", 1, _QUEUE_DOWN_PERIOD))
    match profile:
        case ScalingProfile.BALANCED:
            up = _rules(0, ("Percent", 100, quick), ("Pods", 4, quick))
            down = _rules(max(120, careful), ("Percent", 25, 60), ("Pods", 1, 60))
        case ScalingProfile.FAST:
            up = _rules(0, ("Percent", 200, quick), ("Pods", 4, quick))
            down = _rules(max(120, careful // 2), ("Percent", 25, 30), ("Pods", 1, 30))
        case ScalingProfile.CONSERVATIVE:
            up = _rules(60, ("Pods", 1, started))
            down = one_less = _rules(max(900, careful), ("Pods", 1, 300))
    return {"scaleUp": up, "scaleDown": down if by_load else one_less}


def _rules(window_seconds: int, *policies: tuple[str, int, int]) -> dict[str, Any]:
    return {
        "stabilizationWindowSeconds": window_seconds,
        "selectPolicy": "Max",
        "policies": [
            {"type": form, "value": value, "periodSeconds": period}
            for form, value, period in policies
        ],
    }
