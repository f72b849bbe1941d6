"""Looks at everything that belongs to one BatchedModel, at the same time.

Reads the API server instead of a cache: what was just applied is then never seen in an older form
and applied again.

Anybody in the namespace may set a model's label. So a pod counts as the model's by its owners only:
it is its ReplicaSet's, that is its Deployment's, and that is the BatchedModel's, each by the uid in
the reference to its controller.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from batchedmodel_kube.admin_client import Whom
from batchedmodel_kube.errors import Forbidden
from batchedmodel_kube.manifest.model_class import class_name_of
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_operator.interfaces import Body, Cluster, Sidecars
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
    model_from,
    pod_from,
    revisions_from,
)
from batchedmodel_operator.planning.target import serves_by_own_image

KnownReplicaSets = Mapping[str, str | None]
"""ReplicaSets by uid, those that are still to be read in the order of their turns.

Each with the uid of the Deployment that it was found to be of, `_STRANGER` where it is not of the
model's, and None where it was not read yet.
"""
_STRANGER: Final = ""
_MOST_READ: Final = 16
"""ReplicaSets in one reconcile; a rollout has two, and those that were found need no second
question."""
_MOST_WAITING: Final = 1024
"""ReplicaSets that are remembered though they are not, or not yet, known to be the model's."""
_ASKED_AT_ONCE: Final = 16
"""Sidecars of one model at the same time."""
_ASKED_OF_LINK: Final = 4
"""Pods of one model that are asked for the version of their link; an old sidecar tells none."""
_ANSWERS_SECONDS: Final = 0.5
"""In one reconcile for the answers of all its pods. Healthy ones take milliseconds."""

Answered = TypeVar("Answered")
_Question = Callable[[str, Whom], Awaitable[Any]]
"""Its answer is None where there is none."""


async def find(cluster: Cluster, key: Key, names: Callable[[str | None], None]) -> Model | None:
    """The BatchedModel, or None when it is gone or going. Raises `ClusterError`.

    `names`: hears which class it names, if one, before the class is read. So no edit of the class
    goes unseen that comes while it is read.
    """
    body = await cluster.get(Kind.BATCHED_MODEL, key.namespace, key.name)
    if body is None or "deletionTimestamp" in body["metadata"]:
        # Owner references delete the children.
        names(None)
        return None
    name = class_name_of(body)
    names(name)
    found = None
    if name is not None:
        # An operator of some namespaces may have no right to what is the cluster's.
        with suppress(Forbidden):
            found = await cluster.get(Kind.MODEL_CLASS, "", name)
    return model_from(body, found)


async def observe(
    cluster: Cluster, sidecars: Sidecars, model: Model, memory: Memory, now: float
) -> Observed:
    """What is there of a BatchedModel's. Raises `ClusterError`."""
    key = model.key
    bodies, kept, labelled = await asyncio.gather(
        bodies_of(cluster, key),
        cluster.labelled(Kind.CONTROLLER_REVISION, key.namespace, key.name),
        cluster.labelled(Kind.POD, key.namespace, key.name),
    )
    children = {
        kind: child_from(kind, body)
        for kind, body in zip(CHILDREN, bodies, strict=True)
        if body is not None
    }
    own, replica_sets = await own_pods(
        cluster, model, children.get(Kind.DEPLOYMENT), labelled, memory.replica_sets
    )
    observed = Observed(
        model=model,
        children=children,
        revisions=revisions_from(kept, model),
        # A pod that was evicted stays as a record of itself.
        pods=tuple(
            pod_from(pod)
            for pod in own
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ),
        memory=memory,
    )
    asked = await _asked(sidecars, observed, now)
    lacking = {
        pod.uid: memory.lacking.get(pod.uid, now)
        for pod in observed.pods
        if lacks_accelerator_since(model.spec, pod) is not None
    }
    since = now if memory.altered_at is None else memory.altered_at
    remembered = replace(
        asked,
        replica_sets=replica_sets,
        lacking=lacking,
        altered_at=since if model.altered else None,
    )
    return replace(observed, memory=remembered)


def bodies_of(cluster: Cluster, key: Key) -> Awaitable[Sequence[Body | None]]:
    """What has the names of its children, in their order, whoever made it; raises as `find`."""
    return asyncio.gather(
        *(cluster.get(kind, key.namespace, child_name(kind, key.name)) for kind in CHILDREN)
    )


