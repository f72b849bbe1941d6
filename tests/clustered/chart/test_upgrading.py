"""From the chart before this one, with a model that serves: no pod of it is started anew."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import ControlPlane
from support.chart import CHART
from support.operator_team import SIMULATED, Team
from support.plane import apply, until
from support.release import Release, remove_namespace

_HOME, _TEAM = "upgrade-home", "upgrade-team"
_ROOT = CHART.parents[1]
_PACKAGES = ("contract", "operator", "scheduling", "autoscaler", "http", "kube", "election")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as it was before the chart or the operator last changed."""
    commit = _last_other("charts/batchedmodel", "operator", "contract")
    folder = tmp_path_factory.mktemp("before")
    archive = folder / "tree.tar"
    # Not all packages were there then.
    there = _git("ls-tree", "--name-only", commit, "charts", *_PACKAGES).split()
    _git("archive", f"--output={archive}", commit, *there)
    subprocess.run(["tar", "--extract", "--file", archive, "--directory", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane, before: Path) -> Iterator[Release]:
    found = Release(control_plane, _HOME)
    found.install(chart=before / "charts" / "batchedmodel")
    apply(control_plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _TEAM}})
    yield found
    found.uninstall()
    for name in (_TEAM, _HOME):
        remove_namespace(control_plane, name)


def test_an_upgrade_starts_no_pod_of_a_model_anew(
    release: Release, before: Path, tmp_path: Path
) -> None:
    team = Team(release.plane, _TEAM)
    earlier = {"PYTHONPATH": os.pathsep.join(str(before / name) for name in _PACKAGES)}
    with release.operator(tmp_path / "before", told=earlier) as operator:
        team.write({**SIMULATED, "autoscaling": {"maxReplicas": 3}})
        team.until("Reconciled", "True", "Applied")
        until("it has a pod", lambda: bool(team.get("pods")["items"]))
        deployment, pods = _deployment(team), _pods(team)
        assert str(before) in _code_of(operator.pid)
    release.upgrade("--set", "images.tag=next")
    with release.operator(tmp_path / "after") as operator:
        until("it has looked", lambda: f"{_TEAM}/minilm: applied" in operator.log())
        team.until("Reconciled", "True", "Applied")
        team.quiet()
        assert (_deployment(team), _pods(team)) == (deployment, pods)


def test_the_values_of_the_release_are_kept_where_helm_is_told_to(release: Release) -> None:
    release.upgrade("--set", "autoscaler.pollSeconds=3")
    release.upgrade("--reset-then-reuse-values")
    values = release.plane.helm("get", "values", release.name, f"--namespace={_HOME}")
    assert "pollSeconds: 3" in values


def _deployment(team: Team) -> tuple[int, str]:
    """Its generation and the hash of its pod template, by the ReplicaSet that has it."""
    (replica_set,) = team.get("replicasets")["items"]
    return (
        team.get("deployment/minilm")["metadata"]["generation"],
        replica_set["metadata"]["labels"]["pod-template-hash"],
    )


def _pods(team: Team) -> list[str]:
    return [pod["metadata"]["uid"] for pod in team.get("pods")["items"]]


def _code_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


def _last_other(*paths: str) -> str:
    """The newest commit in which these paths are not what they are now."""
    try:
        changes = _git("rev-list", "HEAD", "--", *paths).split()
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("what was before stands in the history, of which there is none here")
    for commit in ("HEAD", *(f"{change}^" for change in changes)):
        try:
            _git("diff", "--quiet", commit, "--", *paths)
        except subprocess.CalledProcessError as error:
            if error.returncode == 1:
                return commit
            break
    pytest.skip("the history does not reach back to another chart")


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", _ROOT, *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
