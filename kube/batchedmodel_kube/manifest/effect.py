"""What an edit of a field does in a cluster. Fields of `Spec` carry it as their mark.

`setting` and `section` take it as `edit`. A field without a mark has its section's.
"""

from enum import StrEnum


class Effect(StrEnum):
    """What an edit does to pods and objects; the worst for callers comes first."""

    ROLLS_PODS = "RollsPods"
    MAY_ROLL_PODS = "MayRollPods"
    """Only in the case that the description of the field names."""
    SCALES_PODS = "ScalesPods"
    EFFECTIVE_AT_ONCE = "EffectiveAtOnce"
    CHANGES_AUTOSCALING = "ChangesAutoscaling"
    CHANGES_SERVICE = "ChangesService"
    CHANGES_DISRUPTION = "ChangesDisruption"
    CHANGES_ROLLOUT = "ChangesRollout"
    NO_EFFECT = "NoEffect"
