"""Two operators at a real API server: one works, the other takes its place when it ends or dies."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_kube.names import NAME_LABEL
from cluster import ControlPlane
from support.operator_process import ACCOUNT, HOME, OperatorProcess, operator
from support.operator_team import SIMULATED, Team
from support.plane import get, until

_NIGHTLY = pytest.mark.nightly
_LOST = 3


@contextmanager
def _second(plane: ControlPlane, folder: Path, *, tag: str = "1") -> Iterator[OperatorProcess]:
    with operator(plane, folder, tag=tag, may_end_with=(0, _LOST)) as process:
        until("it answers", lambda: process.leads() is not None)
        yield process


@pytest.fixture
def first(plane: ControlPlane, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that leads, for a test to do what it likes to."""
    folder = tmp_path / "first"
    folder.mkdir()
    with operator(plane, folder, may_end_with=(0, -9, _LOST)) as process:
        until("it leads", lambda: process.leads() is True)
        yield process


@pytest.fixture
def standby(
    first: OperatorProcess, plane: ControlPlane, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """Another, which has had the time to lead if it could."""
    with _second(plane, tmp_path) as process:
        time.sleep(3)
        assert process.leads() is False
        yield process


def test_after_a_leader_was_killed_the_other_works_within_twenty_seconds(
    first: OperatorProcess, standby: OperatorProcess, plane: ControlPlane, team: Team
) -> None:
    team.write(SIMULATED)
    until("all children are there", team.has_all)
    assert "batchedmodel_operator_leader 0" in standby.told("metrics")
    assert "batchedmodel_operator_leader 1" in first.told("metrics")
    first.kill()
    began = time.monotonic()
    team.write({**SIMULATED, "batching": {"maxBatchSize": 7}})
    until("the edit is applied", lambda: '"max_batch_size": 7' in team.settings_file(), 20)
    print(f"after a kill: {time.monotonic() - began:.1f} s")  # noqa: T201
    lease = get(plane, HOME, f"lease/{ACCOUNT}") or {}
    assert lease["spec"]["leaseTransitions"] >= 1


def test_a_leader_that_is_told_to_end_hands_over_at_once(
    first: OperatorProcess, standby: OperatorProcess, team: Team
) -> None:
    assert first.stop() == 0
    began = time.monotonic()
    until("the other leads", lambda: standby.leads() is True, 4)
    print(f"after a graceful end: {time.monotonic() - began:.1f} s")  # noqa: T201
    team.write(SIMULATED)
    until("all children are there", team.has_all)


@_NIGHTLY
def test_a_leader_that_was_frozen_ends_without_another_write(
    first: OperatorProcess, standby: OperatorProcess, team: Team
) -> None:
    team.write(SIMULATED)
    until("all children are there", team.has_all)
    first.freeze()
    until("the other leads", lambda: standby.leads() is True, 20)
    until("it has looked", lambda: team.condition("Reconciled")[0] == "True")
    team.quiet()
    before = team.written()
    first.thaw()
    assert first.ended(10) == _LOST
    assert team.written() == before
    assert standby.leads() is True


@_NIGHTLY
def test_an_api_server_that_is_away_for_longer_than_a_leader_lasts_is_survived_by_two(
    first: OperatorProcess, standby: OperatorProcess, plane: ControlPlane, team: Team
) -> None:
    team.write(SIMULATED)
    until("all children are there", team.has_all)
    plane.stop_program("kube-apiserver")
    assert first.ended(12) == _LOST
    plane.start_program("kube-apiserver")
    team.write({**SIMULATED, "batching": {"maxBatchSize": 7}})
    until("the edit is applied", lambda: '"max_batch_size": 7' in team.settings_file(), 60)
    assert standby.alive()


def test_another_operator_with_other_images_rolls_no_pods_until_somebody_asks_for_it(
    first: OperatorProcess, plane: ControlPlane, team: Team, tmp_path: Path
) -> None:
    team.write(SIMULATED)
    team.until("Reconciled", "True", "Applied")
    team.quiet()
    before = _children(team)
    assert _image(team) == "registry.example/model-server:1"
    assert first.stop() == 0
    with _second(plane, tmp_path, tag="2") as second:
        until("it has looked", lambda: f"{team.namespace}/minilm: applied" in second.log())
        team.until("UpToDate", "False", "UpgradePinned")
        team.quiet()
        assert _children(team) == before
        team.write({**SIMULATED, "batching": {"maxBatchSize": 9}})
        until("the edit is applied", lambda: '"max_batch_size": 9' in team.settings_file())
        team.quiet()
        assert _image(team) == "registry.example/model-server:1"
        plane.kubectl(
            *("delete", "controllerrevisions", f"--namespace={team.namespace}"),
            f"--selector={NAME_LABEL}=minilm",
        )
        until("they are", lambda: _image(team) == "registry.example/model-server:2")


def _children(team: Team) -> dict[str, Any]:
    """What every write of the operator to a child would change."""
    return {name: one for name, one in team.written().items() if "batchedmodel" not in name}


def _image(team: Team) -> str:
    template = team.get("deployment/minilm")["spec"]["template"]
    image: str = template["spec"]["containers"][0]["image"]
    return image
