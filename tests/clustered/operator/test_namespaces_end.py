"""A namespace whose quota is used up, or that is being deleted: no others wait, nothing spins."""

import time
from collections.abc import Callable

import pytest

from cluster import ControlPlane
from support.faulty_proxy import FaultyProxy
from support.operator_process import OperatorProcess
from support.operator_team import SIMULATED, Team
from support.plane import apply, read, until

_NIGHTLY = pytest.mark.nightly
_SECONDS = 10.0
_LOOK = 12
"""Requests of one look, and some to spare."""


@_NIGHTLY
@pytest.mark.parametrize(
    "what",
    [
        "count/deployments.apps",
        "count/configmaps",
        "count/services",
        "count/controllerrevisions.apps",
    ],
)
def test_a_quota_on_objects_is_named_and_tried_ever_less_often(
    behind: OperatorProcess,
    proxy: FaultyProxy,
    team: Team,
    another_team: Callable[[], Team],
    what: str,
) -> None:
    metadata = {"name": "none", "namespace": team.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    apply(team.plane, {**quota, "spec": {"hard": {what: "0"}}})
    until("the quota counts", lambda: "used" in team.get("quota/none").get("status", {}))
    team.write(SIMULATED)
    team.until("Reconciled", "False", "QuotaExceeded")
    assert f"exceeded quota: none, requested: {what}=1" in team.message("Reconciled")
    assert team.condition("Ready") == ("False", "ReconcileFailed")
    # Tries come after 1, 2, 4, 8 and more seconds.
    time.sleep(4)
    began = time.monotonic()
    neighbour = another_team()
    neighbour.write(SIMULATED)
    until("another namespace's model has all", neighbour.has_all, 10)
    time.sleep(max(0.0, began + _SECONDS - time.monotonic()))
    asked = [one for one in proxy.since(began) if f"/{team.namespace}/" in one.path]
    print(f"{what}: {len(asked)} requests in {_SECONDS:g} s")  # noqa: T201
    assert len(asked) <= 2 * _LOOK
    team.plane.kubectl("delete", "quota/none", f"--namespace={team.namespace}")
    team.until("Reconciled", "True", "Applied")


@_NIGHTLY
def test_a_namespace_that_is_deleted_amid_a_rollout_is_left_alone_and_forgotten(
    behind: OperatorProcess, proxy: FaultyProxy, plane: ControlPlane, team: Team
) -> None:
    before = _known(behind)
    team.write(SIMULATED)
    team.until("Reconciled", "True", "Applied")
    assert _known(behind) == before + 1
    plane.stop_program("kube-controller-manager")
    try:
        # It stays as it is until somebody takes its objects away.
        plane.kubectl("delete", "namespace", team.namespace, "--wait=false")
        team.write({"model": {"handler": "simulated", "env": {"A": "b"}}})
        until("it is said", lambda: "it is being deleted, or its namespace" in behind.log())
        began = time.monotonic()
        for number in range(20):
            team.patch("deployment/minilm", {"metadata": {"annotations": {"by": str(number)}}})
            time.sleep(0.5)
        asked = [one for one in proxy.since(began) if f"/{team.namespace}/" in one.path]
        print(f"{len(asked)} requests in {time.monotonic() - began:.0f} s")  # noqa: T201
        assert len(asked) <= 20 + _LOOK
    finally:
        plane.start_program("kube-controller-manager")
    until("it is gone", lambda: read(plane, "", f"namespace/{team.namespace}") is None, 120)
    # With those that earlier tests have left.
    until("it is forgotten", lambda: _known(behind) <= before, 60)
    assert "failed unexpectedly" not in behind.log()


def _known(behind: OperatorProcess) -> int:
    """How many BatchedModels the operator keeps an eye on."""
    (line,) = (
        one
        for one in behind.told("metrics").splitlines()
        if one.startswith("batchedmodel_operator_keys ")
    )
    return int(line.split()[1])
