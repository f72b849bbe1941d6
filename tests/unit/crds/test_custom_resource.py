"""The custom resource's schema says what the declarations say, and is a sound one."""

import json
import re
import runpy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pytest

from batchedmodel_contract.manifest.adapters import MOST_ITEMS
from batchedmodel_contract.schema.reading import RecordOf, Setting, declarations
from batchedmodel_kube.capacity import FIELD
from batchedmodel_kube.manifest.cross_field_rules import CHECKS
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.names import (
    ADAPTERS_STATUS_FIELD,
    CLASS_KIND,
    CLASS_PLURAL,
    GROUP,
    KIND,
    PLURAL,
)
from batchedmodel_kube.names import VERSION as VERSION_NAME
from batchedmodel_kube.object_text import DEEPEST
from custom_resource import (
    class_resource,
    custom_resource,
    effective_schema,
    schema_of,
    spec_schema,
)
from structural_schema import Schema, anchored
from support.repository import ROOT

CRDS: Final = ROOT / "crds"
DEFINITION: Final = custom_resource()
(VERSION,) = DEFINITION["spec"]["versions"]
OBJECT: Final[Schema] = schema_of(DEFINITION)


def declared(of: type[Any] = Spec, path: str = "") -> Iterator[tuple[str, Any, Setting]]:
    """Every field of the spec: its path, its default in Python, its declaration."""
    for field, one in declarations(of):
        yield f"{path}{one.name}", field.default, one
        if isinstance(one.rule, RecordOf):
            yield from declared(one.rule.of, f"{path}{one.name}.")


def schema_at(path: str, schema: Schema) -> Schema:
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def nodes(schema: Schema, path: str = "spec") -> Iterator[tuple[str, Schema]]:
    """Every part of a schema that describes a value."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield from nodes(schema[keyword], f"{path}[{keyword}]")


def explained(schema: Schema, path: str = "spec") -> Iterator[tuple[str, Schema]]:
    """The same without the fields of Kubernetes' own types, which it explains itself."""
    whole = list(nodes(schema, path))
    foreign = tuple(
        where
        for where, node in whole
        if node.get("properties")
        and not any("description" in one for one in node["properties"].values())
    )
    return ((where, node) for where, node in whole if not where.startswith(_below(foreign)))


