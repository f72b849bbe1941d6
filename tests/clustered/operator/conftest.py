"""One operator for all tests of a file, and a namespace for each."""

import itertools
import re
from collections.abc import Iterator

import pytest

from cluster import ControlPlane
from support.operator_process import OperatorProcess, PretendSidecar, grant_rights, operator
from support.operator_team import Team
from support.plane import apply, install_crd, sidecar_address

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    install_crd(control_plane)
    grant_rights(control_plane)
    return control_plane


@pytest.fixture(scope="module")
def running(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all tests of a file."""
    with operator(plane, tmp_path_factory.mktemp("operator")) as process:
        yield process


@pytest.fixture
def team(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Team]:
    """A namespace for one test."""
    words = re.findall("[a-z]+", request.node.name.removeprefix("test_").lower())
    name = f"{'-'.join(words)[:40].strip('-')}-{next(_NUMBERS)}"
    team = Team(plane, name)
    # Every pod of these tests has to meet the strictest standard.
    metadata = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    yield team
    plane.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def sidecar(plane: ControlPlane) -> Iterator[PretendSidecar]:
    pretend = PretendSidecar(sidecar_address(plane, 1))
    yield pretend
    pretend.close()
