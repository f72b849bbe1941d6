"""Reasons of conditions; those of pods in trouble stand in `diagnosis.PodFailureReason`."""

from enum import StrEnum


class Reason(StrEnum):
    """As `reason` stands in a condition."""

    APPLIED = "Applied"
    INVALID_SPEC = "InvalidSpec"
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
    RECONCILE_FAILED = "ReconcileFailed"
    MODEL_LOADING = "ModelLoading"
    ROLLOUT_FAILED = "RolloutFailed"

    SCHEDULED = "Scheduled"
    WAITING_FOR_SCHEDULER = "WaitingForScheduler"
    NO_PODS = "NoPods"

    LOADED = "Loaded"
    DOWNLOADING = "Downloading"
    HEALTH_CHECK_FAILING = "HealthCheckFailing"
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

    PARTIAL_REPLICAS = "PartialReplicas"
    AS_EXPECTED = "AsExpected"
