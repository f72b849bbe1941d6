"""All models, their pods and what the pods' sidecars have told: the autoscaler's whole memory.

Owned by the event loop's one thread. The caches of `informer` write the objects, `poller` writes
the answers, `server` asks. Times are arguments, monotonic seconds; decides nothing by itself.
"""

from collections.abc import Iterator
from typing import Final

from batchedmodel_autoscaler.cluster.objects import Model, ModelKey, Owned, Pod, Size
from batchedmodel_autoscaler.cluster.ownership import Ownership
from batchedmodel_autoscaler.errors import NotFound
from batchedmodel_autoscaler.polling.pace import seconds_between
from batchedmodel_autoscaler.state.capacity_estimator import ReadyPod, learnt
from batchedmodel_autoscaler.state.departed import Departed
from batchedmodel_contract.kubernetes.capacity import Capacity
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_scheduling.autoscaling.formula import ModelObservation, Target
from batchedmodel_scheduling.autoscaling.hpa import SYNC_SECONDS
from batchedmodel_scheduling.autoscaling.observation import PodState, model_sight
from batchedmodel_scheduling.autoscaling.windows import History, Window

UNKNOWN_STARTUP_SECONDS: Final = 30.0
"""Assumed until a pod of the model has got ready."""
LEARN_SECONDS: Final = 10.0
"""Between two looks at what the answers of a model's pods teach."""


