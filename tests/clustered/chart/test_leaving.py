"""Whatever is removed first, nothing stays behind that cannot go."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import ControlPlane
from support.autoscaler_cluster import API_SERVICES
from support.operator_team import SIMULATED, Team
from support.plane import CRD_NAME, apply, install_crd, until
from support.release import Release, is_there, remove_namespace

_HOME, _TEAM = "leaving-home", "leaving-team"


def _uninstall(release: Release) -> None:
    release.uninstall()


def _delete_home(release: Release) -> None:
    remove_namespace(release.plane, _HOME)


def _delete_team(release: Release) -> None:
    remove_namespace(release.plane, _TEAM)


def _delete_definition(release: Release) -> None:
    release.plane.kubectl("delete", f"crd/{CRD_NAME}", "--ignore-not-found", "--timeout=50s")


def _sweep(release: Release) -> None:
    """As `docs/installing.md` says: Helm's record went with the namespace."""
    mine = f"--selector=app.kubernetes.io/instance={release.name}"
    release.plane.kubectl("delete", "clusterroles,clusterrolebindings", mine)
    release.plane.kubectl("delete", "rolebindings", "--all-namespaces", mine)


_ORDERS = {
    "the release first": (_uninstall, _delete_team, _delete_home, _delete_definition),
    "the models first": (_delete_team, _uninstall, _delete_definition, _delete_home),
    "the definition first": (_delete_definition, _uninstall, _delete_home, _delete_team),
    "the namespace of the release first": (
        *(_delete_home, _delete_team),
        *(_sweep, _delete_definition),
    ),
}


_DAILY = _ORDERS["the definition first"]
_NIGHTLY = pytest.mark.nightly


@pytest.fixture
def release(control_plane: ControlPlane) -> Iterator[Release]:
    found = Release(control_plane, _HOME)
    found.install()
    apply(control_plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _TEAM}})
    yield found
    # For the tests that come after.
    for name in API_SERVICES:
        control_plane.kubectl("delete", "apiservice", name, "--ignore-not-found")
    for name in (_HOME, _TEAM):
        remove_namespace(control_plane, name)
    found.uninstall()
    install_crd(control_plane)


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(order, id=name, marks=() if order is _DAILY else _NIGHTLY)
        for name, order in _ORDERS.items()
    ],
)
def test_nothing_is_left_terminating(
    release: Release, order: tuple[Callable[[Release], None], ...], tmp_path: Path
) -> None:
    plane, team = release.plane, Team(release.plane, _TEAM)
    with (
        release.autoscaler(tmp_path / "autoscaler"),
        release.operator(tmp_path / "operator"),
    ):
        team.write({**SIMULATED, "replicas": 2})
        until("its children are there", team.has_all)
        for remove in order:
            remove(release)
        until(
            "both registrations are gone",
            lambda: not any(is_there(plane, f"apiservice/{name}") for name in API_SERVICES),
        )
    for name in (_HOME, _TEAM):
        assert not is_there(plane, f"namespace/{name}")
    leaving = "jsonpath={.items[?(@.metadata.deletionTimestamp)].metadata.name}"
    for kind in ("namespaces", "customresourcedefinitions", "apiservices"):
        assert not plane.kubectl("get", kind, f"--output={leaving}")
    mine = f"--selector=app.kubernetes.io/instance={release.name}"
    kinds = "clusterroles,clusterrolebindings,rolebindings,roles"
    assert not plane.kubectl("get", kinds, "--all-namespaces", mine, "--output=name")
