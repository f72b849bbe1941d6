"""All models, their pods and what the pods' sidecars have told: the autoscaler's whole memory.

Used inside one event loop. The informer's caches write the objects, `poller` writes the answers,
`server` asks. Times are arguments, monotonic seconds.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from batchedmodel_autoscaler.cluster.objects import Model, ModelKey, Pod
from batchedmodel_autoscaler.cluster.ownership import Ownership
from batchedmodel_autoscaler.errors import NotFound
from batchedmodel_autoscaler.replicas.formula import ModelObservation, Target
from batchedmodel_autoscaler.replicas.observation import PodState, model_sight
from batchedmodel_autoscaler.replicas.windows import WINDOW_SECONDS, History, Window
from batchedmodel_autoscaler.state.capacity_estimator import ReadyPod, learnt
from batchedmodel_autoscaler.state.pace import seconds_between
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_kube.capacity import Capacity

_HPA_SYNC_SECONDS: Final = 15.0
"""How often an HPA looks, unless the controller manager is told otherwise."""
UNKNOWN_STARTUP_SECONDS: Final = 30.0
"""Assumed until a pod of the model has got ready."""
MOST_OF_A_POD: Final = 8
"""Windows within a minute. A container that fails starts six times in one at most."""
MOST_OF_A_MODEL: Final = 4096
"""Windows. The oldest ones of more are forgotten."""


class Departed:
    """The work of a model's pods and of runs of sidecars that have ended, for a minute.

    It is bounded, as a sidecar may say at every answer that it is another one.
    """

    def __init__(self) -> None:
        self._left: deque[tuple[str, Window]] = deque()
        """With the pods' uids, in the order in which they came."""
        self._of_pods: Counter[str] = Counter()
        self._newest = float("-inf")

    @property
    def windows(self) -> Sequence[Window]:
        """Some may be over already."""
        return [window for _, window in self._left]

    def add(self, uid: str, window: Window) -> None:
        """A pod or a run of its sidecar has ended. What exceeds a pod's bound is dropped."""
        self._newest = max(self._newest, window.received)
        while self._left and self._newest - self._left[0][1].received >= WINDOW_SECONDS:
            self._forget_first()
        if self._of_pods[uid] < MOST_OF_A_POD:
            self._left.append((uid, window))
            self._of_pods[uid] += 1
        if len(self._left) > MOST_OF_A_MODEL:
            self._forget_first()

    def _forget_first(self) -> None:
        uid, _ = self._left.popleft()
        self._of_pods[uid] -= 1
        if not self._of_pods[uid]:
            del self._of_pods[uid]


@dataclass(slots=True, kw_only=True)
class _KnownPod:
    """A pod with the label of a model, whosever it is."""

    pod: Pod
    history: History = field(default_factory=History)
    startup_seconds: float | None = None
    """Of its first start: a pod that loses its readiness and gets it back has not started again."""
    watched: bool = False
    """Whether it was seen before it was ready."""


@dataclass(slots=True, kw_only=True)
class _KnownModel:
    model: Model
    learnt: Capacity | None = None
    departed: Departed = field(default_factory=Departed)

    @property
    def capacity(self) -> Capacity | None:
        """What its pods taught when somebody last asked, or before that what its status says."""
        return self.learnt or self.model.capacity


