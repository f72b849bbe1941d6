"""Of what others write into a namespace only what somebody asks for is read, within bounds."""

import json
from typing import Any

import pytest

from batchedmodel_kube.names import NAME_LABEL, REVISION_LABEL
from batchedmodel_kube.object_text import Unreadable
from batchedmodel_operator.cluster.objects import read_pod, reader_of
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.state import Key, Model, pod_from, revisions_from

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "minilm-1", "uid": "set"}
MODEL = Model(
    key=Key(namespace="team", name="minilm"),
    uid="model",
    generation=1,
    spec=None,
    mistakes=(),
    status={},
)
STATUS = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "conditions": [{"type": "Ready", "status": "True"}],
    "initContainerStatuses": [{"name": "batcher", "started": True, "ready": True}],
    "hostIP": "10.0.0.2",
}


def pod(name: str, **more: Any) -> dict[str, Any]:
    """One as an API server has it, of a ReplicaSet."""
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": name,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {NAME_LABEL: "minilm", REVISION_LABEL: "a", "other": "x" * 100},
        "annotations": {"other": "x" * 100},
        "ownerReferences": [{"kind": "Thing", "uid": "else"}, {**OWNER, "controller": True}],
        "managedFields": [{}],
    }
    init = {"name": "batcher", "restartPolicy": "Always", "env": [{"name": "X"}]}
    spec = {"initContainers": [init], "hostAliases": [{}]}
    return {"metadata": {**metadata, **more}, "spec": spec, "status": STATUS}


def text_of(found: object) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def test_of_a_pod_only_what_somebody_asks_for_is_kept() -> None:
    read = read_pod(text_of(pod("p")))
    assert read["spec"] == {"initContainers": [{"name": "batcher", "restartPolicy": "Always"}]}
    assert read["metadata"]["ownerReferences"] == [{**OWNER, "controller": True}]
    assert set(read["metadata"]["labels"]) == {NAME_LABEL, REVISION_LABEL}
    assert "annotations" not in read["metadata"] or not read["metadata"]["annotations"]
    assert "hostIP" not in read["status"]
    found = pod_from(read)
    assert (found.address, found.ready, found.sidecar_started) == ("10.0.0.1", True, True)
    assert found.revision == "a"


@pytest.mark.parametrize(
    "data",
    [
        *([], "text", 7, None, {}, {"template": []}, {"template": {"metadata": []}}),
        *({"template": {"metadata": {"labels": []}}}, {"template": {"metadata": {}}}),
        *({"template": {"metadata": {"labels": {}}, "spec": {"containers": []}}},),
        *({"template": {"metadata": {"labels": {}}, "spec": {"containers": ["x"]}}},),
        *({"template": {"metadata": {"labels": {}}, "spec": {"containers": [{}]}}},),
        *({"template": {"metadata": {"labels": {}}, "spec": []}},),
    ],
)
def test_a_kept_template_that_is_none_is_as_good_as_nothing(data: object) -> None:
    owner = {"kind": Kind.BATCHED_MODEL.value, "uid": "model"}
    metadata = {"name": "a", "uid": "1", "ownerReferences": [owner]}
    read = reader_of(Kind.CONTROLLER_REVISION)
    template = {"metadata": {"labels": {}}, "spec": {"containers": [{"image": "i"}]}}
    good = {"metadata": metadata, "revision": 2**63 - 1, "data": {"template": template}}
    (kept,) = revisions_from([read(text_of(good))], MODEL)
    # An API server takes the number of the next one.
    assert kept.number + 1 < 2**63
    assert len(revisions_from([read(text_of(good))], MODEL)) == 1
    assert revisions_from([read(text_of({**good, "data": data}))], MODEL) == ()


def test_a_kept_template_that_is_too_large_to_be_one_is_not_read() -> None:
    found = {"metadata": {"name": "a"}, "data": {"template": ["x" * 1_000] * 200}}
    with pytest.raises(Unreadable, match="data has .* bytes"):
        reader_of(Kind.CONTROLLER_REVISION)(text_of(found))


def test_pods_without_a_replica_set_are_nobodys() -> None:
    for owners in ([], [OWNER]):
        assert read_pod(text_of(pod("p", ownerReferences=owners))).keys() == {"metadata"}


def test_of_a_strangers_object_its_head_is_read_whatever_else_stands_in_it() -> None:
    head = {"name": "minilm-batching", "managedFields": [{"manager": "somebody"}]}
    stranger = {"kind": "ConfigMap", "metadata": head, "data": {"k": "x" * 900_000}}
    read = reader_of(Kind.CONFIG_MAP)(text_of(stranger))
    assert read == {"metadata": {**head, "managedFields": [{"manager": "somebody", "size": 2}]}}


@pytest.mark.parametrize("kind", [Kind.CONFIG_MAP, Kind.SERVICE])
def test_of_a_strangers_object_with_a_large_head_its_name_is_read(kind: Kind) -> None:
    head = {"name": "minilm", "uid": "u", "annotations": {"a": "x" * 300_000}}
    assert reader_of(kind)(text_of({"metadata": head})) == {
        "metadata": {"name": "minilm", "uid": "u", "managedFields": []}
    }


@pytest.mark.parametrize(
    ("head", "spec"),
    [({"managedFields": []}, "x" * 300_000), ({"managedFields": ["x" * 300_000]}, "x")],
    ids=["spec", "managed fields"],
)
def test_of_a_deployment_too_large_to_be_read_its_head_is_and_why(
    head: dict[str, Any], spec: str
) -> None:
    named = {"name": "minilm", "uid": "u", "labels": {"a": "b"}}
    body = {"metadata": {**named, "ownerReferences": [OWNER], **head}, "spec": {"x": spec}}
    read = reader_of(Kind.DEPLOYMENT)(text_of(body))
    assert read["unread"] == "it is too large to be read"
    assert named.items() <= read["metadata"].items()
    assert not read["metadata"]["ownerReferences"]


def test_a_deployment_with_large_annotations_is_read_without_them() -> None:
    owner = {"kind": Kind.BATCHED_MODEL.value, "name": "minilm", "uid": "model"}
    head = {"name": "minilm", "uid": "u", "managedFields": [], "ownerReferences": [owner]}
    body = {"metadata": {**head, "annotations": {"a": "x" * 300_000}}, "spec": {"replicas": 1}}
    read = reader_of(Kind.DEPLOYMENT)(text_of(body))
    assert (read["metadata"], read["spec"]) == (head, {"replicas": 1})


def test_of_a_replica_set_its_owners_are_read_however_large_it_is() -> None:
    metadata = {"name": "r", "uid": "u", "ownerReferences": [OWNER], "labels": {"a": "b"}}
    found = {"metadata": metadata, "spec": {"template": "x" * 600_000}}
    read = reader_of(Kind.REPLICA_SET)(text_of(found))
    assert read["metadata"] == {
        "name": "r",
        "uid": "u",
        "ownerReferences": [OWNER],
        "labels": {},
    }


@pytest.mark.parametrize("spec", [{}, {"initContainers": None}])
def test_a_pod_without_init_containers_is_one(spec: dict[str, Any]) -> None:
    read = read_pod(text_of({**pod("p"), "spec": spec}))
    assert read["spec"] == {"initContainers": []}
