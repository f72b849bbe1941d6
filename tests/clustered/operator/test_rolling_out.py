"""Rollouts that meet trouble, with the controllers of a real control plane.

There is no node: tests say what becomes of each pod.
"""

import copy
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from cluster import CommandFailed
from support.operator_process import CRASHING, OperatorProcess, PretendSidecar, run_pods
from support.operator_team import SIMULATED, Team
from support.plane import set_pod_status, until

ENVIRONMENT = {"LEVEL": "2"}
GOOD: dict[str, Any] = {**SIMULATED, "accelerator": {}}
BETTER: dict[str, Any] = {**GOOD, "model": {"handler": "simulated", "env": ENVIRONMENT}}
SOON: dict[str, Any] = {"rollout": {"switchAfterSeconds": 60}}
SCALED: dict[str, Any] = {"autoscaling": {"minReplicas": 2, "maxReplicas": 5}}
LACKING: dict[str, Any] = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
    ]
}


def test_a_revision_that_crashes_gives_way_to_the_last_good_one(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write(GOOD | SCALED)
    until("the autoscaler is there", lambda: team.has_all("hpa/minilm"))
    team.plane.kubectl("scale", "deployment/minilm", "--replicas=3", f"-n={team.namespace}")
    old = _serve(team, sidecar, 3)
    before = _template(team)

    team.write(BETTER | SCALED)
    until("a pod of the new revision is there", lambda: len(_others(team, old)) == 1)
    (new,) = _others(team, old)
    began = time.monotonic()
    set_pod_status(team.plane, team.namespace, new, CRASHING)
    team.until("Degraded", "True", "RolledBack")
    print(f"taken back after {time.monotonic() - began:.1f} s")  # noqa: T201
    until("its pod is gone", lambda: _pods(team) == old)
    team.until("Progressing", "False", "RolledBack")
    team.until("Ready", "False", "RolloutFailed")
    assert team.condition("Available") == ("True", "MinimumReplicasAvailable")
    assert _template(team) == before
    assert team.get("deployment/minilm")["spec"]["replicas"] == 3, "it is the autoscaler's"
    sentence = team.message("Ready")
    assert "CrashLooping" in sentence
    assert "token=*** was right" in sentence
    assert sentence.endswith("3 pods of an earlier revision serve")
    until("it is announced", lambda: ("Warning", "RolledBack") in team.events())
    team.quiet()
    assert team.events().count(("Warning", "RolledBack")) == 1

    # What does not matter to pods tries nothing again.
    team.write({**BETTER, **SCALED, "batching": {"maxBatchSize": 8}})
    until("the settings are written", lambda: team.settings() != sidecar.settings_hash)
    sidecar.settings_hash = team.settings()
    team.until("Progressing", "False", "RolledBack")
    assert (_template(team), _pods(team)) == (before, old)

    another = copy.deepcopy(BETTER | SCALED)
    another["model"]["env"]["LEVEL"] = "3"
    team.write(another)
    team.until("Degraded", "False", "AsExpected")
    until("another one is tried", lambda: _template(team) != before)
    sidecar.settings_hash = team.settings()
    _roll_out(team, sidecar)
    team.until("Ready", "True", "Serving")


def test_a_surge_without_an_accelerator_goes_on_in_place(
    running: OperatorProcess, team: Team, sidecar: PretendSidecar
) -> None:
    team.write({**GOOD, **SOON, "replicas": 2})
    old = _serve(team, sidecar, 2)
    assert _budget(team) == {"maxSurge": 1, "maxUnavailable": 0}
    team.write({**BETTER, **SOON, "replicas": 2})
    until("a pod of the new revision is there", lambda: len(_others(team, old)) == 1)
    (new,) = _others(team, old)
    began = time.monotonic()
    # As if another operator had already waited for most of the time.
    since = (datetime.now(UTC) - timedelta(seconds=40)).strftime("%Y-%m-%dT%H:%M:%SZ")
    [scheduled] = LACKING["conditions"]
    lacking = {"conditions": [{**scheduled, "lastTransitionTime": since}]}
    set_pod_status(team.plane, team.namespace, new, lacking)
    team.until("CapacityAvailable", "False", "InsufficientAccelerator")
    assert old < _pods(team), "both serve on while it waits"
    team.until("Progressing", "True", "SwitchedToInPlace", 100)
    waited = time.monotonic() - began
    print(f"in place after {waited:.1f} s")  # noqa: T201
    assert 19 < waited < 35
    # The status says so first: it must be known to an operator that is killed in between.
    in_place = {"maxSurge": 0, "maxUnavailable": 1}
    until("the rollout goes by it", lambda: _budget(team) == in_place)
    until("an old pod has made room", lambda: len(_pods(team) & old) == 1)
    assert _rollout(team)["strategyLatched"] == "InPlace"
    assert "spec.rollout.switchAfterSeconds" in team.message("Progressing")
    assert team.events().count(("Warning", "SwitchedToInPlace")) == 1
    _roll_out(team, sidecar)
    assert not _pods(team) & old
    team.quiet()
    assert team.events().count(("Warning", "SwitchedToInPlace")) == 1


def _serve(team: Team, sidecar: PretendSidecar, count: int) -> set[str]:
    """All pods are there and ready, and their revision counts as good; their names."""
    until("the settings are there", lambda: team.has_all("configmap/minilm-batching"))
    sidecar.settings_hash = team.settings()
    until("all pods are there", lambda: len(_pods(team)) == count)
    _roll_out(team, sidecar)
    team.until("Ready", "True", "Serving")
    target = _rollout(team)["targetRevision"]
    until("it counts as good", lambda: _rollout(team).get("goodRevision") == target)
    return _pods(team)


def _roll_out(team: Team, sidecar: PretendSidecar) -> None:
    """Whatever pods come become ready, until no more come."""

    def complete() -> bool:
        try:
            run_pods(team.plane, team.namespace, sidecar)
        except CommandFailed:  # a pod went between two looks
            return False
        return team.condition("Progressing") == ("False", "Complete")

    until("the rollout comes to its end", complete, 60)


def _pods(team: Team) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in team.get("pods")["items"]
        if "deletionTimestamp" not in pod["metadata"]
    }


def _others(team: Team, old: set[str]) -> list[str]:
    return sorted(_pods(team) - old)


def _template(team: Team) -> Any:
    return team.get("deployment/minilm")["spec"]["template"]


def _budget(team: Team) -> Any:
    return team.get("deployment/minilm")["spec"]["strategy"]["rollingUpdate"]


def _rollout(team: Team) -> dict[str, str]:
    found: dict[str, str] = team.get("batchedmodel/minilm")["status"]["rollout"]
    return found
