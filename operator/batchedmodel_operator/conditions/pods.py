"""Conditions about pods: CapacityAvailable and ModelLoaded. Pure.

In each function the first case that applies decides.
"""

from typing import Final

from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_kube.names import FETCH_CONTAINER
from batchedmodel_operator.conditions.findings import Finding, Reason, no, unknown, yes
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.observed.pod_failures import (
    PodFailureReason,
    Stage,
    diagnose,
    refused_for,
    unscheduled,
    worst,
)
from batchedmodel_operator.observed.state import Pod, condition

_ILL: Final = tuple(f"the model is {state}" for state in (ModelState.HUNG, ModelState.LOST))


def capacity_available(view: View) -> Finding:
    """Whether every pod that is wanted is let in and finds a node."""
    refusal = refused_for(view.observed.deployment)
    if refusal is not None:
        return no(refusal.trouble, refusal.message)
    pods = [pod for pod in view.observed.pods if not pod.deleting]
    found = worst(unscheduled(view.observed.model.spec, pod) for pod in pods)
    if found is not None:
        return no(found.trouble, found.message)
    if not pods:
        return unknown(Reason.NO_PODS, "there are no pods to place")
    waiting = sum(not _is_placed(pod) for pod in pods)
    if waiting:
        return unknown(Reason.WAITING_FOR_SCHEDULER, f"{waiting} pods are still to be placed")
    return yes(Reason.SCHEDULED, "every pod has a node")


def model_loaded(view: View) -> Finding:
    """Whether the newest pods have the model in memory.

    A pod's readiness says so. While no pod is ready, containers and sidecars say how far it is.
    """
    living, spec, startups = view.living, view.observed.model.spec, view.observed.memory.startups
    # Why others are not let in says nothing of these.
    diagnosis = diagnose(spec, None, living, startups)
    loaded = sum(pod.ready for pod in living)
    if loaded:
        return yes(Reason.LOADED, f"{loaded} of {len(living)} pods have loaded their model")
    if not living:
        return unknown(Reason.NO_PODS, "there are no pods to load it")
    if diagnosis is not None and diagnosis.trouble.stage is Stage.UNPLACED:
        return unknown(Reason.NOT_STARTED, diagnosis.message)
    if diagnosis is not None:
        return no(diagnosis.trouble, diagnosis.message)
    if hung := hung_or_lost(view):
        return no(PodFailureReason.HEALTH_CHECK_FAILING, hung)
    fetching = sum(_is_fetching(pod) for pod in living)
    if fetching:
        return no(Reason.DOWNLOADING, f"{fetching} pods fetch the model's files")
    return no(Reason.MODEL_LOADING, f"{len(living)} pods load their model")


def hung_or_lost(view: View) -> str:
    """What the first sidecar says of a model that started and answers no more; else nothing."""
    told = ((pod.name, view.observed.memory.startups.get(pod.uid, "")) for pod in view.living)
    return next((f"pod {name}: {said}" for name, said in told if said.startswith(_ILL)), "")


def _is_placed(pod: Pod) -> bool:
    scheduled = condition(pod.body.get("status") or {}, "PodScheduled").get("status") == "True"
    return scheduled or pod.ready or pod.sidecar_started


def _is_fetching(pod: Pod) -> bool:
    return any(
        container["name"] == FETCH_CONTAINER and "running" in (container.get("state") or {})
        for container in (pod.body.get("status") or {}).get("initContainerStatuses") or ()
    )
