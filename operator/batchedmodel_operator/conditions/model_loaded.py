"""`ModelLoaded`: whether the newest pods have the model in memory.

By the sidecars' readiness, which is that of the model; while no pod is ready, by what containers
and sidecars say.
"""

from typing import Final

from batchedmodel_contract.kubernetes.names import FETCH_CONTAINER
from batchedmodel_contract.processes.server_api import ModelState
from batchedmodel_operator.conditions.check import Condition, Finding, no, unknown, yes
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.reconcile.pod_failures import PodFailureReason
from batchedmodel_operator.reconcile.state import Pod

_BEFORE_A_NODE: Final = frozenset(
    {
        PodFailureReason.QUOTA_EXCEEDED,
        PodFailureReason.INVALID_POD_TEMPLATE,
        PodFailureReason.MISSING_SERVICE_ACCOUNT,
        PodFailureReason.INSUFFICIENT_ACCELERATOR,
        PodFailureReason.VOLUME_NOT_BOUND,
        PodFailureReason.CLAIM_NOT_ALLOCATED,
        PodFailureReason.UNSCHEDULABLE,
        PodFailureReason.NODE_AFFINITY_MISMATCH,
        PodFailureReason.TAINT_NOT_TOLERATED,
    }
)
"""Troubles that say nothing of the model."""
_ILL: Final = tuple(f"the model is {state}" for state in (ModelState.HUNG, ModelState.LOST))


def _a_pod_has_it(view: View) -> Finding | None:
    loaded = sum(pod.ready for pod in view.living)
    if not loaded:
        return None
    return yes(Reason.LOADED, f"{loaded} of {len(view.living)} pods have loaded their model")


def _there_are_no_pods(view: View) -> Finding | None:
    return None if view.living else unknown(Reason.NO_PODS, "there are no pods to load it")


def _pods_have_no_node(view: View) -> Finding | None:
    if view.diagnosis is None or view.diagnosis.trouble not in _BEFORE_A_NODE:
        return None
    return unknown(Reason.NOT_STARTED, view.diagnosis.message)


def _containers_are_in_trouble(view: View) -> Finding | None:
    if view.diagnosis is None:
        return None
    return no(view.diagnosis.trouble, view.diagnosis.message)


def _it_is_ill(view: View) -> Finding | None:
    for pod in view.living:
        said = view.observed.memory.startups.get(pod.uid, "")
        if said.startswith(_ILL):
            return no(Reason.HEALTH_CHECK_FAILING, f"pod {pod.name}: {said}")
    return None


def _files_are_fetched(view: View) -> Finding | None:
    fetching = sum(_is_fetching(pod) for pod in view.living)
    if not fetching:
        return None
    return no(Reason.DOWNLOADING, f"{fetching} pods fetch the model's files")


def _pods_load(view: View) -> Finding | None:
    return no(Reason.MODEL_LOADING, f"{len(view.living)} pods load their model")


def _is_fetching(pod: Pod) -> bool:
    return any(
        container["name"] == FETCH_CONTAINER and "running" in (container.get("state") or {})
        for container in (pod.body.get("status") or {}).get("initContainerStatuses") or ()
    )


MODEL_LOADED: Final = Condition(
    type="ModelLoaded",
    checks=(
        _a_pod_has_it,
        _there_are_no_pods,
        _pods_have_no_node,
        _containers_are_in_trouble,
        _it_is_ill,
        _files_are_fetched,
        _pods_load,
    ),
)
