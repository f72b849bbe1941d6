"""Takes the steps of a plan, in its order, and says what became of them."""

import logging
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

from batchedmodel_kube.errors import ClusterError, Conflict, NameTaken, Refused, Unreachable
from batchedmodel_kube.names import BATCHING_HASH_ANNOTATION
from batchedmodel_operator.interfaces import Body, Cluster
from batchedmodel_operator.kinds import CHILDREN, FIELD_MANAGER, Kind
from batchedmodel_operator.observed.memory import Applied
from batchedmodel_operator.observed.state import Key, content, digest
from batchedmodel_operator.planning.plan import Apply, Failure, Plan

_log: Final = logging.getLogger(__name__)
_NOBODYS: Final = "1"
"""A version that no object has: the first write to an API server's store makes a later one. So an
apply that demands it makes an object where there is none, and is a conflict where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was done."""

    applied: Mapping[Kind, Applied]
    live: Mapping[Kind, Body]
    """Children, and the last template that was kept, as they are after being applied."""
    deleted: Set[str]
    """Uids of what the API server took a deletion of, or what was gone already."""
    failure: Failure | None
    """The first step that did not succeed."""


async def take(cluster: Cluster, key: Key, plan: Plan) -> Outcome:
    """Take the steps; one that is refused does not keep the others back.

    Raises `Conflict` when the plan is out of date, and `Gone` when there is nothing left to plan
    for.
    """
    failure: Failure | None = None
    applied: dict[Kind, Applied] = {}
    live: dict[Kind, Body] = {}
    deleted: set[str] = set()
    for deletion in plan.deletions:
        try:
            await cluster.delete(deletion.kind, key.namespace, deletion.name, deletion.uid)
            deleted.add(deletion.uid)
            _log.info("%s: deleted %s %s", key, deletion.kind, deletion.name, extra=key.fields())
        except (Refused, Unreachable) as error:
            failure = failure or Failure(kind=deletion.kind, name=deletion.name, error=error)
    refused: set[Kind] = set()
    for step in plan.applies:
        if step.after in refused:
            continue
        try:
            body = await _apply(cluster, step)
        except (Refused, Unreachable) as error:
            name = step.manifest["metadata"]["name"]
            failure = failure or Failure(kind=step.kind, name=name, error=error)
            if isinstance(error, Unreachable):
                break
            refused.add(step.kind)
            continue
        live[step.kind] = body
        if step.manager == FIELD_MANAGER:
            applied[step.kind] = Applied(
                uid=body["metadata"]["uid"],
                rendered=digest(step.manifest),
                content=content(body, step.manifest),
                repair=step.repair,
            )
            _log.info("%s: applied %s", key, step.kind, extra=key.fields())
    # A kubelet that is told to look must find the new settings.
    for refresh in plan.refreshes if failure is None else ():
        annotation = {BATCHING_HASH_ANNOTATION: refresh.annotation}
        try:
            await cluster.annotate(refresh.pod, key.namespace, refresh.uid, annotation)
        except ClusterError as error:
            # The inquiry that goes with it comes back to this pod.
            _log.warning(
                "%s: pod %s was not told of settings: %s",
                *(key, refresh.pod, error),
                extra=key.fields(pod=refresh.pod),
            )
    return Outcome(applied=applied, live=live, deleted=deleted, failure=failure)


async def _apply(cluster: Cluster, step: Apply) -> Body:
    # The object that was judged ours, or none: a stranger's that took its place is left alone.
    version = step.version if step.uid else _NOBODYS
    preconditions = {"uid": step.uid, "resourceVersion": version}
    required = {name: value for name, value in preconditions.items() if value}
    manifest = {**step.manifest, "metadata": {**step.manifest["metadata"], **required}}
    try:
        return await cluster.apply(manifest, manager=step.manager)
    except Conflict as error:
        if step.kind in CHILDREN:
            raise
        # Only templates of our own are read, so another reconcile would not tell whose this one is.
        raise NameTaken(
            "it exists, but not as a template of this BatchedModel's; delete it"
        ) from error
