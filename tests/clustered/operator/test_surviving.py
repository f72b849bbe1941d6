"""What may happen to an operator and to all around it without anything being lost."""

import json
import time
from pathlib import Path

from batchedmodel_operator.conditions.findings import Reason
from cluster import ControlPlane
from support.operator_process import OTHER_LEASE, OperatorProcess, operator
from support.operator_team import CHILDREN, SIMULATED, Team
from support.plane import CRD_NAME, install_crd, until


def test_a_namespace_deleted_in_the_middle_goes_away(running: OperatorProcess, team: Team) -> None:
    team.write({**SIMULATED, "replicas": 3})
    until("the deployment is there", lambda: team.has_all("deployment/minilm"))
    team.plane.kubectl(
        "delete", "namespace", team.namespace, "--wait=true", "--timeout=50s", timeout_s=60
    )
    assert running.alive()


def test_the_process_answers_probes_and_stays_small(running: OperatorProcess) -> None:
    until("it leads", lambda: running.leads() is True)
    assert json.loads(running.told("healthz"))["longest_reconcile_seconds"] < 60
    assert "batchedmodel_operator_leader 1" in running.told("metrics")
    assert running.memory_megabytes() < 150
    print(f"the operator's memory: {running.memory_megabytes():.0f} MB")  # noqa: T201


def test_a_restart_writes_nothing_and_misses_nothing(
    running: OperatorProcess, plane: ControlPlane, team: Team, tmp_path: Path
) -> None:
    team.write({**SIMULATED, "autoscaling": {"maxReplicas": 3}})
    until("all are there", lambda: team.has_all(*CHILDREN, "hpa/minilm", "pdb/minilm"))
    # What the operator says of the numbers changes only as long as they do.
    team.until("Ready", "False", "ModelLoading")
    until("the pod is counted", lambda: _updated(team) == 1)
    # The HPA's controller looks every 15 s, and the status says what it found.
    until(
        "the HPA has looked",
        lambda: team.condition("AutoscalingActive")[1] not in ("", Reason.NOT_LOOKED),
    )
    team.quiet()
    before = team.written()
    assert before.keys() == {*CHILDREN, "hpa/minilm", "pdb/minilm", "batchedmodel/minilm"}
    assert all(entries for _, _, entries in before.values())
    # A second operator does what a restarted one does, while the first one goes on.
    # A Lease of its own lets it.
    with operator(plane, tmp_path, lease=OTHER_LEASE) as second:
        until("it has looked", lambda: f"{team.namespace}/minilm: applied" in second.log())
        team.quiet()
        assert team.written() == before
        assert second.stop() == 0
    assert "Traceback" not in second.log()
    team.patch("configmap/minilm-batching", {"data": {"batching.json": "{}"}})
    until("a write would have shown", lambda: team.written() != before)


def test_the_children_go_with_their_model(running: OperatorProcess, team: Team) -> None:
    """Not in the first file: the garbage collector learns of a new definition only every 30 s."""
    team.write({**SIMULATED, "autoscaling": {"maxReplicas": 3}})
    until("all are there", lambda: team.has_all(*CHILDREN, "hpa/minilm", "pdb/minilm"))
    team.plane.kubectl("delete", "batchedmodel/minilm", f"--namespace={team.namespace}")
    until("nothing is left", lambda: not team.left(), 90)


def test_a_definition_that_goes_and_comes_back_is_survived(
    plane: ControlPlane, team: Team, running: OperatorProcess
) -> None:
    team.write(SIMULATED)
    until("the deployment is there", lambda: team.has_all("deployment/minilm"))
    plane.kubectl("delete", f"crd/{CRD_NAME}", "--timeout=40s")
    until("the children go too", lambda: team.has_none("deployment/minilm"), 90)
    time.sleep(3)
    assert running.alive()
    install_crd(plane)
    team.write(SIMULATED)
    until("the deployment is there again", lambda: team.has_all("deployment/minilm"), 90)
    assert running.alive()


def _updated(team: Team) -> int:
    model = team.get("batchedmodel/minilm") or {}
    return int(model.get("status", {}).get("updatedReplicas", 0))
