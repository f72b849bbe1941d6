"""Adapters of a model (LoRA): which ones it should have, and in what state each of them is.

The model server reads the first from a JSON file, in a pod a part of a mounted ConfigMap. An edit
of `items` takes effect in the running process; the other values hold from its start. It tells the
sidecar their states. A number stands for one version of one adapter in one process of the server,
and is never used again in it: a replaced adapter gets a new one, and the old number goes on
answering requests that were read for it.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidInput, readable
from batchedmodel_contract.manifest.adapters import (
    ITEMS,
    LARGEST_RANK,
    MOST_SLOTS,
    AdapterItem,
)
from batchedmodel_contract.manifest.source import has_one_place
from batchedmodel_contract.manifest.tenants import HEADER_NAME
from batchedmodel_contract.schema.reading import declarations, ruled, setting
from batchedmodel_contract.schema.rules import Text, Whole

NO_ADAPTER: Final = 0
"""In place of a number: the model itself."""
LARGEST_NUMBER: Final = 2**31 - 1


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
    """What is in the file; the manifest's `adapters` says what the values mean."""

    slots: int = setting(Whole(minimum=1, maximum=MOST_SLOTS), default=8)
    max_rank: int = setting(Whole(minimum=1, maximum=LARGEST_RANK), default=16)
    cpu_memory_bytes: int | None = setting(Whole(minimum=0))
    """None: all stay in main memory."""
    items: tuple[AdapterItem, ...] = setting(ITEMS, default=())
    folder: str | None = setting(Text(pattern=r"[^\x00]+", form="a path", at_most=4096))
    header: str = setting(HEADER_NAME, default="task-id")


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
    rules = {field.name: one.rule for field, one in declared}
    for name in mapping:
        if name not in rules:
            raise InvalidInput(f"{ADAPTERS_FILE}: {name}", "is not known")
    found = {
        name: ruled(rules[name], value, f"{ADAPTERS_FILE}: {name}")
        for name, value in mapping.items()
        if value is not None
    }
    settings = AdapterSettings(**found)
    if not all(has_one_place(item.source) for item in settings.items):
        raise InvalidInput(f"{ADAPTERS_FILE}: items", "has one without exactly one source")
    return settings
