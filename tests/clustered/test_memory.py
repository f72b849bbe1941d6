"""Memory is bounded by bytes, not by numbers of objects, whatever one namespace puts there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_autoscaler.telemetry import MODELS
from batchedmodel_kube.names import BATCHER_CONTAINER, MANAGED_BY, MANAGED_BY_LABEL, NAME_LABEL
from cluster import ControlPlane
from support.autoscaler_cluster import autoscaler, install, probed
from support.odd_objects import create, unbounded, wide
from support.operator_process import OperatorProcess, grant_rights, operator
from support.operator_team import SIMULATED
from support.plane import apply, install_crd, read, until
from support.process_memory import peak_bytes

HONEST, HOSTILE = "memory-honest", "memory-hostile"
MOST_BYTES = 250 * 2**20
HONEST_MODELS = 200
HOSTILE_MODELS = 12
"""That can be read: as many as are looked at at the same time."""
OF_EACH = 4
"""Large objects of a kind with the label of each of them."""
LARGE_PART = 500_000
"""Bytes of one field of them."""
READ_PART = 240_000
"""Bytes of one that is read."""


def a_model(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": name, "namespace": namespace},
        "spec": SIMULATED,
    }


def large_objects(name: str, uid: str) -> list[dict[str, Any]]:
    """What an API server takes from whoever may edit a namespace, and names a model."""
    owner = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "name": name,
        "uid": uid,
    }

    def metadata(kind: str, number: int) -> dict[str, Any]:
        return {
            "name": f"{name}-{kind}-{number}",
            "namespace": HOSTILE,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY, NAME_LABEL: name},
            "annotations": {"note": "x" * 200_000},
            "ownerReferences": [owner],
        }

    lists: list[list[Any]] = [[]] * (LARGE_PART // 3)
    container = {"name": BATCHER_CONTAINER, "image": "none"}
    aliases = [{"ip": "1.1.1.1"}] * (LARGE_PART // 17)
    child = {"name": name, "namespace": HOSTILE, "labels": {NAME_LABEL: name}}
    pods = {"containers": [container], "hostAliases": aliases[: READ_PART // 17]}
    # Of the names that the operator gives: it reads them to tell that they are not its own.
    found: list[dict[str, Any]] = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": child,
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"none": "none"}},
                "template": {"metadata": {"labels": {"none": "none"}}, "spec": pods},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**child, "name": f"{name}-batching"},
            "data": {f"key{number}": "x" * 24 for number in range(READ_PART // 40)},
        },
    ]
    for number in range(OF_EACH):
        found += [
            {
                "apiVersion": "apps/v1",
                "kind": "ControllerRevision",
                "metadata": metadata("revision", number),
                "revision": number + 1,
                "data": {"template": lists},
            },
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata("pod", number),
                "spec": {"containers": [container], "hostAliases": aliases},
            },
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": metadata("config-map", number),
                "data": {"x": "[]" * (LARGE_PART // 2)},
            },
        ]
    return found


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    install_crd(control_plane)
    grant_rights(control_plane)
    for name in (HONEST, HOSTILE):
        apply(control_plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    install(control_plane)
    create_all(control_plane, [a_model(HONEST, f"m{n}") for n in range(HONEST_MODELS)])
    try:
        with unbounded(control_plane, HOSTILE):
            for number in range(HOSTILE_MODELS):
                create(control_plane, wide(HOSTILE, f"wide-{number}"))
                name = f"large-{number}"
                create_all(control_plane, [a_model(HOSTILE, name)])
                made = read(control_plane, HOSTILE, f"batchedmodel/{name}")
                assert made is not None
                create_all(control_plane, large_objects(name, made["metadata"]["uid"]))
            yield control_plane
    finally:
        for name in (HONEST, HOSTILE):
            # At once: the operators of other tests would look after them.
            control_plane.kubectl("delete", "bm", "--all", f"--namespace={name}")
            control_plane.kubectl("delete", "namespace", name, "--wait=false")


def create_all(plane: ControlPlane, objects: list[dict[str, Any]]) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": objects}
    plane.kubectl("create", "--filename=-", stdin=json.dumps(items, separators=(",", ":")))


@pytest.mark.alone
@pytest.mark.nightly
def test_an_operator_stays_within_its_memory(plane: ControlPlane, tmp_path: Path) -> None:
    with operator(plane, tmp_path) as running:
        until("all are looked at", lambda: all_are_seen(plane, running), seconds=240)
        assert running.alive()
        assert "watching failed" not in running.log()
        assert running.memory_megabytes() * 2**20 < MOST_BYTES


@pytest.mark.alone
@pytest.mark.nightly
def test_an_autoscaler_stays_within_its_memory(plane: ControlPlane, tmp_path: Path) -> None:
    count = HONEST_MODELS + 2 * HOSTILE_MODELS
    with autoscaler(plane, tmp_path) as process:
        until("all are seen", lambda: f"{MODELS} {count}.0" in probed(plane, "/metrics"))
        assert peak_bytes(process.pid) < MOST_BYTES


def all_are_seen(plane: ControlPlane, running: OperatorProcess) -> bool:
    """Whether each that can be read has been looked at to its end."""
    assert running.alive(), running.log()[-2000:]
    seen = 0
    for namespace in (HONEST, HOSTILE):
        found = plane.kubectl(
            *("get", "batchedmodels", f"--namespace={namespace}"),
            '--output=jsonpath={range .items[*]}{.status.observedGeneration}{" "}{end}',
        )
        seen += len(found.split())
    return seen == HONEST_MODELS + 2 * HOSTILE_MODELS
