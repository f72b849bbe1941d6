"""Of an object the operator keeps what it asks for, however much else users have put into it."""

import json
from typing import Any

import pytest

from batchedmodel_contract.kubernetes_names import BATCHING_HASH_ANNOTATION, NAME_LABEL
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reading import reader

_OWNER = {"uid": "1", "kind": "ReplicaSet", "name": "m", "controller": True}


def _pod(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "labels": {NAME_LABEL: "m", "other": "x" * 10_000},
            "annotations": {BATCHING_HASH_ANNOTATION: "h", "note": "x" * 100_000},
            "ownerReferences": [{"uid": str(number)} for number in range(3_000)] + [_OWNER],
            "managedFields": [{"manager": "x", "fieldsV1": {f"f:{n}": {} for n in range(20_000)}}],
        },
        "spec": spec,
        "status": {"podIP": "10.0.0.1", "phase": "Running", "qosClass": "Burstable"},
    }


def test_of_a_pod_a_few_fields_are_kept_however_large_it_is() -> None:
    env = [{"name": f"V{number}"} for number in range(20_000)]
    containers = [{"name": "a", "restartPolicy": "Always", "image": "x" * 50_000}, {"name": "b"}]
    read = reader(Kind.POD)(
        json.dumps(
            _pod(initContainers=containers, containers=[{"name": "model", "env": env}])
        ).encode()
    )
    assert read == {
        "metadata": {
            "name": "p",
            "labels": {NAME_LABEL: "m"},
            "annotations": {BATCHING_HASH_ANNOTATION: "h"},
            "ownerReferences": [_OWNER],
        },
        "spec": {
            "initContainers": [
                {"name": "a", "restartPolicy": "Always"},
                {"name": "b", "restartPolicy": None},
            ]
        },
        "status": {"podIP": "10.0.0.1", "phase": "Running"},
    }


@pytest.mark.parametrize("spec", [{}, {"initContainers": None}])
def test_a_pod_without_init_containers_is_one(spec: dict[str, Any]) -> None:
    read = reader(Kind.POD)(json.dumps(_pod(**spec)).encode())
    assert read["spec"] == {"initContainers": []}


def test_of_a_strangers_object_its_head_is_read_whatever_else_stands_in_it() -> None:
    head = {"name": "minilm-batching", "managedFields": [{"manager": "somebody"}]}
    stranger = {"kind": "ConfigMap", "metadata": head, "data": {"k": "x" * 900_000}}
    read = reader(Kind.CONFIG_MAP)(json.dumps(stranger).encode())
    assert read == {"kind": "ConfigMap", "metadata": head}
