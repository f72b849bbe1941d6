"""Looks at everything that belongs to one BatchedModel.

Reads the cache alone, which knows what was just applied as soon as it is: nothing is seen in an
older form and applied again.

Anybody in the namespace may set a model's label. So a pod counts as the model's by its owners only:
it is its ReplicaSet's, that is its Deployment's, and that is the BatchedModel's, each by the uid in
the reference to its controller.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from batchedmodel_kube.admin_client import Whom
from batchedmodel_kube.errors import Forbidden, Gone
from batchedmodel_kube.manifest.model_class import class_name_of
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_operator.interfaces import Body, Cluster, Known, Sidecars, SidecarState
from batchedmodel_operator.kinds import CHILDREN, Kind, child_name
from batchedmodel_operator.observed.memory import Memory, Tries, asked_again
from batchedmodel_operator.observed.pod_failures import lacks_accelerator_since
from batchedmodel_operator.observed.state import (
    Child,
    Key,
    Model,
    Observed,
    Pod,
    child_from,
    controller_of,
    is_news,
    model_from,
    pod_from,
    revisions_from,
)
from batchedmodel_operator.planning.target import serves_by_own_image

_ASKED_AT_ONCE: Final = 16
"""Sidecars of one model at the same time."""
_ASKED_OF_LINK: Final = 4
"""Pods of one model that are asked for the version of their link; an old sidecar tells none."""
_ANSWERS_SECONDS: Final = 0.5
"""In one reconcile for the answers of all its pods. Healthy ones take milliseconds."""

Answered = TypeVar("Answered")


async def find(known: Known, cluster: Cluster, key: Key) -> Model | None:
    """The BatchedModel, or None when it is gone or going.

    An edit is read from the API server: for a while after the definition changed, a watch shows it
    as the definition before would have it.

    Raises `ClusterError` where that, or what its class says, is not known.
    """
    unseen = known.unseen(key.namespace)
    why = unseen.get(Kind.BATCHED_MODEL)
    if isinstance(why, Forbidden):
        raise why
    body = known.get(Kind.BATCHED_MODEL, key.namespace, key.name)
    if body is not None and is_news(body):
        body = await cluster.read(Kind.BATCHED_MODEL, key.namespace, key.name)
    if body is None or "deletionTimestamp" in body["metadata"]:
        # Owner references delete the children.
        return None
    name = class_name_of(body)
    found = None if name is None else known.get(Kind.MODEL_CLASS, "", name)
    why = None if name is None else unseen.get(Kind.MODEL_CLASS)
    if why is not None and not isinstance(why, Forbidden | Gone):
        raise why
    return model_from(body, found)


async def observe(
    known: Known, sidecars: Sidecars, model: Model, memory: Memory, now: float
) -> Observed:
    """What is there of a BatchedModel's. Only pods' sidecars are asked for it."""
    key = model.key
    bodies = {kind: known.get(kind, key.namespace, child_name(kind, key.name)) for kind in CHILDREN}
    children = {kind: child_from(kind, body) for kind, body in bodies.items() if body is not None}
    kept = known.owned(Kind.CONTROLLER_REVISION, key.namespace, key.name, {model.uid})
    observed = Observed(
        model=model,
        children=children,
        revisions=revisions_from(kept, model),
        # A pod that was evicted stays as a record of itself.
        pods=tuple(
            pod_from(pod)
            for pod in _own_pods(known, model, children.get(Kind.DEPLOYMENT))
            if pod["status"].get("phase") not in ("Succeeded", "Failed")
        ),
        memory=memory,
        unseen={
            kind: why
            for kind, why in known.unseen(key.namespace).items()
            if kind is not Kind.MODEL_CLASS
        },
    )
    asked = await _asked(sidecars, observed, now)
    lacking = {
        pod.uid: memory.lacking.get(pod.uid, now)
        for pod in observed.pods
        if lacks_accelerator_since(model.spec, pod) is not None
    }
    since = now if memory.altered_at is None else memory.altered_at
    remembered = replace(asked, lacking=lacking, altered_at=since if model.altered else None)
    return replace(observed, memory=remembered)


async def names_taken(cluster: Cluster, key: Key, kinds: Collection[Kind]) -> dict[Kind, Child]:
    """What has the names of these children, whoever made it. Raises `ClusterError`."""
    bodies = await asyncio.gather(
        *(cluster.read(kind, key.namespace, child_name(kind, key.name)) for kind in kinds)
    )
    return {
        kind: child_from(kind, body)
        for kind, body in zip(kinds, bodies, strict=True)
        if body is not None
    }


def _own_pods(known: Known, model: Model, deployment: Child | None) -> Sequence[Body]:
    """Of the pods with the label those that are the model's."""
    if deployment is None or controller_of(deployment.body["metadata"]) != model.uid:
        return ()
    where = model.key.namespace, model.key.name
    replica_sets = known.owned(Kind.REPLICA_SET, *where, {deployment.uid})
    return known.owned(Kind.POD, *where, {one["metadata"]["uid"] for one in replica_sets})


