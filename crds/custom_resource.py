"""The definitions of `BatchedModel` and `BatchedModelClass`, as this folder holds them.

`generate.py` writes them to files, and a test holds the files to them. `templates` has what is
written by hand. The schema of `spec` follows from its declarations: names, rules and descriptions
come from the records, rules over several fields from `cross_field_rules`.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from batchedmodel_contract.schema.reading import RecordOf, declarations
from batchedmodel_kube.manifest.cross_field_rule import PLACEHOLDER, Check, read_in_cel
from batchedmodel_kube.manifest.cross_field_rules import CHECKS
from batchedmodel_kube.manifest.manifest import (
    LARGEST_SPEC,
    MODEL_NAME,
    SAME_NAME_RULE,
    SIZE_RULE,
    TAKEN_NAME_RULE,
    TAKEN_NAMES,
)
from batchedmodel_kube.manifest.model_class import ClassSpec
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.names import CLASS_PLURAL, PLURAL
from descriptions import description
from structural_schema import Schema, anchored, record_schema, rule_schema

_TEMPLATES: Final = Path(__file__).with_name("templates")
_READ: Final = re.compile(r"\bself\.([A-Za-z]+(?:\.[A-Za-z]+)*)(?![A-Za-z(])")
"""The path of a field that a rule in CEL reads."""
_KINDS: Final = ("type", "x-kubernetes-int-or-string")
"""The keywords of which a value's schema has one."""


def custom_resource() -> Schema:
    """The CustomResourceDefinition of BatchedModel."""
    definition = _template(PLURAL)
    schema = schema_of(definition)
    schema["x-kubernetes-validations"] = [*_name_validations(), _same_name_validation()]
    schema["properties"]["spec"] |= spec_schema()
    schema["properties"]["status"]["properties"]["effective"] |= effective_schema(Spec)
    return definition


def class_resource() -> Schema:
    """The CustomResourceDefinition of BatchedModelClass."""
    definition = _template(CLASS_PLURAL)
    schema_of(definition)["properties"]["spec"] |= class_schema()
    return definition


def _template(plural: str) -> Schema:
    definition: Schema = yaml.safe_load((_TEMPLATES / f"{plural}.yaml").read_text("utf-8"))
    return definition


def schema_of(definition: Schema) -> Schema:
    """The schema of the objects that a definition defines."""
    (version,) = definition["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def class_schema() -> Schema:
    """The schema of a class's `spec`."""
    return record_schema(ClassSpec) | {"x-kubernetes-validations": [_size_validation()]}


def spec_schema() -> Schema:
    """The schema of `spec`."""
    validations = [_size_validation(), *(_validation(check) for check in CHECKS)]
    return record_schema(Spec) | {"x-kubernetes-validations": validations}


def _validation(check: Check) -> Schema:
    """The rule of a check, but for manifests whose class may say something of it.

    An API server does not know what: the operator judges these.
    """
    said = {"message": check.rule}
    fields = PLACEHOLDER.findall(check.rule)
    sentence = PLACEHOLDER.sub("%s", check.rule)
    if check.shows_its_value():
        fields, sentence = [check.field, *fields], f"%s {sentence}"
    if fields:
        # Joining texts by `+` would exceed the cost that an API server allows.
        values = ", ".join(read_in_cel(field)[1] for field in fields)
        said = {"messageExpression": f"{json.dumps(sentence)}.format([{values}])"}
    rule = (~check.fault).cel
    if any(map(_may_come_from_class, _READ.findall(rule))):
        rule = f"has(self.className) || {rule}"
    return {"rule": rule, **said, "fieldPath": f".{check.field}", "reason": check.reason.value}


def _may_come_from_class(path: str) -> bool:
    """Whether a class may say what stands under a path below `spec`, or a part of it."""
    of: type[Any] = ClassSpec
    for name in path.split("."):
        found = next((one for _, one in declarations(of) if one.name == name), None)
        if found is None:
            return False
        if not isinstance(found.rule, RecordOf):
            return True
        of = found.rule.of
    return True


def _size_validation() -> Schema:
    # A formatted object is JSON but for some escapes. Two hexadecimal digits stand for each byte:
    # `bytes()` and `size()` of a text whose length nobody declared would exceed the cost that an
    # API server allows.
    text = "'%s'.format([dyn(self)])"
    return {
        "rule": f"size('%x'.format([{text}])) <= {2 * LARGEST_SPEC}",
        "message": SIZE_RULE,
        "reason": "FieldValueForbidden",
    }


def _same_name_validation() -> Schema:
    items = "self.spec.adapters.items"
    same = f"{items}.exists(item, item.name == self.metadata.name)"
    return {
        "rule": f"!(has(self.spec.adapters) && has({items}) && {same})",
        "message": SAME_NAME_RULE,
        "fieldPath": ".spec.adapters.items",
    }


def effective_schema(of: type[Any]) -> Schema:
    """The fields whose value depends on others when the author gives none, as a status shows them.

    Without bounds: what follows from two values may exceed the limits that hold for one.
    """
    properties: Schema = {}
    for field, declared in declarations(of):
        described = {"description": description(of, field.name)}
        if isinstance(declared.rule, RecordOf):
            below = effective_schema(declared.rule.of)
            if below["properties"]:
                properties[declared.name] = described | below
        elif declared.effective:
            bounded = rule_schema(declared.rule)
            kind = {name: bounded[name] for name in _KINDS if name in bounded}
            properties[declared.name] = described | kind
    return {"type": "object", "properties": properties}


def _name_validations() -> list[Schema]:
    # One that is there already takes its status, which says what is wrong with it.
    free = f"oldSelf.hasValue() || !(self.metadata.name in {TAKEN_NAMES})"
    pattern = anchored(str(MODEL_NAME.pattern))
    return [
        _name_validation(f"self.metadata.name.matches('{pattern}')", f"is not {MODEL_NAME.form}"),
        {**_name_validation(free, TAKEN_NAME_RULE), "optionalOldSelf": True},
    ]


def _name_validation(rule: str, sentence: str) -> Schema:
    said = json.dumps(f'"%s" {sentence}')
    return {
        "rule": rule,
        "messageExpression": f"{said}.format([self.metadata.name])",
        "fieldPath": ".metadata.name",
    }
