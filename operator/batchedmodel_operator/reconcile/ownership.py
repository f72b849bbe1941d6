"""Which pods are a BatchedModel's: by owner references, and not by the label alone.

Anybody in the namespace may set the label. A pod is its ReplicaSet's, that is its Deployment's, and
that is the BatchedModel's: by uid, each by the reference of its controller. Part of `observe`.
"""

import asyncio
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from batchedmodel_operator.interfaces import Body, Cluster
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reconcile.state import Child, Model

Known = Mapping[str, str | None]
"""ReplicaSets by uid, those that wait for their turn in its order.

Each with the Deployment that it was found to be of, `_STRANGER` where it is not of the model's, and
None where it was not asked for yet.
"""

_STRANGER: Final = ""
_MOST_ASKED: Final = 16
"""ReplicaSets in one look; a rollout has two, and those that were found need no second look."""
_MOST_WAITING: Final = 1024
"""ReplicaSets that are remembered though they are not, or not yet, known to be the model's."""


async def own_pods(
    cluster: Cluster,
    model: Model,
    deployment: Child | None,
    labelled: Sequence[Body],
    known: Known,
) -> tuple[Sequence[Body], Known]:
    """Of the pods with the label those that are the model's, and what is known of ReplicaSets.

    `known`: what an earlier look found out. Raises `ClusterError`.
    """
    if deployment is None or not _is_controlled_by(deployment.body, model.uid):
        return (), {}
    owners = {
        owner["uid"]: str(owner.get("name"))
        for pod in labelled
        if (owner := _controller(pod)).get("kind") == Kind.REPLICA_SET and owner.get("uid")
    }
    found = {uid: deployment.uid for uid in owners if known.get(uid) == deployment.uid}
    waiting = _turns(owners, found, known, deployment)
    asked, later = waiting[:_MOST_ASKED], waiting[_MOST_ASKED:]
    bodies = await asyncio.gather(
        *(cluster.get(Kind.REPLICA_SET, model.key.namespace, owners[uid]) for uid in asked)
    )
    strangers = []
    for uid, body in zip(asked, bodies, strict=True):
        if (
            body is not None
            and body["metadata"]["uid"] == uid
            and _is_controlled_by(body, deployment.uid)
        ):
            found[uid] = deployment.uid
        else:
            strangers.append(uid)
    own = [pod for pod in labelled if _controller(pod).get("uid") in found]
    unknown = {uid: known.get(uid) for uid in later} | dict.fromkeys(strangers, _STRANGER)
    return own, found | dict(itertools.islice(unknown.items(), _MOST_WAITING))


def _turns(
    owners: Mapping[str, str], found: Collection[str], known: Known, deployment: Child
) -> Sequence[str]:
    """Which ReplicaSets are to be asked for, in this order: strangers must not hide the model's.

    Those come first that were not asked for yet, and of those the ones that are called as a
    Deployment calls its own. Strangers come again after them: a Deployment may adopt what was
    nobody's. Among equals the one comes first that has waited longest.
    """
    prefix = f"{deployment.name}-"
    waiting = [uid for uid in {**known, **owners} if uid in owners and uid not in found]
    return sorted(
        waiting,
        key=lambda uid: (known.get(uid) is not None, not owners[uid].startswith(prefix)),
    )


def _is_controlled_by(body: Body, uid: str) -> bool:
    return bool(_controller(body).get("uid") == uid)


def _controller(body: Body) -> Mapping[str, Any]:
    """The reference to an object's controller; empty when it has none."""
    for owner in body["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            found: Mapping[str, Any] = owner
            return found
    return {}
