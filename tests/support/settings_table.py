"""The README's tables of settings, drawn from the contract's declarations."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from batchedmodel_contract.reading import Section, declarations
from batchedmodel_contract.spec import Spec


def settings_table() -> str:
    """One row for each field of the manifest's `spec`, in the order of the declarations."""
    rows = ["| Field | Default | Values | Meaning |", "|---|---|---|---|"]
    return "\n".join([*rows, *_rows(Spec, "spec")])


def _rows(of: type[Any], path: str) -> Iterator[str]:
    for field, declared in declarations(of):
        name = f"{path}.{declared.name}"
        if isinstance(declared, Section):
            yield from _rows(declared.of, name)
            continue
        default = "required" if declared.required else declared.effective or _shown(field.default)
        yield f"| `{name}` | {default} | {declared.rule} | {declared.doc} |"


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, StrEnum):
        return f"`{default.value}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return "empty" if default == () else f"`{default}`"
