"""Kubernetes Events about a BatchedModel, for who looks at it with `kubectl describe`. Pure.

Made of conditions, and only where one has changed its status or its reason: a state that lasts
makes no Event, however often it is looked at.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from batchedmodel_operator.conditions import Reason
from batchedmodel_operator.diagnosis import Trouble
from batchedmodel_operator.kinds import FIELD_MANAGER, RESOURCES, Kind
from batchedmodel_operator.observed import Model, digest
from batchedmodel_operator.ports import Body

_WARNINGS: Final = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.NAME_CONFLICT,
        Reason.INVALID_OBJECT,
        Reason.FORBIDDEN,
        Reason.QUOTA_EXCEEDED,
        Reason.API_ERROR,
        Reason.BELOW_MINIMUM,
        Reason.PROGRESS_DEADLINE_EXCEEDED,
        Reason.RECONCILE_FAILED,
        *Trouble,
    }
)


def announcements(model: Model, conditions: Sequence[Body], *, at: str) -> Iterator[Body]:
    """The Events that the conditions are worth, compared with those that the model has.

    `at`: the time of the look, as RFC 3339 writes it.
    """
    before: Mapping[str, Body] = {
        one.get("type", ""): one for one in model.status.get("conditions") or ()
    }
    for one in conditions:
        was = before.get(one["type"], {})
        same = (was.get("status"), was.get("reason")) == (one["status"], one["reason"])
        warning = one["reason"] in _WARNINGS
        # That pods come and go is every day's business under an autoscaler.
        if same or (one["type"] == "Progressing" and not warning):
            continue
        yield _event(model, one, "Warning" if warning else "Normal", at)


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
