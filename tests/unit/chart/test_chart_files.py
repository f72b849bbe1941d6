"""The chart's files as they lie there, without Helm."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).parents[3]
_CHART = _ROOT / "charts" / "batchedmodel"
_OURS = ("/definitions/image", "/definitions/serviceAccount")


def test_the_chart_carries_the_custom_resource_byte_for_byte() -> None:
    for file in (_ROOT / "crds").glob("*.yaml"):
        carried = (_CHART / "files" / file.name).read_bytes()
        assert carried == file.read_bytes(), "run `make chart`"


def test_every_value_has_a_default_and_a_place_in_the_schema() -> None:
    schema = json.loads((_CHART / "values.schema.json").read_text())
    values = yaml.safe_load((_CHART / "values.yaml").read_text())
    assert set(_declared(schema, schema)) == set(_leaves(values))


def test_the_schema_is_strict_everywhere_but_where_kubernetes_is_asked() -> None:
    schema = json.loads((_CHART / "values.schema.json").read_text())
    open_ones = {
        path
        for path, section in _sections(schema, "")
        if section.get("type") == "object" and section.get("additionalProperties") is None
    }
    affinity = "/definitions/affinity/properties/"
    assert open_ones == {
        "/properties/global",
        "/definitions/spread/items/properties/labelSelector",
        f"{affinity}nodeAffinity",
        f"{affinity}podAffinity",
        f"{affinity}podAntiAffinity",
    }


def test_the_schema_requires_every_value_that_it_knows() -> None:
    """Or an upgrade with the values of an earlier chart would render holes instead of failing."""
    schema = json.loads((_CHART / "values.schema.json").read_text())
    for path, section in _sections(schema, ""):
        # Kubernetes' own parts have fields that may be absent.
        if path.startswith("/definitions/") and path not in _OURS:
            continue
        if section.get("additionalProperties") is False:
            assert set(section["required"]) == {*section["properties"]}, path


def test_artifact_hub_is_told_of_every_image_that_the_values_name() -> None:
    values = yaml.safe_load((_CHART / "values.yaml").read_text())
    chart = yaml.safe_load((_CHART / "Chart.yaml").read_text())
    told = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    named = {
        f"{part['image']['repository']}:{part['image']['tag'] or values['images']['tag']}"
        for part in values.values()
        if isinstance(part, dict) and "image" in part
    }
    assert {one["image"] for one in told} == named
    assert len(told) == len(named)
    assert {tuple(one["platforms"]) for one in told} == {("linux/amd64", "linux/arm64")}


def _declared(schema: Mapping[str, Any], whole: Mapping[str, Any], path: str = "") -> list[str]:
    """Paths of the values that the schema knows, down to where it names no more properties."""
    if "$ref" in schema:
        schema = whole["definitions"][schema["$ref"].removeprefix("#/definitions/")]
    properties = schema.get("properties", {})
    if not properties or path.endswith((".affinity", ".resources")):
        return [path]
    return [
        leaf
        for name, inner in properties.items()
        for leaf in _declared(inner, whole, f"{path}.{name}" if path else name)
    ]


def _leaves(values: object, path: str = "") -> list[str]:
    if not isinstance(values, dict) or not values or path.endswith(".resources"):
        return [path]
    return [
        leaf
        for name, inner in values.items()
        for leaf in _leaves(inner, f"{path}.{name}" if path else name)
    ]


def _sections(schema: Any, path: str) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(schema, dict):
        return []
    found: list[tuple[str, Mapping[str, Any]]] = [(path, schema)]
    for name, inner in schema.items():
        found += _sections(inner, f"{path}/{name}")
    return found
