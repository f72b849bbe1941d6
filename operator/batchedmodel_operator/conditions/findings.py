"""What a condition is found to be: whether it holds, its reason and its sentence."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """`reason` of a condition, and whether its Event is a warning.

    Those of pods that fail are `PodFailureReason`s, and all warnings.
    """

    APPLIED = "Applied"
    INVALID_SPEC = "InvalidSpec", True
    CLASS_NOT_FOUND = "ClassNotFound"
    DEFINITION_CHANGED = "DefinitionChanged", True
    NAME_CONFLICT = "NameConflict", True
    WAITING_FOR_DELETION = "WaitingForDeletion"
    CONTESTED = "Contested", True
    INVALID_OBJECT = "InvalidObject", True
    FORBIDDEN = "Forbidden", True
    QUOTA_EXCEEDED = "QuotaExceeded", True
    API_ERROR = "ApiError", True

    MINIMUM_REPLICAS_AVAILABLE = "MinimumReplicasAvailable"
    NO_READY_REPLICAS = "NoReadyReplicas"
    BELOW_MINIMUM = "BelowMinimum", True
    SCALED_TO_ZERO = "ScaledToZero"
    SUSPENDED = "Suspended"

    NEW_REVISION_ROLLING_OUT = "NewRevisionRollingOut"
    SWITCHED_TO_IN_PLACE = "SwitchedToInPlace", True
    ROLLING_BACK = "RollingBack"
    ROLLED_BACK = "RolledBack", True
    SCALING = "Scaling"
    BATCH_SETTINGS_ROLLING_OUT = "BatchSettingsRollingOut"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded", True
    COMPLETE = "Complete"

    SERVING = "Serving"
    PARTIALLY_SERVING = "PartiallyServing"
    RECONCILE_FAILED = "ReconcileFailed", True
    MODEL_LOADING = "ModelLoading"
    ROLLOUT_FAILED = "RolloutFailed", True

    SCHEDULED = "Scheduled"
    WAITING_FOR_SCHEDULER = "WaitingForScheduler"
    NO_PODS = "NoPods"

    LOADED = "Loaded"
    DOWNLOADING = "Downloading"
    NOT_STARTED = "NotStarted"

    SCALING_DISABLED = "ScalingDisabled"
    NOT_LOOKED = "NotLookedYet"
    METRICS_API_MISSING = "MetricsAPIMissing", True
    METRICS_STALE = "MetricsStale", True
    SEVERAL_AUTOSCALERS = "SeveralAutoscalers", True
    HPA_FAILING = "HPAFailing", True
    AT_MAXIMUM = "AtMaximum", True
    METRIC_VALID = "MetricValid"

    NO_TARGET = "NoTarget"
    NOT_MEASURED = "NotMeasured"
    WITHIN_REACH = "WithinReach"
    OUT_OF_REACH = "OutOfReach", True

    UP_TO_DATE = "UpToDate"
    UPGRADE_PINNED = "UpgradePinned"
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_HEALTH = "WaitingForHealth"
    WAITING_FOR_MODEL_IMAGE = "WaitingForModelImage"

    ADAPTERS_LOADED = "AdaptersLoaded"
    ADAPTERS_LOADING = "AdaptersLoading"
    ADAPTER_FAILED = "AdapterFailed", True

    PARTIAL_REPLICAS = "PartialReplicas", True
    OLDER_REVISION_SERVES = "OlderRevisionServes"
    AS_EXPECTED = "AsExpected"

    warns: bool

    def __new__(cls, value: str, warns: bool = False) -> Self:
        """A string, and whether it warns."""
        member = str.__new__(cls, value)
        member._value_, member.warns = value, warns
        return member


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A condition before it is compared with what it was."""

    holds: bool | None
    """None: nobody can know yet."""
    reason: str
    message: str


def yes(reason: str, message: str) -> Finding:
    """The condition holds."""
    return Finding(holds=True, reason=reason, message=message)


def no(reason: str, message: str) -> Finding:
    """It does not hold."""
    return Finding(holds=False, reason=reason, message=message)


def unknown(reason: str, message: str) -> Finding:
    """Nobody can know yet."""
    return Finding(holds=None, reason=reason, message=message)
