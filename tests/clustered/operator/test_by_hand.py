"""What people and other controllers do to a model's objects by hand: put right, or said."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from support.operator_process import OperatorProcess, PretendSidecar, run_pods
from support.operator_team import SIMULATED, Team
from support.plane import apply, until

_NIGHTLY = pytest.mark.nightly
_SCALED: dict[str, Any] = {**SIMULATED, "autoscaling": {"minReplicas": 1, "maxReplicas": 3}}
_ALIKE: dict[str, Any] = {
    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "minilm"},
    "minReplicas": 1,
    "maxReplicas": 9,
    "metrics": [
        {
            "type": "Resource",
            "resource": {
                "name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50},
            },
        }
    ],
}
_AN_EDITED_PART: dict[str, dict[str, Any]] = {
    "bounds": {"minReplicas": 2, "maxReplicas": 50},
    "target": {"scaleTargetRef": {"name": "other"}},
    "metrics": {"metrics": _ALIKE["metrics"]},
    "behaviour": {"behavior": None},
    "policies": {"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}},
}


def test_an_autoscaler_that_was_edited_is_put_right(running: OperatorProcess, team: Team) -> None:
    team.write(_SCALED)
    until("the autoscaler is there", lambda: team.has_all("hpa/minilm"))
    team.quiet()
    before = _autoscaler(team)
    for part, edit in _AN_EDITED_PART.items():
        team.patch("hpa/minilm", {"spec": edit})
        assert _autoscaler(team) != before or part != "policies"
        until(f"{part} are as before", lambda: _autoscaler(team) == before, 20)
    team.until("Reconciled", "True", "Applied")


@_NIGHTLY
def test_who_changes_a_child_after_every_repair_is_named_and_met_ever_less_often(
    running: OperatorProcess, team: Team
) -> None:
    team.write(_SCALED)
    until("the autoscaler is there", lambda: team.has_all("hpa/minilm"))
    team.quiet()
    with _insisting(team, {"maxReplicas": 50}) as changes:
        team.until("Reconciled", "False", "Contested")
        assert "HorizontalPodAutoscaler minilm is changed again by" in team.message("Reconciled")
        before = len(changes)
        time.sleep(20)
        # Once a second without an end to it; after eight in a row one waits for 16 s.
        assert len(changes) - before <= 4
    until("it is put right", lambda: _autoscaler(team)["maxReplicas"] == 3, 70)
    team.until("Reconciled", "True", "Applied", 80)


@_NIGHTLY
def test_a_second_autoscaler_of_somebody_elses_is_said(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write(_SCALED)
    until("the autoscaler is there", lambda: team.has_all("hpa/minilm"))
    metadata = {"name": "mine", "namespace": team.namespace}
    head = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    apply(team.plane, {**head, "metadata": metadata, "spec": _ALIKE})
    team.until("AutoscalingActive", "False", "SeveralAutoscalers")
    said = team.message("AutoscalingActive")
    assert f"{team.namespace}/mine" in said
    team.quiet()
    assert team.message("AutoscalingActive") == said, "in whatever order they are named"
    team.plane.kubectl("delete", "hpa/mine", f"--namespace={team.namespace}")
    until(
        "it is said no more",
        lambda: team.condition("AutoscalingActive")[1] not in ("", "SeveralAutoscalers"),
    )


def test_a_deployment_that_was_paused_goes_on(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write(SIMULATED)
    until("all is there", team.has_all)
    sidecar.settings_hash = team.settings()
    until("the pod is there", lambda: len(run_pods(team.plane, team.namespace, sidecar)) == 1)
    team.until("Ready", "True", "Serving")
    generation = team.get("deployment/minilm")["metadata"]["generation"]
    team.plane.kubectl("rollout", "pause", "deployment/minilm", f"--namespace={team.namespace}")
    until("it goes on", lambda: "paused" not in team.get("deployment/minilm")["spec"], 20)
    team.until("Reconciled", "True", "Applied")
    assert team.get("deployment/minilm")["metadata"]["generation"] == generation + 2
    team.write({"model": {"handler": "simulated", "env": {"A": "b"}}})
    until("another pod comes", lambda: len(team.get("replicasets")["items"]) == 2, 20)


def _autoscaler(team: Team) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = team.get("hpa/minilm")["spec"]
    return spec


@contextmanager
def _insisting(team: Team, wanted: Mapping[str, Any]) -> Iterator[list[float]]:
    """A controller that sets its own values whenever they are others; when it did."""
    changes: list[float] = []
    stop = threading.Event()

    def insist() -> None:
        while not stop.wait(0.1):
            spec = _autoscaler(team)
            if any(spec[name] != value for name, value in wanted.items()):
                team.patch("hpa/minilm", {"spec": wanted}, "--field-manager=insistent")
                changes.append(time.monotonic())

    thread = threading.Thread(target=insist)
    thread.start()
    try:
        yield changes
    finally:
        stop.set()
        thread.join()
