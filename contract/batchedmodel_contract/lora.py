"""Adapters of a model (LoRA): which ones it should have, and in what state each of them is.

The model server reads the first from a JSON file, in a pod a part of a mounted ConfigMap. An edit
of `items` takes effect in the running process; the other values hold from its start. It tells the
sidecar their states. A number stands for one version of one adapter in one process of the server,
and is never used again in it: a replaced adapter gets a new one, and the old number goes on
answering requests that were read for it.
"""

import json
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidInput, readable
from batchedmodel_contract.manifest.adapters import AdapterItem, Adapters, lacks_one_source
from batchedmodel_contract.processes.environment import source_to_json
from batchedmodel_contract.schema.reading import Setting, as_in, declarations, ruled, setting
from batchedmodel_contract.schema.rules import Whole

NO_ADAPTER: Final = 0
"""In place of a number: the model itself."""
LARGEST_NUMBER: Final = 2**31 - 1
STATUS_FIELD: Final = "adapters"
"""Of a BatchedModel's status: its adapters, as its pods tell of them."""


class AdapterPhase(StrEnum):
    """Life of one version of an adapter."""

    FETCHING = "FETCHING"
    """Its files are being brought."""
    LOADING = "LOADING"
    """They are there, and are being read and checked."""
    READY = "READY"
    """Requests may ask for it."""
    FAILED = "FAILED"
    """The reason says why. It is tried again where that can help."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way."""
        return self in (AdapterPhase.READY, AdapterPhase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """One version of one adapter."""

    name: str
    number: int
    """1 to 2^31 - 1."""
    phase: AdapterPhase
    reason: str = ""
    """Why it is not READY; empty where it is."""
    own_labels: bool = False
    """Whether it classifies by other labels than the model; ADAPTERS has them."""

    def to_mapping(self) -> dict[str, Any]:
        """As JSON."""
        told = {"name": self.name, "number": self.number, "phase": self.phase}
        told |= {"reason": self.reason} if self.reason else {}
        return told | ({"ownLabels": True} if self.own_labels else {})


@readable("adapter")
def adapter_state_from_mapping(mapping: Any) -> AdapterState:
    """The state in a document; raises `InvalidInput`."""
    number = mapping["number"]
    if type(number) is not int or not NO_ADAPTER < number <= LARGEST_NUMBER:
        raise ValueError(f"number {number!r} is none from 1 to {LARGEST_NUMBER}")
    return AdapterState(
        name=str(mapping["name"]),
        number=number,
        phase=AdapterPhase(mapping["phase"]),
        reason=str(mapping.get("reason", "")),
        own_labels=mapping.get("ownLabels") is True,
    )


ADAPTERS_FILE: Final = "adapters.json"
"""Name of the file in its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """What is in the file; see `Adapters` for what the values mean."""

    slots: int = as_in(Adapters, "slots")
    max_rank: int = as_in(Adapters, "max_rank")
    cpu_memory_bytes: int | None = setting(Whole(minimum=0), "Absent: all stay in main memory.")
    items: tuple[AdapterItem, ...] = as_in(Adapters, "items")
    folder: str | None = as_in(Adapters, "folder")
    header: str = as_in(Adapters, "header")

    def to_json(self) -> str:
        """The text of the file; equal settings give equal text.

        Sources name folders in place of volumes, and no secrets.
        """
        items = [
            {"name": item.name, "source": json.loads(source_to_json(item.source))}
            for item in self.items
        ]
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        told = {name: value for name, value in values.items() if value is not None}
        return json.dumps(told | {"items": items}, sort_keys=True)


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
    """The settings in a file's text; raises `InvalidInput`.

    Each value obeys the rule that the manifest declares.
    """
    with readable(ADAPTERS_FILE):
        mapping = json.loads(text)
        json.dumps(mapping, ensure_ascii=False).encode()  # half a surrogate pair names no file
    if not isinstance(mapping, dict):
        raise InvalidInput(ADAPTERS_FILE, "is not a JSON object", mapping)
    declared = declarations(AdapterSettings)
    rules = {field.name: one.rule for field, one in declared if isinstance(one, Setting)}
    for name in mapping:
        if name not in rules:
            raise InvalidInput(f"{ADAPTERS_FILE}: {name}", "is not known")
    found = {
        name: ruled(rules[name], value, f"{ADAPTERS_FILE}: {name}")
        for name, value in mapping.items()
        if value is not None
    }
    settings = AdapterSettings(**found)
    if lacks_one_source(settings.items):
        raise InvalidInput(f"{ADAPTERS_FILE}: items", "has one without exactly one source")
    return settings
