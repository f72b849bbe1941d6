"""The command line: a cluster that stays up until it is taken down."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from cluster.packages import missing_packages
from cluster.settings import Settings
from cluster.standing import standing_cluster

# The harness of other tests.
pytestmark = pytest.mark.nightly

_Command = Callable[..., str]


@pytest.fixture
def command(cluster_settings: Settings) -> Iterator[_Command]:
    """Runs `python -m cluster` and returns what it says; takes down what it brought up."""
    if os.geteuid() != 0 or missing_packages():
        pytest.skip("needs root and the packages of a node")
    if standing_cluster(cluster_settings) is not None:
        pytest.skip("somebody has a cluster up")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "cluster", *words],
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    yield run
    run("down")


@pytest.mark.timeout(300, func_only=True)
def test_a_cluster_stands_until_it_is_taken_down(command: _Command) -> None:
    assert command("up").startswith("export KUBECONFIG=")
    assert "up: KUBECONFIG=" in command("status")
    assert "node/node-1" in command("shell", "--", "kubectl", "get", "nodes", "--output=name")
    assert command("down") == "stopped\n"
    assert command("status").startswith("no cluster is up\n")


def test_a_shell_brings_its_own_cluster_when_none_is_up(command: _Command) -> None:
    assert "node/node-1" in command("shell", "--", "kubectl", "get", "nodes", "--output=name")
    assert command("status").startswith("no cluster is up\n")