async def _asked(sidecars: Sidecars, observed: Observed, now: float) -> Memory:
    """What is remembered once the pods' sidecars have been asked, each at most once.

    Asked are those that must have changed their settings, those that say why they do not serve,
    and what only they know of adapters and of a model server whose image the manifest names.
    """
    memory, spec = observed.memory, observed.model.spec
    in_force = _of(observed.pods, memory.in_force)
    startups = _of(observed.loading, memory.startups)
    adapters = _of(observed.newest, memory.adapters)
    versions = _of(observed.newest, memory.link_versions)
    answering = [pod for pod in observed.newest if pod.answers and pod.ready]
    pods: list[Pod] = []
    if spec is not None:
        # Settings come first where there is no time for all.
        wanted = batch_settings(spec).digest()
        for pod in observed.pods:
            before = memory.inquiries.get((pod.uid, wanted))
            due = before is None or not before.waits(now)
            if pod.answers and due and in_force.get(pod.uid) != wanted:
                pods.append(pod)
    pods += observed.loading
    if spec is not None and spec.adapters is not None:
        pods += answering
    elif spec is not None and serves_by_own_image(spec) and not any(versions.values()):
        # They have the same images, so one that tells is enough.
        pods += answering[:_ASKED_OF_LINK]
    states, silences = await _answers(sidecars, pods, observed, now)
    loading = {pod.uid for pod in observed.loading}
    serving = {pod.uid for pod in answering}
    for uid, state in states.items():
        in_force[uid] = state.settings_hash
        if uid in loading and state.startup is not None:
            startups[uid] = state.startup
        if uid in serving and state.adapters is not None:
            adapters[uid] = state.adapters
        # None is said while the model server is away.
        if uid in serving and state.link_version:
            versions[uid] = state.link_version
    return replace(
        memory,
        in_force=in_force,
        startups=startups,
        adapters=adapters,
        link_versions=versions,
        silences=silences,
    )


def _of(pods: Sequence[Pod], known: Mapping[str, Answered]) -> dict[str, Answered]:
    """What is known of these pods."""
    return {pod.uid: known[pod.uid] for pod in pods if pod.uid in known}


async def _answers(
    sidecars: Sidecars, pods: Sequence[Pod], observed: Observed, now: float
) -> tuple[Mapping[str, SidecarState], Mapping[str, Tries]]:
    """The states of these pods' sidecars by uid, and the silences to be remembered.

    The workers have few places, so the pods of one reconcile have one time together: slow sidecars
    of one namespace must not keep other models waiting.
    """
    silences = _of(observed.pods, observed.memory.silences)
    places, begun = asyncio.Semaphore(_ASKED_AT_ONCE), set()

    async def ask(pod: Pod) -> SidecarState | None:
        async with places:
            begun.add(pod.uid)
            return await sidecars.state(
                pod.address, Whom(model=observed.model.key.name, pod=pod.uid)
            )

    # Those first that have answered best: there may be no time left for others.
    times = {uid: silence.times for uid, silence in silences.items()}
    by_uid = {pod.uid: pod for pod in sorted(pods, key=lambda pod: times.get(pod.uid, 0))}
    tasks = {
        asyncio.create_task(ask(pod)): uid
        for uid, pod in by_uid.items()
        if uid not in silences or not silences[uid].waits(now)
    }
    if not tasks:
        return {}, silences
    try:
        done, _ = await asyncio.wait(tasks, timeout=_ANSWERS_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
    states = {tasks[task]: state for task in done if (state := task.result()) is not None}
    silences |= {uid: asked_again(silences.get(uid), now) for uid in begun}
    return states, {uid: silence for uid, silence in silences.items() if uid not in states}