async def own_pods(
    cluster: Cluster,
    model: Model,
    deployment: Child | None,
    labelled: Sequence[Body],
    known: KnownReplicaSets,
) -> tuple[Sequence[Body], KnownReplicaSets]:
    """Of the pods with the label those that are the model's, and what is known of ReplicaSets.

    `known`: what an earlier reconcile found out. Raises `ClusterError`.
    """
    if deployment is None or _controller(deployment.body).get("uid") != model.uid:
        return (), {}
    owners = {
        owner["uid"]: str(owner.get("name"))
        for pod in labelled
        if (owner := _controller(pod)).get("kind") == Kind.REPLICA_SET and owner.get("uid")
    }
    found = {uid: deployment.uid for uid in owners if known.get(uid) == deployment.uid}
    waiting = _turns(owners, found, known, deployment)
    read, later = waiting[:_MOST_READ], waiting[_MOST_READ:]
    bodies = await asyncio.gather(
        *(cluster.get(Kind.REPLICA_SET, model.key.namespace, owners[uid]) for uid in read)
    )
    strangers = []
    for uid, body in zip(read, bodies, strict=True):
        same = body is not None and body["metadata"]["uid"] == uid
        if body is not None and same and _controller(body).get("uid") == deployment.uid:
            found[uid] = deployment.uid
        else:
            strangers.append(uid)
    own = [pod for pod in labelled if _controller(pod).get("uid") in found]
    unknown = {uid: known.get(uid) for uid in later} | dict.fromkeys(strangers, _STRANGER)
    return own, found | dict(itertools.islice(unknown.items(), _MOST_WAITING))


def _turns(
    owners: Mapping[str, str], found: Collection[str], known: KnownReplicaSets, deployment: Child
) -> Sequence[str]:
    """Which ReplicaSets are to be read, in this order: strangers must not hide the model's.

    Those come first that were not read yet, and of those the ones that are named as a Deployment
    names its own. Strangers come again after them: a Deployment may adopt what was nobody's. Among
    equals the one that has waited longest comes first.
    """
    waiting = [uid for uid in {**known, **owners} if uid in owners and uid not in found]
    return sorted(
        waiting,
        key=lambda uid: (
            known.get(uid) is not None,
            not owners[uid].startswith(f"{deployment.name}-"),
        ),
    )


def _controller(body: Body) -> Mapping[str, Any]:
    """The reference to an object's controller; empty when it has none."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


async def _asked(sidecars: Sidecars, observed: Observed, now: float) -> Memory:
    """What is remembered once the pods' sidecars have been asked.

    Asked are those that must have changed their settings, those that say why they do not serve,
    and what only they know of adapters and of a model server whose image the manifest names.
    """
    memory, spec = observed.memory, observed.model.spec
    in_force = _of(observed.pods, memory.in_force)
    startups = _of(observed.loading, memory.startups)
    adapters = _of(observed.newest, memory.adapters)
    versions = _of(observed.newest, memory.link_versions)
    answering = [pod for pod in observed.newest if pod.answers and pod.ready]
    questions: list[tuple[Pod, _Question, dict[str, Any]]] = []
    if spec is not None:
        wanted = batch_settings(spec).digest()
        for pod in observed.pods:
            before = memory.inquiries.get((pod.uid, wanted))
            due = before is None or not before.waits(now)
            if pod.answers and due and in_force.get(pod.uid) != wanted:
                questions.append((pod, sidecars.settings_hash, in_force))
    # A sidecar that is busy just now has mostly said it before.
    questions += [(pod, sidecars.model_startup, startups) for pod in observed.loading]
    if spec is not None and spec.adapters is not None:
        # Last: settings come first where there is no time for all.
        questions += [(pod, sidecars.adapters, adapters) for pod in answering]
    if spec is not None and serves_by_own_image(spec) and not any(versions.values()):
        # They have the same images, so one that tells is enough.
        questions += [(pod, sidecars.link_version, versions) for pod in answering[:_ASKED_OF_LINK]]
    silences = await _answers(questions, observed, now)
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
    questions: Sequence[tuple[Pod, _Question, dict[str, Any]]], observed: Observed, now: float
) -> Mapping[str, Tries]:
    """Put the questions, and write each answer into its dictionary, by uid of the pod.

    Returns the silences to be remembered. The workers have few places, so the pods of one reconcile
    have one time together: slow sidecars of one namespace must not keep other models waiting.
    """
    silences = {
        pod.uid: observed.memory.silences[pod.uid]
        for pod in observed.pods
        if pod.uid in observed.memory.silences
    }
    places, begun, answered = asyncio.Semaphore(_ASKED_AT_ONCE), set(), set()

    async def ask(pod: Pod, question: _Question) -> Any:
        async with places:
            begun.add(pod.uid)
            return await question(pod.address, Whom(model=observed.model.key.name, pod=pod.uid))

    def times(asked: tuple[Pod, _Question, dict[str, Any]]) -> int:
        silence = silences.get(asked[0].uid)
        return 0 if silence is None else silence.times

    # Those first that have answered best: there may be no time left for others.
    tasks = {
        asyncio.create_task(ask(pod, question)): (pod.uid, answers)
        for pod, question, answers in sorted(questions, key=times)
        if pod.uid not in silences or not silences[pod.uid].waits(now)
    }
    if not tasks:
        return silences
    try:
        done, _ = await asyncio.wait(tasks, timeout=_ANSWERS_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        uid, answers = tasks[task]
        answer = task.result()
        if answer is not None:
            answers[uid] = answer
            answered.add(uid)
    silences |= {uid: asked_again(silences.get(uid), now) for uid in begun}
    return {uid: silence for uid, silence in silences.items() if uid not in answered}
