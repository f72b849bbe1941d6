"""The chart's files as they lie there, without Helm."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).parents[3]
_CHART = _ROOT / "charts" / "batchedmodel"


def test_the_chart_carries_the_custom_resource_byte_for_byte() -> None:
    carried = (_CHART / "files" / "batchedmodels.yaml").read_bytes()
    assert carried == (_ROOT / "crds" / "batchedmodels.yaml").read_bytes(), "run `make chart`"


def test_every_value_has_a_default_and_a_place_in_the_schema() -> None:
    schema = json.loads((_CHART / "values.schema.json").read_text())
    values = yaml.safe_load((_CHART / "values.yaml").read_text())
    # Helm itself passes `global` to every chart.
    assert set(_declared(schema, schema)) - {"global"} == set(_leaves(values))


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
        f"{affinity}nodeAffinity",
        f"{affinity}podAffinity",
        f"{affinity}podAntiAffinity",
    }


def test_of_definitions_the_operator_may_watch_its_own_only() -> None:
    text = (_CHART / "templates" / "operator-rbac.yaml").read_text()
    (rules,) = [part for part in text.split("---") if "\nkind: ClusterRole\n" in part]
    (rule,) = [
        rule
        for rule in yaml.safe_load(rules[rules.index("rules:") :])["rules"]
        if "customresourcedefinitions" in rule["resources"]
    ]
    assert rule["resourceNames"] == ["batchedmodels.batchedmodel.dev"]
    assert rule["verbs"] == ["list", "watch"]


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
