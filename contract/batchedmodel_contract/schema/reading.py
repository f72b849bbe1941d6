"""Reads a mapping into a frozen record whose fields carry their own rules.

The records of `spec` are declared with `setting` and `section`; `read` walks the declaration, so a
field's name, default, rule and description, which is the docstring behind it, exist once. It
collects every mistake instead of stopping at the first, because an author wants to mend a manifest
in one go. Beside the lists of `shapes`, which are passed on as they are, `Records` reads each entry
into a record of its own.
"""

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar

from batchedmodel_contract.invalid_input import InvalidInput, Mistake, shown
from batchedmodel_contract.schema.rules import Broken, Rule
from batchedmodel_contract.schema.shapes import ListOf, refuse_repeats

_DECLARATION = "batchedmodel"
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one field."""

    name: str
    """As a manifest writes it: `maxBatchSize` of the field `max_batch_size`."""
    rule: Rule
    required: bool
    effective: str
    """How the value is found when the author gives none and it depends on other fields."""
    edit: str = ""
    """The mark of the field: what an edit does in a cluster. Empty: what its section says."""
    repeats: type[Any] | None = None
    """The record that declares the field first."""


Declared: TypeAlias = tuple[dataclasses.Field[Any], Setting]


@dataclass(frozen=True, slots=True)
class RecordOf:
    """A record of one type."""

    of: type[Any]

    def read(self, value: object) -> Any:
        mistakes: list[Mistake] = []
        record = read(self.of, value, "", mistakes)
        if record is None:
            first = mistakes[0]
            why = f"{first.rule} ({first.value})" if first.value else first.rule
            raise Broken(why, first.field.removeprefix("."))
        return record


def setting(
    rule: Rule,
    *,
    required: bool = False,
    effective: str = "",
    edit: str = "",
    default: Any = None,
) -> Any:
    """Declare a field. Absent and without a default it is None; `effective` says what holds."""
    declared = Setting(name="", rule=rule, required=required, effective=effective, edit=edit)
    return dataclasses.field(default=default, metadata={_DECLARATION: declared})


def section(of: type[Any], *, required: bool = False, edit: str = "", default: Any = None) -> Any:
    """Declare a field that holds another record."""
    return setting(RecordOf(of), required=required, edit=edit, default=default)


def as_in(
    of: type[Any], name: str, *, effective: str = "", default: Any = dataclasses.MISSING
) -> Any:
    """Declare a field as another record has it, but for its default and what is `effective`."""
    origin = next(field for field in dataclasses.fields(of) if field.name == name)
    declared: Setting = origin.metadata[_DECLARATION]
    repeated = dataclasses.replace(declared, repeats=of, effective=effective or declared.effective)
    return dataclasses.field(
        default=origin.default if default is dataclasses.MISSING else default,
        metadata={_DECLARATION: repeated},
    )


def declarations(of: type[Any]) -> tuple[Declared, ...]:
    """The declared fields of a record, in the order they were written."""
    return _declarations(of)  # type: ignore[arg-type]  # mypy takes type[Any] for unhashable


@cache
def _declarations(of: type[Any]) -> tuple[Declared, ...]:
    return tuple(
        (field, dataclasses.replace(field.metadata[_DECLARATION], name=camel_case(field.name)))
        for field in dataclasses.fields(of)
        if _DECLARATION in field.metadata
    )


def read(of: type[Record], value: object, path: str, mistakes: list[Mistake]) -> Record | None:
    """The record that the value describes, or None when its mistakes leave no record to build."""
    if not isinstance(value, Mapping):
        mistakes.append(Mistake(field=path, rule="is not a mapping", value=shown(value)))
        return None
    known = {declared.name: (field, declared) for field, declared in declarations(of)}
    before = len(mistakes)
    mistakes.extend(
        unknown_field(name, known, f"{path}.{name}") for name in value if name not in known
    )
    found: dict[str, object] = {}
    for name, (field, declared) in known.items():
        given, below = value.get(name), f"{path}.{name}"
        if given is None:
            # An explicit null reads as absent, as it does to a Kubernetes API server.
            if declared.required:
                mistakes.append(Mistake(field=below, rule="is required"))
        elif isinstance(declared.rule, RecordOf):
            found[field.name] = read(declared.rule.of, given, below, mistakes)
        else:
            try:
                found[field.name] = declared.rule.read(given)
            except Broken as broken:
                mistakes.append(Mistake(field=below, rule=str(broken), value=shown(given)))
    return of(**found) if len(mistakes) == before else None


def ruled(rule: Rule, value: object, field: str) -> Any:
    """The value of a field of a message, by its rule; raises `InvalidInput`."""
    try:
        return rule.read(value)
    except Broken as broken:
        raise InvalidInput(field, str(broken), value) from broken


def unknown_field(name: object, known: Collection[str], path: str) -> Mistake:
    """The mistake of a field that nobody declared, with the name that may have been meant."""
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}"
    return Mistake(field=path, rule=f"is not a known field{hint}")


def camel_case(name: str) -> str:
    """The name of a field as JSON has it."""
    first, *words = name.split("_")
    return first + "".join(word.title() for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records(ListOf):
    """A list of records, no two of which have the same `name`."""

    each: RecordOf

    def read(self, value: object) -> tuple[Any, ...]:
        records = tuple(ListOf.read(self, value))
        refuse_repeats(record.name for record in records)
        return records
