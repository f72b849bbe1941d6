"""What the contract declares of each setting, for the test of the reference."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batchedmodel_contract.schema.reading import RecordOf, declarations
from batchedmodel_kube.manifest.spec import Spec
from descriptions import description


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One field of the manifest's `spec`; `section` is the path of what holds it."""

    section: str
    name: str
    default: str
    """Empty where there is none."""
    rule: str
    doc: str


def settings() -> Iterator[SettingRow]:
    """All fields, in the order of the declarations."""
    return _rows(Spec, "spec")


def _rows(of: type[Any], path: str) -> Iterator[SettingRow]:
    for field, declared in declarations(of):
        if isinstance(declared.rule, RecordOf):
            yield from _rows(declared.rule.of, f"{path}.{declared.name}")
            continue
        default = "required" if declared.required else declared.effective or _shown(field.default)
        yield SettingRow(
            section=path,
            name=declared.name,
            default=default,
            rule=str(declared.rule),
            doc=description(of, field.name),
        )


def _shown(default: object) -> str:
    if default in (None, ()):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return default.value if isinstance(default, StrEnum) else str(default)
