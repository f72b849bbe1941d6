"""The parts of a manifest that have the form of Kubernetes' own types, on a real API server.

It takes what an ordinary pod has and drops nothing of it. What is nested deeper, wider or larger
than the type allows it refuses, and names the field and the rule.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import pytest

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_kube.manifest.manifest import LARGEST_SPEC, read_manifest
from batchedmodel_kube.schema.kubernetes_types import TABLE
from cluster.errors import CommandFailed
from cluster.kubernetes import ControlPlane
from custom_resource import spec_schema
from kubernetes_types import content
from support.manifest_table import ordinary_pods
from support.plane import install_crd

ORDINARY: Final = ordinary_pods()
SPEC: Final = spec_schema()
NESTED: Final = 4_000
PARTS: Final = (
    *("model.envFrom", "model.volumeMounts", "model.securityContext", "autoscaling.behavior"),
    *("pod.tolerations", "pod.affinity", "pod.topologySpreadConstraints"),
    *("pod.volumes", "pod.initContainers"),
)
"""The fields that have the form of one of Kubernetes' types, or entries of such a form."""
LAWFUL: Final[Mapping[str, dict[str, Any]]] = {
    "model.volumeMounts": {"name": "cache"},
    "pod.tolerations": {"operator": "Exists"},
}
"""What entries must say besides to be taken."""


@pytest.fixture(scope="module")
def server(control_plane: ControlPlane) -> ControlPlane:
    install_crd(control_plane)
    return control_plane


def manifest(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "tried", "namespace": "default"},
        "spec": spec,
    }


def with_part(path: str, part: object) -> dict[str, Any]:
    """The spec of a model with that part."""
    section, _, field = path.partition(".")
    spec: dict[str, Any] = {"model": {"handler": "simulated"}, "autoscaling": {"maxReplicas": 2}}
    spec[section] = {**spec.get(section, {}), field: part}
    return spec


def tried(server: ControlPlane, text: str, *, validate: str = "strict") -> dict[str, Any]:
    """The object as the server would store it; raises `CommandFailed` with its complaint."""
    words = ("create", "--dry-run=server", f"--validate={validate}", "--output=json")
    found: dict[str, Any] = json.loads(server.kubectl(*words, "--filename=-", stdin=text))
    return found


def refusal(server: ControlPlane, spec: dict[str, Any]) -> str:
    with pytest.raises(CommandFailed) as caught:
        tried(server, json.dumps(manifest(spec)))
    with pytest.raises(InvalidManifest):
        read_manifest(manifest(spec))
    return str(caught.value)


def schema_of(path: str) -> dict[str, Any]:
    schema = SPEC
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def entries(path: str) -> dict[str, Any]:
    """The schema of the type that the field is or has entries of."""
    schema = schema_of(path)
    found: dict[str, Any] = schema.get("items", schema)
    return found


def places(schema: dict[str, Any], kind: str, where: tuple[str, ...] = ()) -> Iterator[Any]:
    """The ways to values of a kind; a way through a list goes by its first entry."""
    if schema.get("type") == kind:
        yield where, schema
    for name, below in schema.get("properties", {}).items():
        yield from places(below, kind, (*where, name))
    if "items" in schema:
        yield from places(schema["items"], kind, (*where, "[0]"))


def along(where: tuple[str, ...], value: object, schema: dict[str, Any]) -> object:
    """A part of that schema that has nothing but the value, and the names that it must have."""
    if not where:
        return value
    if where[0] == "[0]":
        return [along(where[1:], value, schema["items"])]
    below = along(where[1:], value, schema["properties"][where[0]])
    return {**needed(schema), where[0]: below}


def needed(schema: dict[str, Any]) -> dict[str, Any]:
    """The fields that an object must have, each with a value that it may have."""
    return {name: _least(schema["properties"][name]) for name in schema.get("required", ())}


def _least(schema: dict[str, Any]) -> object:
    if schema["type"] == "integer":
        return 1
    # One of those that a pattern lists.
    return schema.get("pattern", "a").strip("^$(?:)").split("|")[0] if "|" in str(schema) else "a"


def shown(path: str, where: tuple[str, ...]) -> str:
    return f"spec.{path}" + "".join(one if one[0] == "[" else f".{one}" for one in where)


