"""One operator for all tests of a file, and a namespace for each test."""

import itertools
import re
from collections.abc import Callable, Iterator

import pytest

from cluster import ControlPlane
from support.faulty_proxy import FaultyProxy
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


@pytest.fixture(scope="module")
def proxy(plane: ControlPlane) -> Iterator[FaultyProxy]:
    with FaultyProxy(plane).running() as running:
        yield running


@pytest.fixture(scope="module")
def behind(
    plane: ControlPlane, proxy: FaultyProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator that knows the API server by the proxy only."""
    folder = tmp_path_factory.mktemp("behind")
    with operator(plane, folder, server=proxy.url) as process:
        yield process


@pytest.fixture
def another_team(
    plane: ControlPlane, request: pytest.FixtureRequest
) -> Iterator[Callable[[], Team]]:
    """Makes namespaces for one test."""
    words = re.findall("[a-z]+", request.node.name.removeprefix("test_").lower())
    made: list[Team] = []

    def make() -> Team:
        name = f"{'-'.join(words)[:40].strip('-')}-{next(_NUMBERS)}"
        # Every pod of these tests has to meet the strictest standard.
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": name, "labels": labels}
        apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        made.append(Team(plane, name))
        return made[-1]

    yield make
    for team in made:
        plane.kubectl(
            *("delete", "namespace", team.namespace), "--ignore-not-found", "--wait=false"
        )


@pytest.fixture
def team(another_team: Callable[[], Team]) -> Team:
    """A namespace for one test."""
    return another_team()


@pytest.fixture
def sidecar(plane: ControlPlane) -> Iterator[PretendSidecar]:
    pretend = PretendSidecar(sidecar_address(plane, 1))
    yield pretend
    pretend.close()