def _below(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{path}{mark}" for path in paths for mark in ".[")


FIELDS: Final = list(declared())
SETTINGS: Final = [
    (path, default, one) for path, default, one in FIELDS if not isinstance(one.rule, RecordOf)
]
SPEC: Final = spec_schema()
by_setting: Final = pytest.mark.parametrize("path", [path for path, *_ in SETTINGS])


def test_the_files_are_what_the_declarations_make() -> None:
    made = runpy.run_path(str(CRDS / "generate.py"))["contents"]()
    assert set(made) == {file.name for file in CRDS.glob("*.yaml")}
    for name, text in made.items():
        assert (CRDS / name).read_bytes() == text.encode(), "run `make crds`"


def test_the_reference_is_what_the_custom_resource_makes() -> None:
    made = runpy.run_path(str(CRDS / "reference.py"))["content"]()
    file = CRDS.parent / "docs" / "reference.md"
    assert file.read_bytes() == made.encode(), "run `make crds`"


def test_the_reference_has_a_row_for_every_field_and_a_line_for_every_rule() -> None:
    made = runpy.run_path(str(CRDS / "reference.py"))["content"]()
    for path, _, field in FIELDS:
        section = made.split(f"# `spec.{path}`".replace(f".{field.name}`", "`"))[1]
        assert f"`{field.name}`" in section.split("\n#")[0], path
    rules = made.split("## Rules")[1].split("\n## ")[0]
    assert rules.count("\n- `spec") == len(spec_schema()["x-kubernetes-validations"])


def test_every_declared_field_is_in_the_schema_and_no_other() -> None:
    paths = {path for path, _ in explained(SPEC) if "[" not in path}
    found = {path.removeprefix("spec.") for path in paths - {"spec"}}
    assert found == {path for path, _, _ in FIELDS}


@pytest.mark.parametrize(
    ("path", "default", "field"), SETTINGS, ids=[path for path, *_ in SETTINGS]
)
def test_a_field_says_its_default_and_has_an_api_server_write_none(
    path: str, default: object, field: Setting
) -> None:
    schema = schema_at(path, spec_schema())
    assert "default" not in schema
    said = schema["description"].partition(" Default: ")[2]
    if field.required or default in (None, ()):
        assert not said
    else:
        assert said == f"{json.dumps(default)}.".replace('"', "")


def test_a_field_that_depends_on_others_says_what_holds() -> None:
    for path, _, field in SETTINGS:
        if field.effective:
            schema = schema_at(path, spec_schema())
            assert f"When absent: {field.effective}." in schema["description"]
            shown = schema_at(path, effective_schema(Spec))
            for keyword in ("type", "x-kubernetes-int-or-string"):
                assert shown.get(keyword) == schema.get(keyword)


def test_the_effective_values_are_those_of_fields_that_depend_on_others() -> None:
    leaves = {
        path.removeprefix("status.effective.")
        for path, schema in nodes(effective_schema(Spec), "status.effective")
        if "properties" not in schema
    }
    assert leaves == {path for path, _, field in SETTINGS if field.effective}


@pytest.mark.parametrize("path", [path for path, *_ in FIELDS])
def test_a_field_is_described(path: str) -> None:
    assert schema_at(path, spec_schema())["description"].endswith(".")


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        (path, schema)
        for part in ("spec", "status")
        for path, schema in explained(OBJECT["properties"][part], part)
        if "[" not in path.rpartition(".")[2]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kubectl_explains_every_field(path: str, schema: Schema) -> None:
    assert schema["description"].endswith(".")


@by_setting
def test_a_value_has_one_type(path: str) -> None:
    for where, schema in nodes(schema_at(path, SPEC)):
        assert ("type" in schema) != schema.get("x-kubernetes-int-or-string", False), where


@by_setting
def test_a_value_is_bounded(path: str) -> None:
    bounds = {
        "string": {"maxLength", "enum"},
        "integer": {"maximum"},
        "number": {"maximum"},
        "boolean": {"type"},
        "array": {"maxItems"},
        "object": {"maxProperties", "properties"},
    }
    for where, schema in nodes(schema_at(path, SPEC)):
        assert bounds[schema.get("type", "string")] & set(schema), where
        assert "x-kubernetes-preserve-unknown-fields" not in schema, where


@by_setting
def test_a_list_says_how_it_is_merged(path: str) -> None:
    for where, schema in nodes(schema_at(path, SPEC)):
        is_list = schema.get("type") == "array"
        assert is_list == ("x-kubernetes-list-type" in schema), where


@by_setting
def test_a_pattern_holds_for_the_whole_text(path: str) -> None:
    for _, schema in nodes(schema_at(path, SPEC)):
        pattern = schema.get("pattern")
        if pattern is not None:
            assert pattern.startswith("^")
            assert pattern.endswith("$")
            assert "|" not in pattern or pattern.startswith("^(?:")


def test_no_value_is_nested_deeper_than_the_operator_reads() -> None:
    deepest = max(len(re.findall(r"[.\[]", where)) for where, _ in nodes(SPEC))
    assert deepest < DEEPEST / 4


def test_alternatives_are_bracketed_before_they_are_anchored() -> None:
    assert anchored("hf|simulated") == "^(?:hf|simulated)$"
    assert anchored("[a-z]+") == "^[a-z]+$"


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, id=rule["fieldPath"] + " " + rule["rule"][:40])
        for rule in SPEC["x-kubernetes-validations"]
        if "fieldPath" in rule
    ],
)
def test_a_rule_speaks_of_fields_that_exist(rule: Mapping[str, str]) -> None:
    text = " ".join((rule["rule"], rule.get("messageExpression", ""), f"self{rule['fieldPath']}"))
    without_calls = re.sub(r"\.[A-Za-z]+\(", "(", text)
    paths = re.findall(r"\bself\.([A-Za-z.]+)", without_calls)
    assert paths
    for path in paths:
        schema_at(path, spec_schema())


def test_every_check_says_its_sentence_to_an_api_server_too() -> None:
    _, *validations = SPEC["x-kubernetes-validations"]
    for check, validation in zip(CHECKS, validations, strict=True):
        said = validation.get("message") or validation["messageExpression"]
        assert check.rule.replace("}", "{").split("{")[0] in said
        assert validation["fieldPath"] == f".{check.field}"


def test_the_names_are_those_that_our_programs_ask_for() -> None:
    for definition, plural, kind in (
        (DEFINITION, PLURAL, KIND),
        (class_resource(), CLASS_PLURAL, CLASS_KIND),
    ):
        spec = definition["spec"]
        assert definition["metadata"]["name"] == f"{plural}.{GROUP}"
        assert spec["group"] == GROUP
        assert spec["names"]["plural"] == plural
        assert spec["names"]["kind"] == kind
        assert [version["name"] for version in spec["versions"]] == [VERSION_NAME]
    status = OBJECT["properties"]["status"]["properties"]
    assert {FIELD, ADAPTERS_STATUS_FIELD} <= status.keys()
    assert status[ADAPTERS_STATUS_FIELD]["maxItems"] == MOST_ITEMS


@pytest.mark.parametrize("column", VERSION["additionalPrinterColumns"], ids=lambda one: one["name"])
def test_a_column_shows_a_field_that_exists(column: Mapping[str, Any]) -> None:
    path = re.sub(r"\[\?\(.*?\)\]", "", column["jsonPath"]).removeprefix(".")
    schema = OBJECT
    for name in path.split("."):
        schema = schema.get("items", schema)
        if name == "metadata":
            return
        schema = schema["properties"][name]
    assert schema["type"] == column["type"]


def test_the_scale_subresource_finds_its_fields() -> None:
    scale = VERSION["subresources"]["scale"]
    kinds = {key: schema_at(path[1:], OBJECT)["type"] for key, path in scale.items()}
    assert kinds == {
        "specReplicasPath": "integer",
        "statusReplicasPath": "integer",
        "labelSelectorPath": "string",
    }
