"""Why a model does not serve, as its conditions say it."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from support.operator_process import OperatorProcess, PretendSidecar, run_pods
from support.operator_team import SIMULATED, Team
from support.plane import apply, set_pod_status, until

_TERM = {"matchExpressions": [{"key": "zone", "operator": "Sometimes"}]}
_NEVER = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]}}
NONSENSE: dict[str, Any] = {**SIMULATED, "pod": {"affinity": {"nodeAffinity": _NEVER}}}
"""Of the right form, so that only who takes the Deployment refuses it."""


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (
            "ImagePullFailed",
            {
                "containerStatuses": [
                    {
                        "name": "model",
                        "image": "registry.example/none:1",
                        "imageID": "",
                        "ready": False,
                        "restartCount": 0,
                        "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}},
                    }
                ]
            },
        ),
        (
            "InsufficientAccelerator",
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
                    }
                ]
            },
        ),
    ],
)
def test_why_a_pod_does_not_start_stands_in_ready(
    running: OperatorProcess, team: Team, reason: str, status: Mapping[str, Any]
) -> None:
    team.write({**SIMULATED, "accelerator": {}})
    team.until("Ready", "False", "ModelLoading")
    (pod,) = team.get("pods")["items"]
    began = time.monotonic()
    set_pod_status(team.plane, team.namespace, pod["metadata"]["name"], status)
    team.until("Ready", "False", reason)
    assert time.monotonic() - began < 5


def test_a_model_that_cannot_be_loaded_stands_in_ready(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write(SIMULATED)
    until("the child is there", team.has_all)
    sidecar.settings_hash = team.settings()
    until(
        "the pod is there",
        lambda: len(run_pods(team.plane, team.namespace, sidecar, loading=True)) == 1,
    )
    team.until("Ready", "False", "ModelLoading")
    team.quiet()
    # No event tells of it.
    sidecar.model_startup = "the model is FAILED: no file: model.bin"
    team.until("Ready", "False", "ModelFailed")
    team.quiet()


def test_a_quota_that_has_no_room_is_named(running: OperatorProcess, team: Team) -> None:
    metadata = {"name": "none", "namespace": team.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    apply(team.plane, {**quota, "spec": {"hard": {"pods": "0"}}})
    until("the quota counts", lambda: "used" in team.get("quota/none").get("status", {}))
    team.write(SIMULATED)
    team.until("Ready", "False", "QuotaExceeded")
    assert team.condition("Reconciled") == ("True", "Applied")


def test_an_object_that_kubernetes_refuses_is_named_and_the_last_good_stays(
    running: OperatorProcess, team: Team
) -> None:
    team.write(SIMULATED)
    team.until("Reconciled", "True", "Applied")
    before = team.get("deployment/minilm")["spec"]["template"]
    team.write(NONSENSE)
    team.until("Reconciled", "False", "InvalidPodTemplate")
    sentence = team.message("Reconciled")
    assert sentence.startswith("Deployment minilm: ")
    assert "nodeAffinity" in sentence, "the API server's own words"
    assert team.condition("Ready") == ("False", "ReconcileFailed")
    assert team.get("deployment/minilm")["spec"]["template"] == before
    team.write(SIMULATED)
    team.until("Reconciled", "True", "Applied")


def test_events_tell_of_changes_and_not_of_what_lasts(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write(SIMULATED)
    until("the child is there", team.has_all)
    sidecar.settings_hash = team.settings()
    until("the pod is there", lambda: len(run_pods(team.plane, team.namespace, sidecar)) == 1)
    team.until("Ready", "True", "Serving")
    until("it is announced", lambda: ("Normal", "Serving") in team.events())
    assert ("Normal", "Applied") in team.events()
    team.quiet()
    before = sorted(team.events())
    for number in range(5):
        # Each makes several looks, and a new generation of every condition.
        team.write({**SIMULATED, "batching": {"maxBatchSize": number + 1}})
        time.sleep(0.5)
    team.quiet()
    assert sorted(team.events()) == before
    team.write(NONSENSE)
    until("it is announced", lambda: ("Warning", "InvalidPodTemplate") in team.events())
