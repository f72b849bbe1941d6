"""Reads out of one look what `rollout` decides by. Pure."""

from datetime import datetime

from batchedmodel_contract.kubernetes.names import REVISION_LABEL
from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.reconcile import effective
from batchedmodel_operator.reconcile.pod_failures import failed_start, lacks_accelerator_since
from batchedmodel_operator.reconcile.state import Observed, condition
from batchedmodel_operator.rollout.rollout import Fault, Signs


def signs(
    observed: Observed,
    spec: Spec,
    target: str,
    template: Body,
    now: float,
    at: datetime,
) -> Signs:
    """`template`: the target's. `now` and `at`: the time of the look, in monotonic seconds and by
    the cluster's calendar.
    """
    wanted = _label(template)
    pods = tuple(pod for pod in observed.pods if not pod.deleting)
    of_target = tuple(pod for pod in pods if pod.revision == wanted)
    newest = tuple(pod for pod in observed.newest if not pod.deleting)
    lacking = {
        pod.uid: since for pod in pods if (since := lacks_accelerator_since(spec, pod)) is not None
    }
    waits = [
        # By the calendar, so that another operator goes on counting; at least by our own clock, so
        # that one which was set back holds up nothing.
        max((at - lacking[pod.uid]).total_seconds(), now - observed.memory.lacking[pod.uid])
        for pod in newest
        if pod.uid in lacking
    ]
    diagnosis = failed_start(spec, of_target, observed.memory.startups)
    return Signs(
        target=target,
        asked=spec.rollout,
        accelerator=spec.accelerator is not None,
        desired=_desired(observed, spec),
        rolling=observed.deployment is not None and len(newest) < len(pods),
        scarce=bool(lacking),
        waited=max(waits, default=None),
        fault=None
        if diagnosis is None
        else Fault(reason=diagnosis.trouble, message=diagnosis.message),
        serving=any(pod.ready for pod in of_target),
        overdue=_is_overdue(observed, wanted),
        complete=_is_complete(observed, wanted),
        kept=frozenset(one.name for one in observed.revisions if _label(one.template) != wanted),
    )


def _label(template: Body) -> str | None:
    label: str | None = ((template.get("metadata") or {}).get("labels") or {}).get(REVISION_LABEL)
    return label


def _desired(observed: Observed, spec: Spec) -> int:
    if observed.deployment is None or spec.autoscaling is None or spec.suspend:
        return effective.pods(spec)
    replicas: int = observed.deployment.body["spec"].get("replicas", 1)
    return replicas


def _is_overdue(observed: Observed, wanted: str | None) -> bool:
    deployment = observed.deployment
    if deployment is None or _label(deployment.body["spec"]["template"]) != wanted:
        return False
    progress = condition(deployment.body.get("status") or {}, "Progressing")
    return progress.get("reason") == "ProgressDeadlineExceeded"


def _is_complete(observed: Observed, wanted: str | None) -> bool:
    deployment = observed.deployment
    if deployment is None or _label(deployment.body["spec"]["template"]) != wanted:
        return False
    body, status = deployment.body, deployment.body.get("status") or {}
    desired = body["spec"].get("replicas", 1)
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")}
    current = status.get("observedGeneration", 0) >= body["metadata"].get("generation", 0)
    return current and desired > 0 and counts == {desired}
