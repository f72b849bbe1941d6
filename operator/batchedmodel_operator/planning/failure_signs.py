"""Reads out of one observation what `rollout` decides by. Pure."""

from datetime import datetime

from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.observed.pod_failures import failed_start, lacks_accelerator_since
from batchedmodel_operator.observed.state import Child, Observed, condition, revision_of
from batchedmodel_operator.planning.target import Target, serves
from batchedmodel_operator.rollout import Fault, Record, Signs


def signs(
    observed: Observed,
    spec: Spec,
    target: Target,
    now: float,
    at: datetime,
) -> Signs:
    """`now` and `at`: its time, in monotonic seconds and by the cluster's calendar."""
    model, deployment, wanted = observed.model, observed.deployment, revision_of(target.template)
    # What its controller reports counts only where it is about pods of the target.
    status: Body = {}
    if deployment is not None and observed.revision == wanted:
        status = deployment.body.get("status") or {}
    pods = tuple(pod for pod in observed.pods if not pod.deleting)
    of_target = tuple(pod for pod in pods if pod.revision == wanted)
    newest = tuple(pod for pod in observed.newest if not pod.deleting)
    lacking = {
        pod.uid: since for pod in pods if (since := lacks_accelerator_since(spec, pod)) is not None
    }
    waits = [
        # By the calendar, so that another operator goes on counting. At least by our own clock, so
        # that a calendar which was set back holds up nothing.
        max((at - lacking[pod.uid]).total_seconds(), now - observed.memory.lacking[pod.uid])
        for pod in newest
        if pod.uid in lacking
    ]
    diagnosis = failed_start(spec, of_target, observed.memory.startups)
    return Signs(
        target=target.name,
        cause=target.cause,
        said=target.said,
        is_authors=model.generation != model.status.get("observedGeneration")
        and serves(model.status)
        and target.name == Record.of(model.status).target,
        asked=spec.rollout,
        accelerator=spec.accelerator is not None,
        rolling=deployment is not None and len(newest) < len(pods),
        scarce=bool(lacking),
        waited=max(waits, default=None),
        fault=None
        if diagnosis is None
        else Fault(reason=diagnosis.trouble, message=diagnosis.message),
        serving=any(pod.ready for pod in of_target),
        overdue=condition(status, "Progressing").get("reason") == "ProgressDeadlineExceeded",
        complete=deployment is not None and _is_complete(deployment, status),
        kept=frozenset(
            one.name for one in observed.revisions if revision_of(one.template) != wanted
        ),
    )


def _is_complete(deployment: Child, status: Body) -> bool:
    desired = deployment.body["spec"].get("replicas", 1)
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")}
    generation = deployment.body["metadata"].get("generation", 0)
    current = status.get("observedGeneration", 0) >= generation
    return current and desired > 0 and counts == {desired}
