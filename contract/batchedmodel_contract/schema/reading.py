"""Reads a mapping into a frozen record whose fields carry their own rules.

The records of `spec` are declared with `setting` and `section`; `read` walks the declaration, so a
field's name, default, rule and description exist once. It collects every mistake instead of
stopping at the first, because an author wants to mend a manifest in one go.
"""

import dataclasses
import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from batchedmodel_contract.invalid_input import Mistake, shown
from batchedmodel_contract.schema.rules import Broken, Rule

_DECLARATION = "batchedmodel"
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one field that holds a value."""

    name: str
    rule: Rule
    doc: str
    required: bool
    effective: str
    """How the value is found when the author gives none and it depends on other fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The declaration of one field that holds a record of its own."""

    name: str
    of: type[Any]
    doc: str
    required: bool


def setting(
    name: str,
    rule: Rule,
    doc: str,
    *,
    required: bool = False,
    effective: str = "",
    default: Any = None,
) -> Any:
    """Declare a field. Absent and without a default it is None; `effective` says what holds."""
    declared = Setting(name=name, rule=rule, doc=doc, required=required, effective=effective)
    return dataclasses.field(default=default, metadata={_DECLARATION: declared})


def section(
    name: str, of: type[Any], doc: str, *, required: bool = False, default: Any = None
) -> Any:
    """Declare a field that holds another record."""
    declared = Section(name=name, of=of, doc=doc, required=required)
    return dataclasses.field(default=default, metadata={_DECLARATION: declared})


def declarations(of: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], Setting | Section]]:
    """The declared fields of a record, in the order they were written."""
    for field in dataclasses.fields(of):
        if _DECLARATION in field.metadata:
            yield field, field.metadata[_DECLARATION]


def declaration_at(of: type[Any], path: str) -> Setting | Section:
    """The declaration under a path of manifest names such as ``batching.maxBatchSize``."""
    *parents, last = path.split(".")
    for name in parents:
        section = _declared(of, name)[1]
        assert isinstance(section, Section), f"a path of ours leads through {name}, a single value"
        of = section.of
    return _declared(of, last)[1]


def value_at(record: object, path: str) -> object:
    """The value under such a path; None when it, or a section on the way to it, is absent."""
    for name in path.split("."):
        if record is None:
            return None
        record = getattr(record, _declared(type(record), name)[0].name)
    return record


def _declared(of: type[Any], name: str) -> tuple[dataclasses.Field[Any], Setting | Section]:
    return next(pair for pair in declarations(of) if pair[1].name == name)


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
        given = value.get(name)
        if given is None:
            # An explicit null reads as absent, as it does to a Kubernetes API server.
            if declared.required:
                mistakes.append(Mistake(field=f"{path}.{name}", rule="is required"))
            continue
        if isinstance(declared, Section):
            found[field.name] = read(declared.of, given, f"{path}.{name}", mistakes)
        else:
            found[field.name] = _value(declared, given, f"{path}.{name}", mistakes)
    return of(**found) if len(mistakes) == before else None


def _value(declared: Setting, given: object, path: str, mistakes: list[Mistake]) -> object:
    try:
        return declared.rule.read(given)
    except Broken as broken:
        mistakes.append(Mistake(field=path, rule=str(broken), value=shown(given)))
        return None


def unknown_field(name: object, known: Collection[str], path: str) -> Mistake:
    """The mistake of a field that nobody declared, with the name that may have been meant."""
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}"
    return Mistake(field=path, rule=f"is not a known field{hint}")
