"""Finds the fields of a spec that differ, each with what the mark of the field says. Pure.

It walks the declarations and knows no single field. A section that only one side has counts as one
field.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batchedmodel_contract.schema.reading import RecordOf, Records, Setting, declarations
from batchedmodel_contract.schema.shapes import MapOf
from batchedmodel_kube.manifest.effect import Effect
from batchedmodel_kube.manifest.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One field whose value differs."""

    field: str
    """As the manifest has it, from ``spec`` on."""
    old: object
    """As JSON has it; None: absent."""
    new: object
    effect: Effect


def edits(old: Spec, new: Spec) -> tuple[Edit, ...]:
    """Every field that differs, in the order of the declarations; defaults are filled in."""
    return tuple(_edits(Spec, old, new, "spec", ""))


def in_order(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """Each effect once, the worst first."""
    return tuple(sorted(set(effects), key=[*Effect].index))


def _edits(of: type[Any], old: Any, new: Any, above: str, mark: str) -> Iterator[Edit]:
    for field, declared in declarations(of):
        before, after = getattr(old, field.name), getattr(new, field.name)
        path = f"{above}.{declared.name}"
        if before == after:
            continue
        rule = declared.rule
        if isinstance(rule, RecordOf) and before is not None and after is not None:
            yield from _edits(rule.of, before, after, path, declared.edit or mark)
        else:
            marks = [*_marks(declared, before, mark), *_marks(declared, after, mark)]
            yield Edit(
                field=path,
                old=_as_json(declared, before),
                new=_as_json(declared, after),
                effect=in_order(marks)[0],
            )


def _marks(declared: Setting, value: object, inherited: str) -> Iterator[Effect]:
    """The mark of a field and, of a section, those of the fields that it sets."""
    mark = declared.edit or inherited
    yield Effect(mark)
    if isinstance(declared.rule, RecordOf) and value is not None:
        for field, inner in declarations(declared.rule.of):
            within = getattr(value, field.name)
            if within != field.default:
                yield from _marks(inner, within, mark)


def _as_json(declared: Setting, value: Any) -> object:
    if value is None:
        return None
    if isinstance(declared.rule, RecordOf):
        return _record_as_json(declared.rule, value)
    if isinstance(declared.rule, Records):
        return [_record_as_json(declared.rule.each, one) for one in value]
    if isinstance(value, tuple):
        return dict(value) if isinstance(declared.rule, MapOf) else list(value)
    return value.value if isinstance(value, StrEnum) else value


def _record_as_json(record: RecordOf, value: Any) -> object:
    values = {
        inner.name: _as_json(inner, getattr(value, field.name))
        for field, inner in declarations(record.of)
    }
    return {name: inner for name, inner in values.items() if inner is not None}
