"""Looks at everything that belongs to one BatchedModel, at the same time.

Reads the API server instead of a cache: what was just applied is then never seen in an older form
and applied again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.sidecar_api import Whom
from batchedmodel_operator.diagnosis import lacks_accelerator_since
from batchedmodel_operator.kinds import CHILDREN, Kind, child_name
from batchedmodel_operator.observed import (
    Child,
    Key,
    Memory,
    Model,
    Observed,
    Pod,
    child_from,
    model_from,
    pod_from,
    revisions_from,
)
from batchedmodel_operator.ownership import own_pods
from batchedmodel_operator.ports import Body, Cluster, Sidecars

_ASKED_AT_ONCE: Final = 16
"""Sidecars of one model at the same time."""
_MOST_ASKED: Final = 512
"""In one look, half a minute if none answers: one that takes longer is taken for stuck, and the
operator with it. The others are asked in the next ones."""


async def find(cluster: Cluster, key: Key) -> Model | None:
    """The BatchedModel, or None when it is gone or going. Raises `ClusterError`."""
    body = await cluster.get(Kind.BATCHED_MODEL, key.namespace, key.name)
    if body is None or "deletionTimestamp" in body["metadata"]:
        # Owner references delete the children.
        return None
    return model_from(body)


async def gather(
    cluster: Cluster, sidecars: Sidecars, model: Model, memory: Memory, now: float
) -> Observed:
    """What is there of a BatchedModel's. Raises `ClusterError`."""
    key = model.key
    found, kept, bodies = await asyncio.gather(
        asyncio.gather(*(_child(cluster, key, kind) for kind in CHILDREN)),
        cluster.labelled(Kind.CONTROLLER_REVISION, key.namespace, key.name),
        cluster.labelled(Kind.POD, key.namespace, key.name),
    )
    children = {child.kind: child for child in found if child is not None}
    own, replica_sets = await own_pods(
        cluster, model, children.get(Kind.DEPLOYMENT), bodies, memory.replica_sets
    )
    # A pod that was evicted stays as a record of itself.
    pods = tuple(pod_from(pod) for pod in own if not _has_ended(pod))
    observed = Observed(
        model=model,
        children=children,
        revisions=revisions_from(kept, model),
        pods=pods,
        memory=memory,
    )
    places = asyncio.Semaphore(_ASKED_AT_ONCE)
    in_force, startups = await asyncio.gather(
        _in_force(sidecars, model, pods, memory, now, places),
        _startups(sidecars, observed, places),
    )
    lacking = {
        pod.uid: memory.lacking.get(pod.uid, now)
        for pod in pods
        if lacks_accelerator_since(model.spec, pod) is not None
    }
    since = now if memory.altered_at is None else memory.altered_at
    remembered = replace(
        memory,
        in_force=in_force,
        startups=startups,
        replica_sets=replica_sets,
        lacking=lacking,
        altered_at=since if model.altered else None,
    )
    return replace(observed, memory=remembered)


def _has_ended(pod: Body) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


async def _child(cluster: Cluster, key: Key, kind: Kind) -> Child | None:
    body = await cluster.get(kind, key.namespace, child_name(kind, key.name))
    return None if body is None else child_from(kind, body)


async def _asked(
    places: asyncio.Semaphore,
    ask: Callable[[str, Whom], Awaitable[str | None]],
    model: Model,
    pods: Sequence[Pod],
) -> list[str | None]:
    async def one(pod: Pod) -> str | None:
        async with places:
            return await ask(pod.address, Whom(model=model.key.name, pod=pod.uid))

    return await asyncio.gather(*(one(pod) for pod in pods))


async def _in_force(
    sidecars: Sidecars,
    model: Model,
    pods: tuple[Pod, ...],
    memory: Memory,
    now: float,
    places: asyncio.Semaphore,
) -> Mapping[str, str]:
    """The settings that pods are known to use; those that must have changed are asked again."""
    known = {pod.uid: memory.in_force[pod.uid] for pod in pods if pod.uid in memory.in_force}
    if model.spec is None:
        return known
    wanted = BatchSettings.of(model.spec.batching).digest()
    asked = [pod for pod in pods if _to_be_asked(pod, wanted, memory, now)][:_MOST_ASKED]
    answers = await _asked(places, sidecars.settings_hash, model, asked)
    return known | {
        pod.uid: answer for pod, answer in zip(asked, answers, strict=True) if answer is not None
    }


async def _startups(
    sidecars: Sidecars, observed: Observed, places: asyncio.Semaphore
) -> Mapping[str, str]:
    """What is said of the models' starts; a sidecar that is busy just now said it before."""
    asked, before = observed.loading, observed.memory.startups
    answers = await _asked(places, sidecars.model_startup, observed.model, asked)
    said = {
        pod.uid: before.get(pod.uid) if answer is None else answer
        for pod, answer in zip(asked, answers, strict=True)
    }
    return {uid: answer for uid, answer in said.items() if answer is not None}


def _to_be_asked(pod: Pod, wanted: str, memory: Memory, now: float) -> bool:
    if not pod.answers:
        return False
    inquiry = memory.inquiry(pod.uid, wanted)
    return memory.in_force.get(pod.uid) != wanted and (inquiry is None or inquiry.due(now))
