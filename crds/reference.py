"""Writes `docs/reference.md` from the custom resource, for `make crds`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from batchedmodel_kube.manifest.cross_field_rule import PLACEHOLDER
from batchedmodel_kube.manifest.cross_field_rules import CHECKS
from batchedmodel_kube.manifest.manifest import SIZE_RULE
from custom_resource import class_schema, custom_resource, schema_of

Schema = dict[str, Any]

_HEAD: Final = """\
# Reference of the resource BatchedModel

Every field of `apiVersion: batchedmodel.dev/v1alpha1`, `kind: BatchedModel`, as an API server knows
it and as `kubectl explain batchedmodel.spec` shows it. Written by `crds/reference.py` from the
declarations in `kube/` and `contract/`; change those, then run `make crds`.

A default holds where neither the manifest nor its [class](#class) says anything. It is not written
into the object; what depends on other fields stands under `status.effective`. An unknown field is
an error of `batchedmodel run`, and of an API server where the client is strict, as kubectl is.
"""
_RULES: Final = """\
## Rules over several fields

An API server refuses a manifest that breaks one of them, and so does `batchedmodel run`. Each line
is what they say of the field; dots stand for a value.
"""
_CLASS: Final = """\
## Class

A `BatchedModelClass` (`kubectl get bmc`) belongs to the cluster and to no namespace. Its `spec` has
these fields of a BatchedModel's, each of which may be absent; they mean what they mean there, and
hold for the BatchedModels that name the class and do not say the same themselves.
"""
_OWN: Final = "allowedNamespaces"
_TABLE: Final = ("| Field | Type | Default | Meaning |", "|---|---|---|---|")
_OWN_LIST: Final = {
    "integer": "integers",
    "number": "numbers",
    "string": "strings",
    "boolean": "truths",
}


def content() -> str:
    """What the file should hold."""
    schema = schema_of(custom_resource())["properties"]
    parts = [
        _HEAD,
        *_sections("spec", schema["spec"], level=2),
        _RULES,
        *_rules(),
        "",
        *_sections("status", schema["status"], level=2),
        _CLASS,
        *_class_fields("spec", class_schema()),
        "",
        "And one of its own:",
        "",
        *_TABLE,
        _row("class.allowedNamespaces", _OWN, class_schema()["properties"][_OWN], required=False),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _sections(path: str, schema: Schema, *, level: int) -> Iterator[str]:
    """The section of an object and, after it, those of the objects within."""
    yield f"{'#' * level} `{path}`\n"
    if schema.get("description"):
        yield f"{schema['description']}\n"
    required = schema.get("required", ())
    yield from _TABLE
    for name, field in schema["properties"].items():
        yield _row(f"{path}.{name}", name, field, required=name in required)
    yield ""
    for name, field in schema["properties"].items():
        below = field.get("items", field)
        if _has_section(below):
            yield from _sections(f"{path}.{name}", below, level=3)


def _class_fields(path: str, schema: Schema) -> Iterator[str]:
    for name, field in schema["properties"].items():
        below = f"{path}.{name}"
        if below == "spec.model":
            yield from _class_fields(below, field)
        elif name != _OWN:
            link = below if _has_section(field) else path
            yield f"- [`{below}`](#{_anchor(link)})"


def _has_section(schema: Schema) -> bool:
    # Fields that nobody describes here are of Kubernetes' own types, which it explains itself.
    fields = schema.get("properties", {}).values()
    return bool(fields) and all("description" in field for field in fields)


def _row(path: str, name: str, field: Schema, *, required: bool) -> str:
    shown = f"[`{name}`](#{_anchor(path)})" if _has_section(field.get("items", field)) else name
    description, _, given = field["description"].partition(" Default: ")
    default = "required" if required else given and f"`{given.removesuffix('.')}`"
    cells = (shown if "[" in shown else f"`{name}`", _type(field), default, description)
    return f"| {' | '.join(cells)} |"


def _anchor(path: str) -> str:
    return re.sub(r"[^a-z0-9-]", "", path.lower())


def _type(field: Schema) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        if "minimum" not in field:
            return "integer or percentage"
        return f"integer, {field['minimum']} to {field['maximum']}, or a percentage"
    match field["type"]:
        case "array":
            return f"list of {_of(field['items'])}{_at_most(field.get('maxItems'))}"
        case "object" if "additionalProperties" in field:
            values = field["additionalProperties"]
            quantity = "x-kubernetes-int-or-string" in values
            what = "quantities" if quantity else _OWN_LIST[values["type"]]
            return f"{what} by name{_at_most(field.get('maxProperties'))}"
        case "integer" if "minimum" in field and "maximum" in field:
            return f"integer, {field['minimum']} to {field['maximum']}"
        case "number" if "maximum" in field:
            return f"number, {field['minimum']:g} to {field['maximum']:g}"
        case kind:
            return str(kind)


def _of(items: Schema) -> str:
    return _OWN_LIST.get(items["type"], "objects")


def _at_most(count: int | None) -> str:
    return "" if count is None else f", up to {count}"


def _rules() -> Iterator[str]:
    yield f"- `spec` {SIZE_RULE}"
    for check in CHECKS:
        yield f"- `spec.{check.field}` {PLACEHOLDER.sub('...', check.rule)}"


if __name__ == "__main__":
    file = Path(__file__).parents[1] / "docs" / "reference.md"
    file.write_text(content(), "utf-8")
