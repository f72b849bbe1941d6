"""Fields of a record by a path of manifest names such as ``batching.maxBatchSize``."""

from collections.abc import Callable
from typing import Any

from batchedmodel_contract.schema.reading import Declared, RecordOf, Records, declarations


def declared_at(of: type[Any], path: str) -> tuple[Declared, ...]:
    """The fields on a path of manifest names such as ``batching.maxBatchSize``.

    It may lead into the records of a list, as ``adapters.items.name`` does.
    """
    found: list[Declared] = []
    for name in path.split("."):
        found.append(next(pair for pair in declarations(of) if pair[1].name == name))
        _, declared = found[-1]
        rule = declared.rule.each if isinstance(declared.rule, Records) else declared.rule
        if isinstance(rule, RecordOf):
            of = rule.of
    return tuple(found)


def getter(of: type[Any], path: str) -> Callable[[object], Any]:
    """What takes the value under such a path out of a record; None where it, or a section, is not.

    The path is looked up once, and not for each record.
    """
    names = [field.name for field, _ in declared_at(of, path)]

    def value(record: object) -> Any:
        for name in names:
            if record is None:
                return None
            record = getattr(record, name)
        return record

    return value


def value_at(record: object, path: str) -> Any:
    """The value under such a path; None where it, or a section on the way to it, is absent."""
    return getter(type(record), path)(record)
