"""Many models follow another operator's images, a few at a time, and stop behind one that fails."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.manifest.batching import FILE_NAME, settings_from_json
from batchedmodel_kube.names import NAME_LABEL
from cluster import CommandFailed, ControlPlane
from support.operator_process import (
    CRASHING,
    OTHER_LEASE,
    OperatorProcess,
    PretendSidecar,
    operator,
    run_pods,
)
from support.operator_team import SIMULATED, Team
from support.plane import apply, set_pod_status, until

ROLLING: dict[str, Any] = {**SIMULATED, "sidecar": {"upgrade": "Rolling"}}


class Fleet:
    """Models of one namespace, whose pods a test starts."""

    def __init__(self, team: Team, sidecar: PretendSidecar, count: int) -> None:
        self.team = team
        self.sidecar = sidecar
        self.names = [f"m{number:02}" for number in range(count)]
        self.most_at_once = 0
        self.broken = ""
        """A model whose new pods end again and again."""

    def write(self, spec: dict[str, Any] = ROLLING) -> None:
        head = {"apiVersion": "batchedmodel.dev/v1alpha1", "kind": "BatchedModel"}
        for name in self.names:
            metadata = {"name": name, "namespace": self.team.namespace}
            apply(self.team.plane, {**head, "metadata": metadata, "spec": spec})

    def look(self) -> None:
        """Pods that came start, as on a node; who rolls is counted."""
        settings = self.team.get("configmap/m00-batching")
        if settings is None:
            return
        self.sidecar.settings_hash = settings_from_json(settings["data"][FILE_NAME]).digest()
        rolling = [
            one
            for one in self.statuses().values()
            if (found := one.get("rollout", {})).get("cause") == "Upgrade"
            and found.get("targetRevision") != found.get("goodRevision")
            and "failedRevision" not in found
        ]
        self.most_at_once = max(self.most_at_once, len(rolling))
        try:
            run_pods(self.team.plane, self.team.namespace, self.sidecar, of=self._may_start)
            for name in self._broken_pods():
                set_pod_status(self.team.plane, self.team.namespace, name, CRASHING)
        except CommandFailed:
            pass  # a pod went between two looks

    def statuses(self) -> dict[str, Any]:
        items = (self.team.get("batchedmodels") or {"items": []})["items"]
        return {one["metadata"]["name"]: one.get("status", {}) for one in items}

    def sidecars(self) -> dict[str, str]:
        """The sidecar's image in each Deployment."""
        items = (self.team.get("deployments") or {"items": []})["items"]
        return {
            one["metadata"]["name"]: one["spec"]["template"]["spec"]["initContainers"][0]["image"]
            for one in items
        }

    def all_serve(self, tag: str) -> bool:
        """Whether all have the images of an operator, and say that they are up to date."""
        self.look()
        images = self.sidecars()
        return len(images) == len(self.names) and all(
            images[name].endswith(f":{tag}")
            and ("UpToDate", "True") in _conditions(status)
            and ("Ready", "True") in _conditions(status)
            for name, status in self.statuses().items()
        )

    def lacks(self, name: str) -> set[str]:
        """Why a model has not the capacity that it wants."""
        self.look()
        listed = self.statuses()[name].get("conditions", [])
        return {
            one["reason"]
            for one in listed
            if (one["type"], one["status"]) == ("CapacityAvailable", "False")
        }

    def is_degraded(self, name: str) -> bool:
        self.look()
        return ("Degraded", "True") in _conditions(self.statuses()[name])

    def _may_start(self, pod: Any) -> bool:
        ready = ("Ready", "True") in _conditions(pod["status"])
        leaves = "deletionTimestamp" in pod["metadata"]
        return not (ready or leaves or self._fails(pod))

    def _fails(self, pod: Any) -> bool:
        image = pod["spec"]["initContainers"][0]["image"]
        model = pod["metadata"]["labels"][NAME_LABEL]
        return bool(model == self.broken and image.endswith(":2"))

    def _broken_pods(self) -> list[str]:
        items = (self.team.get("pods") or {"items": []})["items"] if self.broken else []
        return [one["metadata"]["name"] for one in items if self._fails(one)]


def _conditions(status: Any) -> set[tuple[str, str]]:
    return {(one["type"], one["status"]) for one in status.get("conditions", [])}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("count", "at_once"), [(5, 2), pytest.param(50, 5, marks=pytest.mark.nightly)]
)
def test_models_follow_a_few_at_a_time_and_stop_behind_one_that_fails(
    plane: ControlPlane,
    team: Team,
    sidecar: PretendSidecar,
    tmp_path: Path,
    count: int,
    at_once: int,
) -> None:
    def operator_of(tag: str) -> AbstractContextManager[OperatorProcess]:
        variables = {"BATCHEDMODEL_UPGRADES_AT_ONCE": str(at_once)}
        return operator(plane, tmp_path, lease=OTHER_LEASE, tag=tag, variables=variables)

    fleet = Fleet(team, sidecar, count)
    with operator_of("1"):
        fleet.write()
        until("all serve", lambda: fleet.all_serve("1"), 60 + 6 * count)
    assert fleet.most_at_once == 0

    fleet.broken = "m02"
    with operator_of("2"):
        until("one is taken back", lambda: fleet.is_degraded("m02"), 60 + 6 * count)
        until("those that had begun end", lambda: _rests(fleet), 120)
        behind = {name for name, image in fleet.sidecars().items() if image.endswith(":1")}
        assert "m02" in behind
        time.sleep(3.0)
        fleet.look()
        now = {name for name, image in fleet.sidecars().items() if image.endswith(":1")}
        assert now == behind, "none begins after it"
    # Another operator knows of it, and brings images that work.
    with operator_of("3"):
        until("all follow", lambda: fleet.all_serve("3"), 60 + 10 * count)
    assert 1 <= fleet.most_at_once <= at_once


def test_a_namespace_without_room_holds_up_no_other(
    plane: ControlPlane,
    another_team: Callable[[], Team],
    sidecar: PretendSidecar,
    tmp_path: Path,
) -> None:
    full, other = (Fleet(another_team(), sidecar, 1) for _ in range(2))
    with operator(plane, tmp_path, lease=OTHER_LEASE, tag="1"):
        full.write()
        other.write(SIMULATED)
        for fleet in (full, other):
            until("all serve", lambda fleet=fleet: fleet.all_serve("1"), 60)  # type: ignore[misc]
    metadata = {"name": "full", "namespace": full.team.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    apply(plane, {**quota, "spec": {"hard": {"pods": "1"}}})
    until("the quota counts", lambda: "used" in full.team.get("quota/full").get("status", {}))
    with operator(plane, tmp_path, lease=OTHER_LEASE, tag="2"):
        until("no new pod is let in", lambda: full.lacks("m00") == {"QuotaExceeded"})
        other.write()
        until("the other one follows", lambda: other.all_serve("2"), 60)
        assert full.lacks("m00") == {"QuotaExceeded"}
        plane.kubectl("delete", "quota/full", f"--namespace={full.team.namespace}")
        until("it follows as well", lambda: full.all_serve("2"), 120)


def _rests(fleet: Fleet) -> bool:
    fleet.look()
    return all(
        (found := one.get("rollout", {})).get("targetRevision") == found.get("goodRevision")
        or "failedRevision" in found
        for one in fleet.statuses().values()
    )
