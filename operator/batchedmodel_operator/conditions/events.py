"""Kubernetes Events about a BatchedModel, which `kubectl describe` shows. Pure.

A condition makes one only where its status or its reason has changed: a state that lasts makes no
Event, however often the model is reconciled. One that comes and goes makes a few, and then one a
minute.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from batchedmodel_operator.conditions.findings import Reason
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import FIELD_MANAGER, RESOURCES, Kind
from batchedmodel_operator.observed.memory import Announced
from batchedmodel_operator.observed.pod_failures import PodFailureReason
from batchedmodel_operator.observed.state import Model, digest

_WARNINGS: Final = frozenset((*(one for one in Reason if one.warns), *PodFailureReason))
_SUMMARIES: Final = frozenset({"Ready", "Reconciled", "Available"})
"""Conditions that are announced when all is well, too. The others are about pods that come and go,
which is normal under an autoscaler."""
_AT_ONCE: Final = 3
"""Events of one type of condition and one reason that need not wait."""
_APART_SECONDS: Final = 60.0
"""Between two more of them."""
_FORGOTTEN_SECONDS: Final = 600.0
"""After the last of them the next one counts as the first."""

_Told = Mapping[tuple[str, str], Announced]
"""By type of condition and reason."""


def announcements(
    model: Model, conditions: Sequence[Body], told: _Told, *, at: str, now: float
) -> tuple[Sequence[Body], _Told]:
    """The Events that the conditions are worth, and what has been told with them.

    `told`: by the reconciles before. `at`: the time of the reconcile, as RFC 3339 writes it; `now`:
    the same in monotonic seconds.
    """
    told = {key: one for key, one in told.items() if now - one.at < _FORGOTTEN_SECONDS}
    events = []
    for one in _news(model, conditions):
        key = one["type"], one["reason"]
        before = told.get(key, Announced(times=0, at=now))
        if before.times < _AT_ONCE or now - before.at >= _APART_SECONDS:
            told[key] = Announced(times=before.times + 1, at=now)
            events.append(_event(model, one, at))
    return events, told


def _news(model: Model, conditions: Sequence[Body]) -> Iterator[Body]:
    """Those that are worth an Event, compared with those that the model has."""
    before = {
        one.get("type"): (one.get("status"), one.get("reason"))
        for one in model.status.get("conditions") or ()
    }
    changed = [
        one for one in conditions if before.get(one["type"]) != (one["status"], one["reason"])
    ]
    lasting = {one["reason"] for one in conditions if one not in changed}
    told: set[str] = set()
    for one in changed:
        # A new model does not serve yet, which is no news.
        began = one["type"] not in before and one["status"] != "True"
        reason, summary = one["reason"], one["type"] in _SUMMARIES and not began
        # Several conditions may have one reason: the first that changes for it speaks for them.
        known = reason in told or (reason in lasting and not summary)
        if known or not (reason in _WARNINGS or summary):
            continue
        told.add(reason)
        yield one


def _event(model: Model, condition: Body, at: str) -> Body:
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
        "type": "Warning" if condition["reason"] in _WARNINGS else "Normal",
        "reason": condition["reason"],
        "message": f"{condition['type']} is {condition['status']}: {condition['message']}"[:1024],
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
