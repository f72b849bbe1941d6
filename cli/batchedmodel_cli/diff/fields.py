"""Finds the fields of a spec that differ, and makes a spec with only some of them edited. Pure.

It walks the contract's declarations and knows no single field. A section that only one side has
counts as one field.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from batchedmodel_contract.schema.reading import RecordOf, declarations
from batchedmodel_contract.schema.shapes import MapOf
from batchedmodel_kube.manifest.cross_field_rules import CHECKS
from batchedmodel_kube.manifest.spec import Spec

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One field whose value differs."""

    path: str
    """As the manifest has it, from ``spec`` on."""
    old: object
    """As JSON has it; None: absent."""
    new: object
    names: tuple[str, ...]
    """The same path as the records' attributes name it."""

    def made_in(self, spec: Spec, source: Spec) -> Spec:
        """`spec` with this field as `source` has it."""
        return _replaced(spec, source, self.names)


def edits(old: Spec, new: Spec) -> tuple[Edit, ...]:
    """Every field that differs, in the order of the declarations; defaults are filled in."""
    return tuple(_edits(Spec, old, new, "spec", ()))


def obeys(spec: Spec) -> bool:
    """Whether the spec keeps the rules over several fields, which the API server enforces."""
    return not any(check.broken(spec) for check in CHECKS)


def as_manifest(spec: Spec) -> dict[str, Any]:
    """The spec as a manifest has it, its defaults filled in."""
    return _mapping(Spec, spec)


def leaves(mapping: Mapping[str, Any], path: str = "spec") -> Iterator[tuple[str, object]]:
    """The values below a nested mapping with their paths."""
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}.{name}")
        else:
            yield f"{path}.{name}", value


def _edits(of: type[Any], old: Any, new: Any, path: str, names: tuple[str, ...]) -> Iterator[Edit]:
    for field, declared in declarations(of):
        before, after = getattr(old, field.name), getattr(new, field.name)
        below, inner = f"{path}.{declared.name}", (*names, field.name)
        if before == after:
            continue
        if isinstance(declared.rule, RecordOf) and before is not None and after is not None:
            yield from _edits(declared.rule.of, before, after, below, inner)
        else:
            yield Edit(
                path=below, old=_shown(declared, before), new=_shown(declared, after), names=inner
            )


def _replaced(record: _Record, source: Any, names: tuple[str, ...]) -> _Record:
    name, *deeper = names
    value = getattr(source, name)
    if deeper:
        value = _replaced(getattr(record, name), value, tuple(deeper))
    changed: dict[str, Any] = {name: value}
    return dataclasses.replace(record, **changed)  # type: ignore[type-var]


def _mapping(of: type[Any], record: object) -> dict[str, Any]:
    return {
        declared.name: value
        for field, declared in declarations(of)
        if (value := _shown(declared, getattr(record, field.name))) is not None
    }


def _shown(declared: Any, value: object) -> object:
    """A value as JSON has it."""
    if value is None:
        return None
    if isinstance(declared.rule, RecordOf):
        return _mapping(declared.rule.of, value)
    if isinstance(value, tuple):
        return dict(value) if isinstance(declared.rule, MapOf) else list(value)
    return value.value if isinstance(value, StrEnum) else value