class ClusterState:
    """The memory."""

    def __init__(self, poll_seconds: float) -> None:
        self.poll_seconds: Final = poll_seconds
        """Time between two questions to one sidecar where there are not too many of them."""
        self._models: dict[ModelKey, Model] = {}
        self._sizes: dict[ModelKey, dict[str, int]] = {}
        """Pods that are wanted, by uid of each Deployment with the label."""
        self._pods: dict[str, Pod] = {}
        """All with the label of a model, whosever they are."""
        self._ownership = Ownership()
        self._histories: dict[str, History] = {}
        self._startups: dict[str, float] = {}
        self._watched: set[str] = set()
        """Pods that were seen before they were ready."""
        self._learnt: dict[ModelKey, Capacity] = {}
        self._learn_at: dict[ModelKey, float] = {}
        """From when on an answer teaches something; where a model is not in it, the first one."""
        self._news: set[ModelKey] = set()
        """Models of which something was seen that may teach. Looked at when somebody asks: a look
        at thousands of pods at each event of one of them would leave time for nothing else."""
        self._departed: dict[ModelKey, Departed] = {}

    # What the caches write.

    def model_seen(self, model: Model) -> None:
        """A model is there, or has changed."""
        known = self._models.get(model.key)
        if known is not None and known.uid != model.uid:
            # Another of the same name, where the end of the first was missed.
            self.model_gone(known)
        elif known is not None and known.capacity != model.capacity:
            # Another replica has learnt it, perhaps from starts that were not seen here.
            self._learnt.pop(model.key, None)
        self._models[model.key] = model
        self._ownership.model_seen(model.key, model.uid)
        self._news.add(model.key)

    def model_gone(self, model: Model) -> None:
        """A model is no more."""
        self._models.pop(model.key, None)
        self._ownership.model_gone(model.key)
        self._learnt.pop(model.key, None)
        self._learn_at.pop(model.key, None)
        self._news.discard(model.key)
        self._departed.pop(model.key, None)

    def size_seen(self, size: Size) -> None:
        """A Deployment with a model's label is there, or has changed."""
        self._sizes.setdefault(size.deployment.model, {})[size.deployment.uid] = size.replicas
        self._ownership.seen(size.deployment)

    def size_gone(self, size: Size) -> None:
        """Such a Deployment is no more."""
        self._ownership.gone(size.deployment)
        sizes = self._sizes.get(size.deployment.model, {})
        sizes.pop(size.deployment.uid, None)
        if not sizes:
            self._sizes.pop(size.deployment.model, None)

    def replica_set_seen(self, replica_set: Owned) -> None:
        """A ReplicaSet with a model's label is there, or has changed."""
        self._ownership.seen(replica_set)

    def replica_set_gone(self, replica_set: Owned) -> None:
        """Such a ReplicaSet is no more."""
        self._ownership.gone(replica_set)

    def pod_seen(self, pod: Pod) -> None:
        """A pod with a model's label is there, or has changed."""
        known = self._pods.get(pod.uid)
        if known is not None and known.model != pod.model:
            self.pod_gone(known)
        self._pods[pod.uid] = pod
        self._ownership.pod_seen(pod.model, pod.uid, pod.owner)
        if pod.fresh:
            self._watched.add(pod.uid)
        if pod.startup_seconds is not None:
            # A pod that loses its readiness and gets it back has not started again.
            self._startups.setdefault(pod.uid, pod.startup_seconds)
            # It may never answer, and has taught how long a start takes.
            if pod.model in self._models:
                self._news.add(pod.model)

    def pod_gone(self, pod: Pod) -> None:
        """A pod is no more; the work that was offered to it still counts for a minute."""
        known = self._pods.pop(pod.uid, None)
        self._startups.pop(pod.uid, None)
        self._watched.discard(pod.uid)
        history = self._histories.pop(pod.uid, None)
        if known is None:
            return
        self._ownership.pod_gone(known.model, pod.uid)
        if history is not None:
            self._leave_behind(known, history.window())

    # What the poller reads and writes.

    def address(self, uid: str) -> str | None:
        """Where a pod listens, empty if nowhere yet, or if it is no model's; None when it is no
        more."""
        pod = self._pods.get(uid)
        if pod is None:
            return None
        return pod.address if self._ownership.is_of(pod.model, uid) else ""

    def model_of(self, uid: str) -> ModelKey:
        """The model whose label a pod that is there has."""
        return self._pods[uid].model

    def answered(self, uid: str, stats: SidecarStats, now: float) -> None:
        """A sidecar answered; its pod may have gone meanwhile."""
        pod = self._pods.get(uid)
        if pod is not None and self._ownership.is_of(pod.model, uid):
            history = self._histories.setdefault(uid, History())
            history.rows_per_second = self._remembered_rate(pod)
            self._leave_behind(pod, history.record(stats, now))
            if pod.model in self._models and now >= self._learn_at.get(pod.model, now):
                self._news.add(pod.model)
                self._learn_at[pod.model] = now + LEARN_SECONDS

    # What is asked.

    @property
    def counts(self) -> tuple[int, int]:
        """How many models there are, and pods of theirs."""
        return len(self._models), sum(self._ownership.sizes().values())

    def target(self, key: ModelKey) -> Target:
        """What a model's manifest asks for; raises `NotFound`."""
        model = self._models.get(key)
        if model is None:
            raise NotFound(f'batchedmodels.batchedmodel.dev "{key.name}" not found')
        return model.target

    def sight(self, key: ModelKey, now: float) -> ModelObservation:
        """What can be seen of a model."""
        departed = self._departed.get(key)
        return model_sight(
            [self._state(uid) for uid in self._ownership.pods_of(key)],
            () if departed is None else departed.windows,
            present=self._present(key),
            startup_seconds=self._startup_seconds(key),
            poll_seconds=seconds_between(self._ownership.sizes(), key, self.poll_seconds),
            sync_seconds=SYNC_SECONDS,
            now=now,
        )

    def models(self) -> list[Model]:
        """All there are."""
        return list(self._models.values())

    def capacity(self, key: ModelKey) -> Capacity | None:
        """What is known of a model's newest pods: learnt, or before that what its status says."""
        if key in self._news:
            self._news.discard(key)
            found = learnt(tuple(self._ready_pods(key)), self._known(key))
            if found is not None and key in self._models:
                # Remembered for the time when no pod is ready.
                self._learnt[key] = found
        return self._known(key)

    def _known(self, key: ModelKey) -> Capacity | None:
        model = self._models.get(key)
        return self._learnt.get(key) or (None if model is None else model.capacity)

    def _present(self, key: ModelKey) -> int | None:
        for uid, replicas in self._sizes.get(key, {}).items():
            if self._ownership.deployment_of(key, uid):
                return replicas
        return None

    def _state(self, uid: str) -> PodState:
        pod = self._pods[uid]
        return PodState(ready=pod.ready, leaving=pod.leaving, history=self._histories.get(uid))

    def _leave_behind(self, pod: Pod, window: Window | None) -> None:
        if window is not None and pod.model in self._models:
            self._departed.setdefault(pod.model, Departed()).add(pod.uid, window)

    def _startup_seconds(self, key: ModelKey) -> float:
        known = self.capacity(key)
        if known is None or known.startup_seconds is None:
            return UNKNOWN_STARTUP_SECONDS
        return known.startup_seconds

    def _remembered_rate(self, pod: Pod) -> float | None:
        known = self._known(pod.model)
        if known is None or known.revision != pod.revision:
            return None
        return known.rows_per_second

    def _ready_pods(self, key: ModelKey) -> Iterator[ReadyPod]:
        for uid in self._ownership.pods_of(key):
            pod, history = self._pods[uid], self._histories.get(uid)
            stats = None if history is None else history.stats
            if pod.ready and not pod.leaving:
                yield ReadyPod(
                    revision=pod.revision,
                    created=pod.created,
                    startup_seconds=self._startups.get(uid),
                    watched=uid in self._watched,
                    rows_per_second=None if stats is None else stats.rows_per_second,
                    shortest_latency_seconds=(
                        None if stats is None else stats.shortest_latency_seconds
                    ),
                )
