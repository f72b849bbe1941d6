"""Kubernetes Events about a BatchedModel, for who looks at it with `kubectl describe`. Pure.

Made of conditions, and only where one has changed its status or its reason: a state that lasts
makes no Event, however often it is looked at.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from batchedmodel_operator.conditions import Reason
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import FIELD_MANAGER, RESOURCES, Kind
from batchedmodel_operator.reconcile.pod_failures import PodFailureReason
from batchedmodel_operator.reconcile.state import Model, digest

_WARNINGS: Final = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.DEFINITION_CHANGED,
        Reason.NAME_CONFLICT,
        Reason.CONTESTED,
        Reason.INVALID_OBJECT,
        Reason.FORBIDDEN,
        Reason.QUOTA_EXCEEDED,
        Reason.API_ERROR,
        Reason.BELOW_MINIMUM,
        Reason.PROGRESS_DEADLINE_EXCEEDED,
        Reason.RECONCILE_FAILED,
        Reason.SWITCHED_TO_IN_PLACE,
        Reason.ROLLOUT_FAILED,
        Reason.ROLLED_BACK,
        Reason.PARTIAL_REPLICAS,
        Reason.OUT_OF_REACH,
        Reason.METRICS_API_MISSING,
        Reason.HPA_FAILING,
        Reason.SEVERAL_AUTOSCALERS,
        Reason.METRICS_STALE,
        Reason.AT_MAXIMUM,
        Reason.HEALTH_CHECK_FAILING,
        *PodFailureReason,
    }
)
_SUMMARIES: Final = frozenset({"Ready", "Reconciled", "Available"})
"""Conditions that are announced when all is well, too. That pods come and go, of which the others
tell, is every day's business under an autoscaler."""


def announcements(model: Model, conditions: Sequence[Body], *, at: str) -> Iterator[Body]:
    """The Events that the conditions are worth, compared with those that the model has.

    `at`: the time of the look, as RFC 3339 writes it.
    """
    before: Mapping[str, Body] = {
        one.get("type", ""): one for one in model.status.get("conditions") or ()
    }
    changed = [one for one in conditions if not _is_as_before(one, before)]
    lasting = {one["reason"] for one in conditions if one not in changed}
    told: set[str] = set()
    for one in changed:
        # That a new model does not serve yet is no transition.
        began = one["type"] not in before and one["status"] != "True"
        reason, summary = one["reason"], one["type"] in _SUMMARIES and not began
        warning = reason in _WARNINGS
        # Several conditions may have one reason: the first that changes for it speaks for them.
        known = reason in told or (reason in lasting and not summary)
        if known or not (warning or summary):
            continue
        told.add(reason)
        yield _event(model, one, "Warning" if warning else "Normal", at)


def _is_as_before(one: Body, before: Mapping[str, Body]) -> bool:
    was = before.get(one["type"], {})
    return (was.get("status"), was.get("reason")) == (one["status"], one["reason"])


def _event(model: Model, condition: Body, kind: str, at: str) -> Body:
    told = [model.uid, condition["type"], condition["status"], condition["reason"], at]
    return {
        "apiVersion": RESOURCES[Kind.EVENT].api_version,
        "kind": Kind.EVENT.value,
        "metadata": {
            "name": f"{model.key.name}.{digest(told)}",
            "namespace": model.key.namespace,
        },
        "involvedObject": {
            "apiVersion": RESOURCES[Kind.BATCHED_MODEL].api_version,
            "kind": Kind.BATCHED_MODEL.value,
            "name": model.key.name,
            "namespace": model.key.namespace,
            "uid": model.uid,
        },
        "type": kind,
        "reason": condition["reason"],
        "message": f"{condition['type']} is {condition['status']}: {condition['message']}"[:1024],
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