def test_the_table_of_types_is_what_the_api_server_describes(server: ControlPlane) -> None:
    documents = [
        json.loads(server.kubectl("get", "--raw", f"/openapi/v3/{group}"))
        for group in ("api/v1", "apis/autoscaling/v2")
    ]
    assert TABLE.read_text("utf-8") == content(documents), "run crds/kubernetes_types.py"


@pytest.mark.parametrize("what", ORDINARY)
def test_what_an_ordinary_pod_has_is_taken_whole(server: ControlPlane, what: str) -> None:
    given = ORDINARY[what]
    stored = tried(server, json.dumps(manifest(given)))["spec"]
    for section, fields in given.items():
        for field, value in fields.items():
            assert stored[section][field] == value
    read_manifest(manifest(given))


@pytest.mark.parametrize("path", PARTS)
def test_a_part_that_is_nested_deeper_than_its_type_is_refused(
    server: ControlPlane, path: str
) -> None:
    where, _ = next(places(entries(path), "string"))
    schema = schema_of(path)
    way = ("[0]", *where) if "items" in schema else where
    text = json.dumps(manifest(with_part(path, along(way, "HERE", schema))))
    nested = text.replace('"HERE"', "[" * NESTED + "]" * NESTED)
    with pytest.raises(CommandFailed) as caught:
        tried(server, nested)
    assert f"{shown(path, way)} in body must be of type string" in str(caught.value)


@pytest.mark.parametrize("path", PARTS)
def test_a_field_that_its_type_does_not_have_is_refused_or_dropped_as_the_author_asks(
    server: ControlPlane, path: str
) -> None:
    schema = schema_of(path)
    entry = {"x": "HERE", **needed(entries(path)), **LAWFUL.get(path, {})}
    part = [entry] if "items" in schema else entry
    text = json.dumps(manifest(with_part(path, part)))
    nested = text.replace('"HERE"', "[" * NESTED + "]" * NESTED)
    field = shown(path, ("[0]", "x") if "items" in schema else ("x",))
    with pytest.raises(CommandFailed) as caught:
        tried(server, nested)
    assert f'unknown field "{field}"' in str(caught.value)
    taken = tried(server, nested, validate="ignore")
    assert len(json.dumps(taken)) < NESTED


@pytest.mark.parametrize("path", PARTS)
def test_a_list_that_is_longer_than_any_that_makes_sense_is_refused(
    server: ControlPlane, path: str
) -> None:
    schema = schema_of(path)
    for where, found in islice(places(schema, "array"), 2):
        most = found["maxItems"]
        said = refusal(server, with_part(path, along(where, [None] * (most + 1), schema)))
        assert f"{shown(path, where)}: Too many: {most + 1}: must have at most {most} items" in said


@pytest.mark.parametrize("path", PARTS)
def test_a_text_that_is_longer_than_any_that_makes_sense_is_refused(
    server: ControlPlane, path: str
) -> None:
    schema = schema_of(path)
    where, found = next(places(schema, "string"))
    text = "x" * (found["maxLength"] + 1)
    said = refusal(server, with_part(path, along(where, text, schema)))
    assert (
        f"{shown(path, where)}: Too long: may not be more than {found['maxLength']} bytes" in said
    )


def test_a_spec_may_be_large_and_not_larger(server: ControlPlane) -> None:
    def spec(size: int) -> dict[str, Any]:
        rest = "x" * (size // 2 - 15_000)
        return {"model": {"handler": "simulated", "env": {"A": "é" * 15_000, "B": rest, "C": rest}}}

    # Names take the rest.
    tried(server, json.dumps(manifest(spec(LARGEST_SPEC - 3_000))))
    read_manifest(manifest(spec(LARGEST_SPEC - 3_000)))
    said = refusal(server, spec(LARGEST_SPEC))
    assert f"spec: Forbidden: has more than {LARGEST_SPEC} bytes as JSON" in said


def test_a_field_that_is_null_is_left_out(server: ControlPlane) -> None:
    volume = {"name": "a", "emptyDir": {"medium": None}, "hostPath": None}
    given = with_part("pod.volumes", [volume])
    stored = tried(server, json.dumps(manifest(given)))
    assert stored["spec"]["pod"]["volumes"] == [{"name": "a", "emptyDir": {}}]
    read_manifest(manifest(given))
