"""What a manifest's fields mean: the docstrings behind them, read from the source."""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

from batchedmodel_contract.schema.reading import declarations


def description(of: type[Any], name: str) -> str:
    """The docstring behind a field of a record, or behind the field that it repeats."""
    own = _docstrings(sys.modules[of.__module__]).get((of.__name__, name))
    if own is not None:
        return own
    declared = next(one for field, one in declarations(of) if field.name == name)
    return "" if declared.repeats is None else description(declared.repeats, name)


@cache
def _docstrings(module: ModuleType) -> dict[tuple[str, str], str]:
    """By the names of class and field."""
    return {
        (record.name, field.target.id): " ".join(str(behind.value.value).split())
        for record in ast.parse(inspect.getsource(module)).body
        if isinstance(record, ast.ClassDef)
        for field, behind in pairwise(record.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(behind, ast.Expr)
        and isinstance(behind.value, ast.Constant)
    }