class ClusterState:
    """What is known of all models and pods."""

    def __init__(self, poll_seconds: float) -> None:
        self.poll_seconds: Final = poll_seconds
        """Time between two questions to one sidecar where there are not too many of them."""
        self.ownership: Final = Ownership()
        """It is told of Deployments and ReplicaSets by the caches themselves."""
        self._models: dict[ModelKey, _KnownModel] = {}
        self._pods: dict[str, _KnownPod] = {}

    # What the caches write.

    def model_seen(self, model: Model) -> None:
        """A model is there, or has changed."""
        known = self._models.get(model.key)
        if known is None or known.model.uid != model.uid:
            # Perhaps another of the same name, where the end of the first was missed.
            self._models[model.key] = _KnownModel(model=model)
        else:
            if known.model.capacity != model.capacity:
                # Another replica has learnt it, perhaps from starts that were not seen here.
                known.learnt = None
            known.model = model
        self.ownership.model_seen(model.key, model.uid)

    def model_gone(self, model: Model) -> None:
        """A model is no more. Another one may have its name by now."""
        known = self._models.get(model.key)
        if known is None or known.model.uid != model.uid:
            return
        del self._models[model.key]
        self.ownership.model_gone(model.key)

    def pod_seen(self, pod: Pod) -> None:
        """A pod with a model's label is there, or has changed."""
        known = self._pods.get(pod.uid)
        if known is not None and known.pod.model != pod.model:
            self.pod_gone(pod)
            known = None
        if known is None:
            known = self._pods[pod.uid] = _KnownPod(pod=pod)
        known.pod = pod
        known.watched |= pod.fresh
        if known.startup_seconds is None:
            known.startup_seconds = pod.startup_seconds
        self.ownership.pod_seen(pod.model, pod.uid, pod.owner)

    def pod_gone(self, pod: Pod) -> None:
        """A pod is no more; the work that was offered to it still counts for a minute."""
        known = self._pods.pop(pod.uid, None)
        if known is None:
            return
        self.ownership.pod_gone(known.pod.model, pod.uid)
        self._leave_behind(known.pod, known.history.window())

    # What the poller reads and writes.

    def address(self, uid: str) -> str | None:
        """Where a pod listens; empty if nowhere yet or if it is no model's; None if it is gone."""
        known = self._pods.get(uid)
        if known is None:
            return None
        return known.pod.address if self.ownership.is_of(known.pod.model, uid) else ""

    def model_of(self, uid: str) -> ModelKey:
        """The model whose label a pod that is there has."""
        return self._pods[uid].pod.model

    def answered(self, uid: str, stats: SidecarStats, now: float) -> None:
        """A sidecar answered; its pod may have gone meanwhile."""
        known = self._pods.get(uid)
        if known is None or not self.ownership.is_of(known.pod.model, uid):
            return
        capacity = self._models[known.pod.model].capacity
        is_its = capacity is not None and capacity.revision == known.pod.revision
        known.history.rows_per_second = capacity.rows_per_second if capacity and is_its else None
        self._leave_behind(known.pod, known.history.record(stats, now))

    # What is asked.

    @property
    def counts(self) -> tuple[int, int]:
        """How many models there are, and pods of theirs."""
        return len(self._models), sum(self.ownership.sizes().values())

    def target(self, key: ModelKey) -> Target:
        """What a model's manifest asks for; raises `NotFound`."""
        known = self._models.get(key)
        if known is None:
            raise NotFound(f'batchedmodels.batchedmodel.dev "{key.name}" not found')
        return known.model.target

    def observation(self, key: ModelKey, now: float) -> ModelObservation:
        """What can be seen of a model."""
        capacity, known = self.capacity(key), self._models.get(key)
        startup = None if capacity is None else capacity.startup_seconds
        return model_sight(
            [
                PodState(ready=one.pod.ready, leaving=one.pod.leaving, history=one.history)
                for one in self._own_pods(key)
            ],
            () if known is None else known.departed.windows,
            present=self.ownership.replicas_of(key),
            startup_seconds=UNKNOWN_STARTUP_SECONDS if startup is None else startup,
            poll_seconds=seconds_between(self.ownership.sizes(), key, self.poll_seconds),
            sync_seconds=_HPA_SYNC_SECONDS,
            now=now,
        )

    def work_is_known(self, key: ModelKey) -> bool:
        """Whether all ready pods told their work in seconds of a device, and there are any."""
        ready = [one for one in self._own_pods(key) if one.pod.ready and not one.pod.leaving]
        return bool(ready) and all(one.history.window() is not None for one in ready)

    def models(self) -> list[Model]:
        """All there are."""
        return [known.model for known in self._models.values()]

    def capacity(self, key: ModelKey) -> Capacity | None:
        """What a model's newest pods teach; while none is ready, what they taught before."""
        known = self._models.get(key)
        if known is None:
            return None
        known.learnt = learnt(tuple(self._ready_pods(key)), known.capacity)
        return known.capacity

    def _own_pods(self, key: ModelKey) -> Iterator[_KnownPod]:
        return (self._pods[uid] for uid in self.ownership.pods_of(key))

    def _ready_pods(self, key: ModelKey) -> Iterator[ReadyPod]:
        for known in self._own_pods(key):
            stats = known.history.stats
            if known.pod.ready and not known.pod.leaving:
                yield ReadyPod(
                    revision=known.pod.revision,
                    created=known.pod.created,
                    startup_seconds=known.startup_seconds,
                    watched=known.watched,
                    rows_per_second=None if stats is None else stats.rows_per_second,
                    shortest_latency_seconds=(
                        None if stats is None else stats.shortest_latency_seconds
                    ),
                )

    def _leave_behind(self, pod: Pod, window: Window | None) -> None:
        if window is not None and pod.model in self._models:
            self._models[pod.model].departed.add(pod.uid, window)
