"""What a condition is found to be: whether it holds, its reason and its sentence."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """`reason` of a condition; those of pods that fail are `PodFailureReason`s."""

    APPLIED = "Applied"
    INVALID_SPEC = "InvalidSpec"
    CLASS_NOT_FOUND = "ClassNotFound"
    DEFINITION_CHANGED = "DefinitionChanged"
    NAME_CONFLICT = "NameConflict"
    WAITING_FOR_DELETION = "WaitingForDeletion"
    CONTESTED = "Contested"
    INVALID_OBJECT = "InvalidObject"
    FORBIDDEN = "Forbidden"
    QUOTA_EXCEEDED = "QuotaExceeded"
    API_ERROR = "ApiError"

    MINIMUM_REPLICAS_AVAILABLE = "MinimumReplicasAvailable"
    NO_READY_REPLICAS = "NoReadyReplicas"
    BELOW_MINIMUM = "BelowMinimum"
    SCALED_TO_ZERO = "ScaledToZero"
    SUSPENDED = "Suspended"

    NEW_REVISION_ROLLING_OUT = "NewRevisionRollingOut"
    SWITCHED_TO_IN_PLACE = "SwitchedToInPlace"
    ROLLING_BACK = "RollingBack"
    ROLLED_BACK = "RolledBack"
    SCALING = "Scaling"
    BATCH_SETTINGS_ROLLING_OUT = "BatchSettingsRollingOut"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    COMPLETE = "Complete"

    SERVING = "Serving"
    PARTIALLY_SERVING = "PartiallyServing"
    RECONCILE_FAILED = "ReconcileFailed"
    MODEL_LOADING = "ModelLoading"
    ROLLOUT_FAILED = "RolloutFailed"

    SCHEDULED = "Scheduled"
    WAITING_FOR_SCHEDULER = "WaitingForScheduler"
    NO_PODS = "NoPods"

    LOADED = "Loaded"
    DOWNLOADING = "Downloading"
    NOT_STARTED = "NotStarted"

    SCALING_DISABLED = "ScalingDisabled"
    NOT_LOOKED = "NotLookedYet"
    METRICS_API_MISSING = "MetricsAPIMissing"
    METRICS_STALE = "MetricsStale"
    SEVERAL_AUTOSCALERS = "SeveralAutoscalers"
    HPA_FAILING = "HPAFailing"
    AT_MAXIMUM = "AtMaximum"
    METRIC_VALID = "MetricValid"

    NO_TARGET = "NoTarget"
    NOT_MEASURED = "NotMeasured"
    WITHIN_REACH = "WithinReach"
    OUT_OF_REACH = "OutOfReach"

    UP_TO_DATE = "UpToDate"
    UPGRADE_PINNED = "UpgradePinned"
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_HEALTH = "WaitingForHealth"
    WAITING_FOR_MODEL_IMAGE = "WaitingForModelImage"

    ADAPTERS_LOADED = "AdaptersLoaded"
    ADAPTERS_LOADING = "AdaptersLoading"
    ADAPTER_FAILED = "AdapterFailed"

    PARTIAL_REPLICAS = "PartialReplicas"
    OLDER_REVISION_SERVES = "OlderRevisionServes"
    AS_EXPECTED = "AsExpected"


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
