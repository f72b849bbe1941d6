"""What a manifest says of adapters: many fine-tunings (LoRA) of one model, served beside it."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

from batchedmodel_contract.manifest.generation import MEMORY
from batchedmodel_contract.manifest.source import SecretKey, Source
from batchedmodel_contract.schema.reading import RecordOf, Records, section, setting
from batchedmodel_contract.schema.rules import Text, Whole, amount_of

MOST_ITEMS: Final = 256
MOST_SLOTS: Final = 256
LARGEST_RANK: Final = 512
ADAPTER_NAME: Final = Text(
    # A segment of a path as it is sent: nothing in it is ever written in escapes.
    pattern=r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
    form="a name of letters, digits, '.', '_' and '-' that begins and ends with a letter or digit",
    at_most=63,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterItem:
    """One adapter."""

    name: str = setting(
        ADAPTER_NAME, "Name that callers use, as they use the model's.", required=True
    )
    source: Source = section(
        Source,
        "Where its files come from: what peft saves, adapter_config.json and safetensors.",
        required=True,
    )


def lacks_one_source(items: Iterable[AdapterItem]) -> bool:
    """Whether an item says in no or in several ways where its files come from."""
    return any(
        sum(getattr(item.source, field.name) is not None for field in fields(Source)) != 1
        for item in items
    )


def names_secret_or_cache(items: Iterable[AdapterItem]) -> bool:
    """Whether an item names what a running pod cannot be given."""
    hubs = (item.source.hugging_face for item in items)
    return any(hub is not None and (hub.token_secret_ref or hub.cache_claim_name) for hub in hubs)


CEL_LACKS_ONE_SOURCE: Final = (
    "{0}.exists(item, ![has(item.source.path), has(item.source.volume), "
    "has(item.source.pythonPackage), has(item.source.huggingFace)].exists_one(given, given))"
)
CEL_NAMES_SECRET_OR_CACHE: Final = (
    "{0}.exists(item, has(item.source.huggingFace) && (has(item.source.huggingFace.tokenSecretRef) "
    "|| has(item.source.huggingFace.cacheClaimName)))"
)
"""Both in CEL, of the items ``{0}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The adapters of a model, and the room for them."""

    slots: int = setting(
        Whole(minimum=1, maximum=MOST_SLOTS),
        "Adapters that the device has in its memory at the same time; others come and go as they "
        "are asked for. An edit replaces the pods.",
        default=8,
    )
    max_rank: int = setting(
        Whole(minimum=1, maximum=LARGEST_RANK),
        "Largest rank of an adapter; each slot has room for it. An edit replaces the pods.",
        default=16,
    )
    cpu_memory: str | None = setting(
        MEMORY,
        "Main memory for adapters that are in no slot; others are read from the disk again. An "
        "edit replaces the pods. Absent: all of them stay in memory.",
    )
    items: tuple[AdapterItem, ...] = setting(
        Records(each=RecordOf(AdapterItem), form="a list of adapters", at_most=MOST_ITEMS),
        "The adapters. An edit reaches running pods, and replaces them only where it changes which "
        "volumes are named.",
        default=(),
    )
    folder: str | None = setting(
        Text(pattern=r"[^\x00]+", form="a path", at_most=4096),
        "Folder that the model server watches, each folder in which is an adapter of that name; "
        "relative to the manifest, in a cluster where `model.volumeMounts` puts a volume. An edit "
        "replaces the pods.",
    )
    token_secret_ref: SecretKey | None = section(
        SecretKey,
        "Token for repositories of `items` that not everybody may see. An edit replaces the pods.",
    )
    header: str = setting(
        Text(pattern="[A-Za-z0-9_-]+", form="the name of a header", at_most=128),
        "Request header that may name the adapter where the path and the body name the model. An "
        "edit replaces the pods.",
        default="task-id",
    )

    @property
    def cpu_memory_bytes(self) -> int | None:
        """The memory as a number of bytes."""
        return None if self.cpu_memory is None else int(amount_of(self.cpu_memory))
