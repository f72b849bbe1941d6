"""The declarations of the contract, as structural OpenAPI v3 schemas for an API server.

Whatever a rule's `read` refuses its schema refuses too, and the other way round: one manifest
serves on one machine and in a cluster.
"""

import dataclasses
import json
from typing import Any, Final

from batchedmodel_contract.schema import rules
from batchedmodel_contract.schema.reading import RecordOf, Records, Setting, declarations
from batchedmodel_contract.schema.rules import Rule
from batchedmodel_contract.schema.shapes import NOT_ASCENDING, AscendingWholes, ListOf, MapOf, Names
from batchedmodel_kube.schema import quantities
from batchedmodel_kube.schema.shapes import LONGEST_LABEL, NamedEntries, Shape
from descriptions import description

Schema = dict[str, Any]
"""A part of such a schema, as a custom resource's definition holds it."""
_NUMBER_OR_TEXT: Final = {"x-kubernetes-int-or-string": True}


def anchored(pattern: str) -> str:
    """The pattern as an API server needs it: there, a match anywhere in the text would do."""
    return f"^(?:{pattern})$" if "|" in pattern else f"^{pattern}$"


def record_schema(of: type[Any]) -> Schema:
    """The schema of a record.

    It fills in no defaults: those that were written out could not be told from what an author says,
    and a BatchedModelClass gives what authors do not say.
    """
    required = [declared.name for _, declared in declarations(of) if declared.required]
    properties: Schema = {}
    for field, declared in declarations(of):
        sentences = " ".join([description(of, field.name), *_sentences(field, declared)])
        properties[declared.name] = {"description": sentences, **rule_schema(declared.rule)}
    needed = {"required": required} if required else {}
    return {"type": "object", **needed, "properties": properties}


def _sentences(field: dataclasses.Field[Any], declared: Setting) -> list[str]:
    if isinstance(declared.rule, RecordOf):
        return []
    sentences = []
    # Of the others the schema says all.
    if not isinstance(declared.rule, rules.Whole | rules.Real | rules.Choice | rules.Truth):
        sentences.append(f"Must be {declared.rule}.")
    if declared.effective:
        sentences.append(f"When absent: {declared.effective}.")
    if not declared.required and field.default not in (None, ()):
        default = json.dumps(field.default).strip('"')
        sentences.append(f"Default: {default}.")
    return sentences


def rule_schema(rule: Rule) -> Schema:
    """The schema of a value that keeps a rule, without description and default."""
    match rule:
        case rules.Whole(minimum=minimum, maximum=maximum):
            return {"type": "integer", "minimum": minimum, "maximum": maximum}
        case rules.Real(minimum=minimum, maximum=maximum):
            # An API server cuts a bound's fraction off before it compares a whole number with it.
            lowest = {"rule": f"self >= {float(minimum)}", "message": f"is not within {rule}"}
            bounds = {"minimum": minimum, "maximum": maximum}
            return {"type": "number", **bounds, "x-kubernetes-validations": [lowest]}
        case rules.Text(pattern=pattern):
            least = {"minLength": rule.at_least} if rule.at_least else {}
            form = {} if pattern is None else {"pattern": anchored(pattern)}
            return {"type": "string", **least, "maxLength": rule.at_most, **form}
        case rules.Choice(of=of):
            return {"type": "string", "enum": [member.value for member in of]}
        case rules.Truth():
            return {"type": "boolean"}
        case quantities.Quantity():
            length = {"minimum": 0, "maxLength": quantities.LONGEST_QUANTITY}
            return {**_NUMBER_OR_TEXT, **length, "pattern": anchored(quantities.QUANTITY)}
        case quantities.Amount(longest=longest):
            bounds = {"minimum": -rules.LARGEST, "maximum": rules.LARGEST}
            return {**_NUMBER_OR_TEXT, **bounds, "maxLength": longest}
        case quantities.CountOrPercent(minimum=minimum, maximum=maximum):
            bounds = {"minimum": minimum, "maximum": maximum, "maxLength": len("100%")}
            return {**_NUMBER_OR_TEXT, **bounds, "pattern": anchored(rule.percent)}
        case Shape():
            return _shape_schema(rule)
        case MapOf():
            return _map_schema(rule)
        case RecordOf(of=of):
            return record_schema(of)
        case Records():
            items = {"description": f"One of {rule.form}.", **rule_schema(rule.each)}
            keys = {"x-kubernetes-list-map-keys": ["name"]}
            return _list_schema(rule.at_most, items, "map") | keys
        case NamedEntries():
            return _list_schema(rule.at_most, _named(rule_schema(rule.each)), "map") | {
                "x-kubernetes-list-map-keys": [rule.key]
            }
        case AscendingWholes():
            ascending = {
                "rule": "self.isSorted() && self.all(edge, self.exists_one(one, one == edge))",
                "messageExpression": f"'%s {NOT_ASCENDING}'.format([self])",
            }
            return _list_schema(rule.at_most, rule_schema(rule.each), "atomic") | {
                "x-kubernetes-validations": [ascending]
            }
        case ListOf():
            kind = "set" if isinstance(rule, Names) else "atomic"
            return _list_schema(rule.at_most, rule_schema(rule.each), kind)
    raise TypeError(f"no schema of {rule!r}")


def _list_schema(at_most: int, items: Schema, kind: str) -> Schema:
    bounded = {"type": "array", "items": items, "maxItems": at_most}
    return bounded | {"x-kubernetes-list-type": kind}


def _named(entry: Schema) -> Schema:
    name = {"type": "string", "minLength": 1, "maxLength": LONGEST_LABEL}
    properties = {**entry["properties"], "name": name}
    return {**entry, "properties": properties, "required": ["name", *entry.get("required", ())]}


def _shape_schema(rule: Shape) -> Schema:
    fields = {name: rule_schema(field) for name, field in rule.fields.items()}
    whole: Schema = {"type": "object", "properties": fields}
    if rule.required:
        whole["required"] = list(rule.required)
    if rule.law is not None:
        law = {"rule": rule.law.cel, "message": rule.law.fault}
        whole["x-kubernetes-validations"] = [law]
    return whole


def _map_schema(rule: MapOf) -> Schema:
    whole: Schema = {
        "type": "object",
        "additionalProperties": rule_schema(rule.each),
        "maxProperties": rule.at_most,
    }
    if rule.keys is not None:
        fits = f"self.all(key, key.matches('{anchored(rule.keys.pattern or '')}'))"
        message = f"has a key that is not {rule.keys}"
        whole["x-kubernetes-validations"] = [{"rule": fits, "message": message}]
    return whole
