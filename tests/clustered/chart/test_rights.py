"""The rights that the chart gives, replayed against all that its processes ask for in their life.

Whatever an account may do and never does is a right too many; whatever it asks for and may not do
is one too few. The story goes through everything that makes the operator write.
"""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from batchedmodel_kube.names import NAME_LABEL
from cluster import ControlPlane
from support.operator_process import PretendSidecar, run_pods
from support.operator_team import SIMULATED, Team
from support.plane import apply, sidecar_address, until
from support.release import Release, is_there, remove_namespace
from support.rights import Asked, asked, granted

_HOME, _TEAM = "rights-home", "rights-team"
_API_SERVICE = "apiservice/v1beta2.custom.metrics.k8s.io"
_PARTS = ("operator", "autoscaler")


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane) -> Iterator[Release]:
    found = Release(control_plane, _HOME)
    found.install()
    yield found
    found.uninstall()
    remove_namespace(control_plane, _HOME)


@pytest.fixture(scope="module")
def rules(release: Release) -> Mapping[str, list[dict[str, Any]]]:
    """Of the chart's roles, before the release goes."""
    return {part: release.rules(part) for part in _PARTS}


@pytest.fixture(scope="module")
def story(
    release: Release,
    rules: Mapping[str, list[dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, Asked]:
    """What both have asked for, once they have seen everything and ended."""
    folder = tmp_path_factory.mktemp("rights")
    plane = release.plane
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _TEAM}})
    with release.autoscaler(folder / "autoscaler"):
        with release.operator(folder / "first") as first:
            until("it leads", lambda: first.leads() is True)
            _life_of_a_model(Team(plane, _TEAM))
            with release.operator(folder / "second") as second:
                first.stop()
                until("the other leads", lambda: second.leads() is True)
                _end_of_a_model(Team(plane, _TEAM))
        remove_namespace(plane, _TEAM)
        # As an uninstallation does, which the autoscaler must notice.
        name = f"{release.prefix}-autoscaler"
        plane.kubectl("delete", "deployment", name, f"--namespace={_HOME}")
        until("its registration is gone", lambda: not is_there(plane, _API_SERVICE))
    until("what they watched is written down", lambda: all(_watched(release)))
    time.sleep(1)  # the watches of a process end together, but not in one moment
    return {part: asked(plane.audit_log, release.user(part)) for part in _PARTS}


def _watched(release: Release) -> Iterator[bool]:
    """Whether a watch of each is in the log, which comes there when it has ended."""
    for part in _PARTS:
        used = asked(release.plane.audit_log, release.user(part)).used
        yield any(right.verb == "watch" for right in used)


_CLASS = {
    "apiVersion": "batchedmodel.dev/v1alpha1",
    "kind": "BatchedModelClass",
    "metadata": {"name": "rights"},
    "spec": {},
}


def _life_of_a_model(team: Team) -> None:
    sidecar = PretendSidecar(sidecar_address(team.plane, 5))
    try:
        team.write({**SIMULATED, "replicas": 2})
        until("all are there", lambda: team.has_all("deployment/minilm", "pdb/minilm"))
        until("its pods are made", lambda: len(team.get("pods")["items"]) == 2)
        run_pods(team.plane, team.namespace, sidecar)
        team.until("Ready", "True", "Serving")
        until("how its pods start is learnt", lambda: "capacity" in _status(team), 60)
        edited = {**SIMULATED, "replicas": 3, "batching": {"maxBatchSize": 7}}
        team.write({**edited, "service": {"port": 81}, "disruption": {"maxUnavailable": 2}})
        until("the settings are written", lambda: '"max_batch_size": 7' in team.settings_file())
        until("the pods are told", lambda: _annotated(team))
        team.plane.kubectl("scale", "bm/minilm", "--replicas=4", f"--namespace={team.namespace}")
        until("it is scaled", lambda: _replicas(team) == 4)
        apply(team.plane, _CLASS)
        team.write({**SIMULATED, "className": "rights", "autoscaling": {"maxReplicas": 3}})
        until("it has an autoscaler", lambda: team.has_all("hpa/minilm"))
        team.write({**SIMULATED, "autoscaling": {"maxReplicas": 5}})
        until("which is edited", lambda: team.get("hpa/minilm")["spec"]["maxReplicas"] == 5)
        team.write({**SIMULATED, "autoscaling": {"maxReplicas": 5}, "suspend": True})
        until("it rests", lambda: _replicas(team) == 0)
    finally:
        sidecar.close()


def _end_of_a_model(team: Team) -> None:
    team.write({**SIMULATED, "replicas": 1})
    until("nobody scales it", lambda: team.has_none("hpa/minilm", "pdb/minilm"))
    # More revisions than are kept, beside the one in use and the last good one.
    for number in range(6):
        model = {**SIMULATED["model"], "env": {"NUMBER": str(number)}}
        team.write({"model": model, "replicas": 1})
        until("it is kept", partial(_is_newest, team, number))
    until("the oldest are gone", lambda: len(_revisions(team)) < 6)
    team.plane.kubectl("delete", "bm/minilm", f"--namespace={team.namespace}")
    until("the operator has seen it", lambda: team.has_none("batchedmodel/minilm"))


def _status(team: Team) -> dict[str, Any]:
    status: dict[str, Any] = team.get("batchedmodel/minilm")["status"]
    return status


def _annotated(team: Team) -> bool:
    return any("annotations" in pod["metadata"] for pod in team.get("pods")["items"])


def _replicas(team: Team) -> int:
    return int(team.get("deployment/minilm")["spec"]["replicas"])


def _revisions(team: Team) -> list[dict[str, Any]]:
    found = team.get("controllerrevisions", label=f"{NAME_LABEL}=minilm")["items"]
    return sorted(found, key=lambda one: one["revision"])


def _is_newest(team: Team, number: int) -> bool:
    return f"'value': '{number}'" in str(_revisions(team)[-1])


@pytest.mark.parametrize("part", _PARTS)
def test_nothing_was_refused(story: Mapping[str, Asked], part: str) -> None:
    assert not story[part].refused


@pytest.mark.parametrize("part", _PARTS)
def test_no_right_is_left_over(
    story: Mapping[str, Asked], rules: Mapping[str, list[dict[str, Any]]], part: str
) -> None:
    spare = granted(rules[part]) - story[part].used
    assert not spare, [str(right) for right in sorted(spare)]


@pytest.mark.parametrize("part", _PARTS)
def test_nobody_asks_for_what_the_roles_do_not_name(
    story: Mapping[str, Asked], rules: Mapping[str, list[dict[str, Any]]], part: str
) -> None:
    """Any account may ask some things; a right that comes from elsewhere may go there, too."""
    more = story[part].used - granted(rules[part])
    # Whom the API server trusts, by a role of Kubernetes' own.
    names = {str(right) for right in more} - {"list configmaps", "watch configmaps"}
    assert not names
