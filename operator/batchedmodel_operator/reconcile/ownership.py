"""Which pods are a BatchedModel's: by owner references, and not by the label alone.

Anybody in the namespace may set the label. A pod is its ReplicaSet's, that is its Deployment's, and
that is the BatchedModel's: by uid, each by the reference of its controller. Part of `observe`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchedmodel_operator.interfaces import Body, Cluster
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reconcile.state import Child, Model

_MOST_ASKED: Final = 16
"""ReplicaSets in one look; a rollout has two, and those that were found need no second look."""


async def own_pods(
    cluster: Cluster,
    model: Model,
    deployment: Child | None,
    labelled: Sequence[Body],
    known: Mapping[str, str],
) -> tuple[Sequence[Body], Mapping[str, str]]:
    """Of the pods with the label those that are the model's, and the ReplicaSets that they are of.

    `known`: the same ReplicaSets as an earlier look found them, each with its Deployment, by uid.
    Raises `ClusterError`.
    """
    if deployment is None or not _is_controlled_by(deployment.body, model.uid):
        return (), {}
    owners = {
        owner["uid"]: str(owner.get("name"))
        for pod in labelled
        if (owner := _controller(pod)).get("kind") == Kind.REPLICA_SET and owner.get("uid")
    }
    found = {uid: deployment.uid for uid in owners if known.get(uid) == deployment.uid}
    asked = [(uid, name) for uid, name in owners.items() if uid not in found][:_MOST_ASKED]
    bodies = await asyncio.gather(
        *(cluster.get(Kind.REPLICA_SET, model.key.namespace, name) for _, name in asked)
    )
    for (uid, _), body in zip(asked, bodies, strict=True):
        if (
            body is not None
            and body["metadata"]["uid"] == uid
            and _is_controlled_by(body, deployment.uid)
        ):
            found[uid] = deployment.uid
    return [pod for pod in labelled if _controller(pod).get("uid") in found], found


def _is_controlled_by(body: Body, uid: str) -> bool:
    return bool(_controller(body).get("uid") == uid)


def _controller(body: Body) -> Mapping[str, Any]:
    """The reference to an object's controller; empty when it has none."""
    for owner in body["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            found: Mapping[str, Any] = owner
            return found
    return {}
