"""States the declarations of `spec` as the structural OpenAPI v3 schema of a custom resource.

Called by `custom_resource`. Pure, and without knowledge of any single field: names, rules,
descriptions and defaults come from the records, rules over several fields from `checks`.
"""

from enum import StrEnum
from typing import Any, Final

from batchedmodel_contract.manifest import spec_size
from batchedmodel_contract.manifest.cross_field_rules import CHECKS
from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_contract.schema.reading import Section, Setting, declarations
from batchedmodel_contract.schema.rules import Schema, Text

_KINDS: Final = ("type", "x-kubernetes-int-or-string")
"""The keywords of which a value's schema has one."""


def spec_schema() -> Schema:
    """The schema of `spec`."""
    validations = [spec_size.validation(), *(check.validation() for check in CHECKS)]
    return record_schema(Spec) | {"x-kubernetes-validations": validations}


def record_schema(of: type[Any]) -> Schema:
    """The schema of one declared record, with everything below it."""
    required = [declared.name for _, declared in declarations(of) if declared.required]
    properties: Schema = {}
    for field, declared in declarations(of):
        if isinstance(declared, Section):
            properties[declared.name] = _section(declared, absent=field.default is None)
        else:
            properties[declared.name] = _setting(declared, field.default)
    return {
        "type": "object",
        **({"required": required} if required else {}),
        "properties": properties,
    }


def effective_schema(of: type[Any]) -> Schema:
    """The fields whose value depends on others when the author gives none, as a status shows them.

    Without bounds: what follows from two values may exceed the limits that hold for one.
    """
    properties: Schema = {}
    for _, declared in declarations(of):
        if isinstance(declared, Section):
            below = effective_schema(declared.of)
            if below["properties"]:
                properties[declared.name] = {"description": declared.doc, **below}
        elif declared.effective:
            bounded = declared.rule.schema()
            kind = {name: bounded[name] for name in _KINDS if name in bounded}
            properties[declared.name] = {"description": declared.doc, **kind}
    return {"type": "object", "properties": properties}


def _section(declared: Section, *, absent: bool) -> Schema:
    schema = record_schema(declared.of)
    if not absent and not declared.required and _has_defaults(schema):
        # An API server fills in defaults only below what is there.
        schema = {"default": {}, **schema}
    return {"description": declared.doc, **schema}


def _setting(declared: Setting, default: object) -> Schema:
    schema = declared.rule.schema()
    # An empty list or mapping says no more than its absence, and would clutter every object.
    if not declared.required and default not in (None, ()):
        schema = {"default": default.value if isinstance(default, StrEnum) else default, **schema}
    return {"description": _description(declared), **schema}


def _description(declared: Setting) -> str:
    sentences = [declared.doc]
    if isinstance(declared.rule, Text) and declared.rule.pattern is not None:
        sentences.append(f"Must be {declared.rule.form}.")
    if declared.effective:
        sentences.append(f"When absent: {declared.effective}.")
    return " ".join(sentences)


def _has_defaults(schema: Schema) -> bool:
    return any("default" in field for field in schema["properties"].values())
