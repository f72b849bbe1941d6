"""The adapters that a model should have, as a JSON file tells the model server.

In a pod the file is part of a mounted ConfigMap, elsewhere somebody writes it. An edit of `items`
takes effect in the running process; the other values hold from its start.
"""

import json
from dataclasses import dataclass, fields
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.adapters import AdapterItem, Adapters, lacks_one_source
from batchedmodel_contract.processes.environment import source_to_json
from batchedmodel_contract.schema.reading import camel_case, declared_at, ruled
from batchedmodel_contract.schema.rules import Whole

ADAPTERS_FILE: Final = "adapters.json"
"""Name of the file in its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """What is in the file; see `Adapters` for what the values mean."""

    slots: int = 8
    max_rank: int = 16
    cpu_memory_bytes: int | None = None
    """Bytes; None: adapters stay in main memory."""
    items: tuple[AdapterItem, ...] = ()
    folder: str | None = None
    header: str = "task-id"

    def to_mapping(self) -> dict[str, Any]:
        """The JSON object of the file. Sources name folders in place of volumes, and no secrets."""
        items = [
            {"name": item.name, "source": json.loads(source_to_json(item.source))}
            for item in self.items
        ]
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        told = {name: value for name, value in values.items() if value is not None}
        return told | {"items": items}

    def to_json(self) -> str:
        """The text of the file; equal settings give equal text."""
        return json.dumps(self.to_mapping(), sort_keys=True)


def adapter_settings(adapters: Adapters, items: tuple[AdapterItem, ...]) -> AdapterSettings:
    """The settings of a manifest; `items`: its own, with sources as the model server has them."""
    return AdapterSettings(
        slots=adapters.slots,
        max_rank=adapters.max_rank,
        cpu_memory_bytes=adapters.cpu_memory_bytes,
        items=items,
        folder=adapters.folder,
        header=adapters.header,
    )


def adapters_from_json(text: str | bytes) -> AdapterSettings:
    """The settings in a file's text; raises `InvalidInput`."""
    try:
        mapping = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(ADAPTERS_FILE, f"cannot be read: {error!r}") from error
    return adapters_from_mapping(mapping)


def adapters_from_mapping(mapping: Any) -> AdapterSettings:
    """The settings in the file's JSON object; raises `InvalidInput`.

    Each value obeys the rule that the manifest declares.
    """
    if not isinstance(mapping, dict):
        raise InvalidInput(ADAPTERS_FILE, "is not a JSON object", mapping)
    known = {field.name for field in fields(AdapterSettings)}
    for name in mapping:
        if name not in known:
            raise InvalidInput(f"{ADAPTERS_FILE}: {name}", "is not known")
    found = {
        name: ruled(_rule(name), value, f"{ADAPTERS_FILE}: {name}")
        for name, value in mapping.items()
        if value is not None
    }
    settings = AdapterSettings(**found)
    if lacks_one_source(settings.items):
        raise InvalidInput(f"{ADAPTERS_FILE}: items", "has one without exactly one source")
    return settings


def _rule(name: str) -> Any:
    if name == "cpu_memory_bytes":
        return Whole(minimum=0)
    return declared_at(Adapters, camel_case(name))[0][1].rule  # type: ignore[union-attr]
