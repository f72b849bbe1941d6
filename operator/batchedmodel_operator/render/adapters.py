"""What adapters need of a pod: their file, their volumes, a token, and what replaces pods.

An edit of the items reaches running pods by the mounted ConfigMap. Only volumes must be there from
a pod's start.
"""

import dataclasses
import json
from typing import Final

from batchedmodel_contract.manifest.adapters import AdapterItem as PodAdapterItem
from batchedmodel_contract.manifest.source import Source as PodSource
from batchedmodel_kube.manifest.adapters import AdapterItem, Adapters
from batchedmodel_kube.names import ADAPTERS_ANNOTATION, ADAPTERS_VOLUME_PREFIX
from batchedmodel_operator.observed.state import digest
from batchedmodel_operator.render.common import Manifest
from batchedmodel_operator.render.files import hub_token

_FOLDER: Final = "/var/lib/batchedmodel/adapters"
_LIVE: Final = ("items", "header", "token_secret_ref")
"""What the annotation leaves out: the first reaches running pods, the others stand in variables."""


def adapters_in_pod(adapters: Adapters | None) -> tuple[PodAdapterItem, ...]:
    """The items with sources as the model server sees them."""
    return () if adapters is None else tuple(_in_pod(item) for item in adapters.items)


def adapters_volumes(adapters: Adapters | None) -> list[Manifest]:
    """The volumes that items name, each once."""
    return [
        {"name": _volume(claim), "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        for claim in claims(adapters)
    ]


def adapters_mounts(adapters: Adapters | None) -> list[Manifest]:
    """The same as the model's container sees them: whole, for items name folders in them."""
    return [
        {"name": _volume(claim), "mountPath": f"{_FOLDER}/{claim}", "readOnly": True}
        for claim in claims(adapters)
    ]


def adapters_token(adapters: Adapters | None) -> list[Manifest]:
    """The variable with the token for repositories."""
    return [] if adapters is None else hub_token(adapters.token_secret_ref)


def adapters_annotation(adapters: Adapters | None) -> dict[str, str]:
    """What a model server reads at its start alone, so that an edit replaces the pods."""
    if adapters is None:
        return {}
    fields = dataclasses.asdict(adapters)
    fixed = {name: value for name, value in fields.items() if name not in _LIVE}
    return {ADAPTERS_ANNOTATION: json.dumps(fixed, sort_keys=True)}


def pinned_adapters(adapters: Adapters | None) -> object:
    """As much of a manifest's adapters as pods depend on; JSON."""
    if adapters is None:
        return None
    return [dataclasses.replace(adapters, items=()), claims(adapters)]


def claims(adapters: Adapters | None) -> list[str]:
    """The volumes that items name, in order."""
    items = () if adapters is None else adapters.items
    volumes = (item.source.volume for item in items)
    return sorted({volume.claim_name for volume in volumes if volume is not None})


def _volume(claim: str) -> str:
    # The name of a volume is shorter than that of a claim, and has no dots.
    return f"{ADAPTERS_VOLUME_PREFIX}{digest(claim)}"


def _in_pod(item: AdapterItem) -> PodAdapterItem:
    """The item with a folder in place of a volume."""
    volume = item.source.volume
    if volume is None:
        return item.for_model_server()
    path = "/".join(filter(None, (_FOLDER, volume.claim_name, volume.sub_path)))
    return PodAdapterItem(name=item.name, source=PodSource(path=path))
