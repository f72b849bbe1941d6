"""A BatchedModelClass on a real API server: its edits reach the models that name it."""

import pytest

from support.operator_process import OperatorProcess
from support.operator_team import SIMULATED, Team
from support.plane import apply, until

pytestmark = pytest.mark.usefixtures("running")


def _write_class(team: Team, **spec: object) -> None:
    head = {"apiVersion": "batchedmodel.dev/v1alpha1", "kind": "BatchedModelClass"}
    apply(team.plane, {**head, "metadata": {"name": "gpu"}, "spec": spec})


def test_edits_of_a_class_reach_the_models_that_name_it_within_seconds(
    running: OperatorProcess, team: Team
) -> None:
    team.write({**SIMULATED, "className": "gpu"})
    team.until("Reconciled", "False", "ClassNotFound")
    assert "there is no BatchedModelClass gpu" in team.message("Ready")
    _write_class(team, batching={"maxBatchSize": 16})
    # Nothing but the watch of classes brings these before ten minutes are over.
    team.until("Reconciled", "True", "Applied")
    until("the settings are written", lambda: '"max_batch_size": 16' in team.settings_file())
    before = team.get("deployment/minilm")["spec"]["template"]
    _write_class(team, batching={"maxBatchSize": 64})
    until("they are edited", lambda: '"max_batch_size": 64' in team.settings_file())
    assert team.get("deployment/minilm")["spec"]["template"] == before
    _write_class(team, pod={"nodeSelector": {"disk": "ssd"}})

    def placed() -> bool:
        template = team.get("deployment/minilm")["spec"]["template"]
        return bool(template["spec"].get("nodeSelector") == {"disk": "ssd"})

    until("pods are asked for elsewhere", placed)
    team.plane.kubectl("delete", "batchedmodelclass", "gpu")
    team.until("Reconciled", "False", "ClassNotFound")
    assert placed()
