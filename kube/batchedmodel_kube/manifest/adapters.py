"""What a manifest says of adapters: many fine-tunings (LoRA) of one model, served beside it."""

from dataclasses import dataclass

from batchedmodel_contract.lora import AdapterSettings
from batchedmodel_contract.manifest.adapters import MOST_ITEMS
from batchedmodel_contract.manifest.adapters import AdapterItem as PodAdapterItem
from batchedmodel_contract.schema.reading import RecordOf, Records, as_in, section, setting
from batchedmodel_kube.manifest.effect import Effect
from batchedmodel_kube.manifest.generation import MEMORY
from batchedmodel_kube.manifest.source import SecretKey, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterItem:
    """One adapter."""

    name: str = as_in(PodAdapterItem, "name")
    """Name that callers use, as they use the model's."""
    source: Source = section(Source, required=True)
    """Where its files come from: what peft saves, adapter_config.json and safetensors."""

    def for_model_server(self) -> PodAdapterItem:
        """As the model server has it; see `Source.for_model_server`."""
        return PodAdapterItem(name=self.name, source=self.source.for_model_server())


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The adapters of a model, and the room for them."""

    slots: int = as_in(AdapterSettings, "slots")
    """Adapters that the device has in its memory at the same time; others come and go as they are
    asked for. An edit replaces the pods."""
    max_rank: int = as_in(AdapterSettings, "max_rank")
    """Largest rank of an adapter; each slot has room for it. An edit replaces the pods."""
    cpu_memory: str | None = setting(MEMORY)
    """Main memory for adapters that are in no slot; others are read from the disk again. An edit
    replaces the pods. Absent: all of them stay in memory."""
    items: tuple[AdapterItem, ...] = setting(
        Records(each=RecordOf(AdapterItem), form="a list of adapters", at_most=MOST_ITEMS),
        default=(),
        edit=Effect.MAY_ROLL_PODS,
    )
    """The adapters. An edit reaches running pods, and replaces them only where it changes which
    volumes are named."""
    folder: str | None = as_in(AdapterSettings, "folder")
    """Folder that the model server watches, each folder in which is an adapter of that name;
    relative to the manifest, in a cluster where `model.volumeMounts` puts a volume. An edit
    replaces the pods."""
    token_secret_ref: SecretKey | None = section(SecretKey)
    """Token for repositories of `items` that not everybody may see. An edit replaces the pods."""
    header: str = as_in(AdapterSettings, "header")
    """Request header that may name the adapter where the path and the body name the model. An edit
    replaces the pods."""
