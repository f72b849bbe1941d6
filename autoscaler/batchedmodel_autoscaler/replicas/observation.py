"""What can be seen of a model, from what its pods' sidecars told.

Called by the autoscaler's state and by the simulated loop; `formula` judges it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from batchedmodel_autoscaler.replicas.formula import Demand, ModelObservation, PodObservation
from batchedmodel_autoscaler.replicas.windows import (
    PANIC_SECONDS,
    SHORTEST_SECONDS,
    History,
    Window,
    covered_seconds,
)
from batchedmodel_contract.processes.stats import SidecarStats

_POLLS_MISSED: Final = 3
_GRACE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """One pod: what the cluster says of it, and what it told itself."""

    ready: bool
    leaving: bool
    history: History


def model_sight(
    pods: Sequence[PodState],
    departed: Sequence[Window],
    *,
    present: int | None,
    startup_seconds: float,
    poll_seconds: float,
    sync_seconds: float,
    now: float,
) -> ModelObservation:
    """One model; `departed` is the work of pods and of runs of sidecars since gone."""
    left = [window for window in departed if not window.over(now)]
    windows = [pod.history.window() for pod in pods]
    told = [window for window in windows if window is not None]
    seconds = max(SHORTEST_SECONDS, covered_seconds([*left, *told], now))
    stale = _POLLS_MISSED * poll_seconds + _GRACE_SECONDS
    return ModelObservation(
        present=present,
        pods=tuple(
            _pod(pod, window, seconds, stale, now)
            for pod, window in zip(pods, windows, strict=True)
        ),
        departed_rate=sum(window.work(now) for window in left) / seconds,
        departed_panic_rate=sum(window.work(now, PANIC_SECONDS) for window in left) / PANIC_SECONDS,
        reaction_seconds=startup_seconds + poll_seconds + sync_seconds,
    )


def _pod(
    pod: PodState, window: Window | None, seconds: float, stale: float, now: float
) -> PodObservation:
    expected, history = pod.ready and not pod.leaving, pod.history
    if history.stats is None:
        return PodObservation(expected=expected, answers=False, now=Demand(), last=Demand())
    asked = last = Demand()
    if window is not None:
        asked = Demand(
            work_rate=window.work(now) / seconds,
            panic_rate=window.panic_rate,
            panic_variance=window.panic_variance,
        )
        # Nobody has seen a silent pod's panic window: it counts as what it told of the minute.
        last = Demand(work_rate=window.rate, panic_rate=window.rate)
    if now - history.received > stale:
        if window is not None:
            panic = window.work(now, PANIC_SECONDS) / PANIC_SECONDS
            asked = Demand(work_rate=asked.work_rate, panic_rate=panic)
        last = _waiting(history, history.stats, last)
        return PodObservation(expected=expected, answers=False, now=asked, last=last)
    # What waits in a pod that leaves is worked off by that pod itself.
    if not pod.leaving:
        asked = _waiting(history, history.stats, asked)
    return PodObservation(expected=expected, answers=True, now=asked, last=asked)


def _waiting(history: History, stats: SidecarStats, asked: Demand) -> Demand:
    """`asked`, and what waits in the pod."""
    gauges = history.gauges()
    asked = replace(
        asked,
        queue_length=gauges.queue_length,
        outstanding=gauges.outstanding,
        queue_wait=gauges.queue_wait,
    )
    if stats.profile_known:
        return replace(asked, backlog=gauges.backlog_work)
    if history.batch_seconds is not None:
        return replace(asked, backlog=gauges.backlog_work * history.batch_seconds)
    full = max(1, stats.max_batch_size * stats.max_concurrent_batches)
    return replace(asked, batches=gauges.outstanding / full)
