"""All models, their pods and what the pods' sidecars have told: the autoscaler's whole memory.

Owned by the event loop's one thread. The caches of `informer` write the objects, `poller` writes
the answers, `server` asks. Times are arguments, monotonic seconds; decides nothing by itself.
"""

import statistics
from typing import Final

from batchedmodel_autoscaler.errors import NotFound
from batchedmodel_autoscaler.objects import Model, ModelKey, Pod, Size
from batchedmodel_contract.stats import SidecarStats
from batchedmodel_scheduling.scaling.formula import ModelSight, Target
from batchedmodel_scheduling.scaling.hpa import SYNC_SECONDS
from batchedmodel_scheduling.scaling.sight import PodState, model_sight
from batchedmodel_scheduling.scaling.windows import WINDOW_SECONDS, History, Window

UNKNOWN_STARTUP_SECONDS: Final = 30.0
"""Assumed until a pod of the model has got ready."""
LONGEST_STARTUP_SECONDS: Final = 600.0
"""A longer one is more often a pod that was ready before than a start."""
MOST_POLLS_PER_SECOND: Final = 600.0
"""A third of a core."""


class Fleet:
    """The memory."""

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._models: dict[ModelKey, Model] = {}
        self._sizes: dict[ModelKey, int] = {}
        self._pods: dict[str, Pod] = {}
        self._pods_of: dict[ModelKey, set[str]] = {}
        self._histories: dict[str, History] = {}
        self._startups: dict[str, float] = {}
        self._learnt_startup: dict[ModelKey, float] = {}
        self._departed: dict[ModelKey, list[Window]] = {}

    # What the caches write.

    def model_seen(self, model: Model) -> None:
        """A model is there, or has changed."""
        self._models[model.key] = model

    def model_gone(self, model: Model) -> None:
        """A model is no more."""
        self._models.pop(model.key, None)
        self._learnt_startup.pop(model.key, None)
        self._departed.pop(model.key, None)

    def size_seen(self, size: Size) -> None:
        """A model's Deployment is there, or has changed."""
        self._sizes[size.model] = size.replicas

    def size_gone(self, size: Size) -> None:
        """A model's Deployment is no more."""
        self._sizes.pop(size.model, None)

    def pod_seen(self, pod: Pod) -> None:
        """A pod is there, or has changed."""
        known = self._pods.get(pod.uid)
        if known is not None and known.model != pod.model:
            self.pod_gone(known)
        self._pods[pod.uid] = pod
        self._pods_of.setdefault(pod.model, set()).add(pod.uid)
        if pod.startup_seconds is not None:
            # A pod that loses its readiness and gets it back has not started again.
            first = self._startups.get(pod.uid, LONGEST_STARTUP_SECONDS)
            self._startups[pod.uid] = min(first, pod.startup_seconds)

    def pod_gone(self, pod: Pod) -> None:
        """A pod is no more; the work that was offered to it still counts for a minute."""
        known = self._pods.pop(pod.uid, None)
        self._startups.pop(pod.uid, None)
        history = self._histories.pop(pod.uid, None)
        if known is None:
            return
        of_model = self._pods_of[known.model]
        of_model.discard(pod.uid)
        if not of_model:
            del self._pods_of[known.model]
        if history is not None:
            self._leave_behind(known.model, history.window())

    # What the poller reads and writes.

    @property
    def poll_seconds(self) -> float:
        """Time between two questions to one sidecar, so that very many pods still cost little."""
        return max(self._poll_seconds, len(self._pods) / MOST_POLLS_PER_SECOND)

    def address(self, uid: str) -> str | None:
        """Where a pod listens, empty if nowhere yet; None when it is no more."""
        pod = self._pods.get(uid)
        return None if pod is None else pod.address

    def answered(self, uid: str, stats: SidecarStats, now: float) -> None:
        """A sidecar answered; its pod may have gone meanwhile."""
        pod = self._pods.get(uid)
        if pod is not None:
            history = self._histories.setdefault(uid, History())
            self._leave_behind(pod.model, history.record(stats, now))

    # What is asked.

    @property
    def counts(self) -> tuple[int, int]:
        """How many models and pods there are."""
        return len(self._models), len(self._pods)

    def target(self, key: ModelKey) -> Target:
        """What a model's manifest asks for; raises `NotFound`."""
        model = self._models.get(key)
        if model is None:
            raise NotFound(f'batchedmodels.batchedmodel.dev "{key.name}" not found')
        return model.target

    def sight(self, key: ModelKey, now: float) -> ModelSight:
        """What can be seen of a model."""
        uids = self._pods_of.get(key, ())
        return model_sight(
            [self._state(uid) for uid in uids],
            self._departed.get(key, ()),
            present=self._sizes.get(key),
            startup_seconds=self._startup_seconds(key),
            poll_seconds=self.poll_seconds,
            sync_seconds=SYNC_SECONDS,
            now=now,
        )

    def _state(self, uid: str) -> PodState:
        pod = self._pods[uid]
        return PodState(ready=pod.ready, leaving=pod.leaving, history=self._histories.get(uid))

    def _leave_behind(self, key: ModelKey, window: Window | None) -> None:
        if window is not None and key in self._models:
            left = self._departed.setdefault(key, [])
            left[:] = [one for one in left if window.received - one.received < WINDOW_SECONDS]
            left.append(window)

    def _startup_seconds(self, key: ModelKey) -> float:
        pods = self._pods_of.get(key, ())
        known = [self._startups[uid] for uid in pods if uid in self._startups]
        if known:
            # Remembered for the time when no pod is ready.
            self._learnt_startup[key] = statistics.median_low(known)
        return self._learnt_startup.get(key, UNKNOWN_STARTUP_SECONDS)
