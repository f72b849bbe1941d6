"""The rule for a list of records, and the schema of a record.

Beside `shapes`, whose lists are passed on as they are: here each entry is read into a record of its
own, by its declaration.
"""

from collections import Counter
from dataclasses import Field, dataclass
from typing import Any

from batchedmodel_contract.invalid_input import Mistake
from batchedmodel_contract.schema.reading import (
    Section,
    Setting,
    declarations,
    default_text,
    read,
)
from batchedmodel_contract.schema.rules import Broken, Schema, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """A list of records, no two of which have the same `name`."""

    of: type[Any]
    form: str
    at_most: int

    def read(self, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise Broken(f"is not {self.form}")
        if len(value) > self.at_most:
            raise Broken(f"has {len(value)} entries, more than the {self.at_most} allowed")
        records = [_record(self.of, entry, f"[{at}]") for at, entry in enumerate(value)]
        for name, times in Counter(record.name for record in records).items():
            if times > 1:
                raise Broken(f"names {name} more than once")
        return tuple(records)

    def schema(self) -> Schema:
        return {
            "type": "array",
            "items": {"description": f"One of {self.form}.", **record_schema(self.of)},
            "maxItems": self.at_most,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        }

    def __str__(self) -> str:
        return self.form


def _record(of: type[Any], entry: object, where: str) -> Any:
    mistakes: list[Mistake] = []
    record = read(of, entry, where, mistakes)
    if record is None:
        first = mistakes[0]
        raise Broken(f"{first.rule} ({first.value})" if first.value else first.rule, first.field)
    return record


def record_schema(of: type[Any]) -> Schema:
    """The schema of a record, for an API server.

    It fills in no defaults: those that were written out could not be told from what an author says,
    and a BatchedModelClass gives what authors do not say.
    """
    required = [declared.name for _, declared in declarations(of) if declared.required]
    properties: Schema = {}
    for field, declared in declarations(of):
        if isinstance(declared, Section):
            below = record_schema(declared.of)
        else:
            below = declared.rule.schema()
        properties[declared.name] = {"description": _described(field, declared), **below}
    needed = {"required": required} if required else {}
    return {"type": "object", **needed, "properties": properties}


def _described(field: Field[Any], declared: Setting | Section) -> str:
    if isinstance(declared, Section):
        return declared.doc
    sentences = [declared.doc]
    if isinstance(declared.rule, Text) and declared.rule.pattern is not None:
        sentences.append(f"Must be {declared.rule.form}.")
    if declared.effective:
        sentences.append(f"When absent: {declared.effective}.")
    if default := default_text(field, declared):
        sentences.append(f"Default: {default}.")
    return " ".join(sentences)
