"""Looks at everything that belongs to one BatchedModel, at the same time.

Reads the API server instead of a cache: what was just applied is then never seen in an older form
and applied again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.processes.sidecar_api import Whom
from batchedmodel_operator.interfaces import Body, Cluster, Sidecars
from batchedmodel_operator.kinds import CHILDREN, Kind, child_name
from batchedmodel_operator.reconcile.memory import Memory, Silence
from batchedmodel_operator.reconcile.ownership import own_pods
from batchedmodel_operator.reconcile.pod_failures import lacks_accelerator_since
from batchedmodel_operator.reconcile.state import (
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

_ASKED_AT_ONCE: Final = 16
"""Sidecars of one model at the same time."""
_ANSWERS_SECONDS: Final = 0.5
"""In one look for the answers of all its pods. Healthy ones take milliseconds."""
_FIRST_SILENCE_SECONDS: Final = 0.5
_LONGEST_SILENCE_SECONDS: Final = 60.0
"""Between two questions to a pod that does not answer, whatever happens meanwhile."""


async def find(cluster: Cluster, key: Key) -> Model | None:
    """The BatchedModel, or None when it is gone or going. Raises `ClusterError`."""
    body = await cluster.get(Kind.BATCHED_MODEL, key.namespace, key.name)
    if body is None or "deletionTimestamp" in body["metadata"]:
        # Owner references delete the children.
        return None
    return model_from(body)


async def observe(
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
    asker = _Asker(memory.silences, now)
    in_force, startups = await asyncio.gather(
        _in_force(asker, sidecars, model, pods, memory, now),
        _startups(asker, sidecars, observed),
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
        silences=asker.silences(pods),
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


class _Asker:
    """Asks the pods of one look, all of them within one time, and those that are silent rarely.

    A look has one of few places, which one namespace's slow sidecars must not keep from others.
    """

    def __init__(self, silences: Mapping[str, Silence], now: float) -> None:
        self._before = silences
        self._now = now
        self._places = asyncio.Semaphore(_ASKED_AT_ONCE)
        self._begun: set[str] = set()
        self._answered: set[str] = set()

    async def ask(
        self,
        question: Callable[[str, Whom], Awaitable[str | None]],
        model: Model,
        pods: Sequence[Pod],
    ) -> dict[str, str]:
        """The answers that came in time, by uid."""

        async def one(pod: Pod) -> str | None:
            async with self._places:
                self._begun.add(pod.uid)
                return await question(pod.address, Whom(model=model.key.name, pod=pod.uid))

        # Those first that have answered best: there may be no time left for others.
        due = sorted(filter(self._is_due, pods), key=self._times)
        asked = {asyncio.create_task(one(pod)): pod.uid for pod in due}
        if not asked:
            return {}
        try:
            done, _ = await asyncio.wait(asked, timeout=_ANSWERS_SECONDS)
        finally:
            for task in asked:
                task.cancel()
        answers = ((asked[task], task.result()) for task in done)
        found = {uid: answer for uid, answer in answers if answer is not None}
        self._answered |= found.keys()
        return found

    def silences(self, pods: Sequence[Pod]) -> Mapping[str, Silence]:
        """What is to be remembered of these pods."""
        kept = {pod.uid: self._before[pod.uid] for pod in pods if pod.uid in self._before}
        for uid in self._begun:
            times = kept[uid].times if uid in kept else 0
            delay = min(_FIRST_SILENCE_SECONDS * 2**times, _LONGEST_SILENCE_SECONDS)
            kept[uid] = Silence(times=times + 1, again_at=self._now + delay)
        return {uid: one for uid, one in kept.items() if uid not in self._answered}

    def _times(self, pod: Pod) -> int:
        silence = self._before.get(pod.uid)
        return 0 if silence is None else silence.times

    def _is_due(self, pod: Pod) -> bool:
        silence = self._before.get(pod.uid)
        return silence is None or self._now >= silence.again_at


async def _in_force(
    asker: _Asker,
    sidecars: Sidecars,
    model: Model,
    pods: tuple[Pod, ...],
    memory: Memory,
    now: float,
) -> Mapping[str, str]:
    """The settings that pods are known to use; those that must have changed are asked again."""
    known = {pod.uid: memory.in_force[pod.uid] for pod in pods if pod.uid in memory.in_force}
    if model.spec is None:
        return known
    wanted = BatchSettings.of(model.spec.batching).digest()
    asked = [pod for pod in pods if _to_be_asked(pod, wanted, memory, now)]
    return known | await asker.ask(sidecars.settings_hash, model, asked)


async def _startups(asker: _Asker, sidecars: Sidecars, observed: Observed) -> Mapping[str, str]:
    """What is said of the models' starts; a sidecar that is busy just now said it before."""
    asked, before = observed.loading, observed.memory.startups
    answers = await asker.ask(sidecars.model_startup, observed.model, asked)
    return {pod.uid: before[pod.uid] for pod in asked if pod.uid in before} | answers


def _to_be_asked(pod: Pod, wanted: str, memory: Memory, now: float) -> bool:
    if not pod.answers:
        return False
    inquiry = memory.inquiry(pod.uid, wanted)
    return memory.in_force.get(pod.uid) != wanted and (inquiry is None or inquiry.due(now))
