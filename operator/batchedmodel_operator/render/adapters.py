"""What adapters need of a pod: their file, their volumes, a token, and what replaces pods.

An edit of the items reaches running pods by the mounted ConfigMap. Only volumes must be there from
a pod's start.
"""

import dataclasses
import json
from typing import Final

from batchedmodel_contract.kubernetes.names import ADAPTERS_ANNOTATION, ADAPTERS_VOLUME_PREFIX
from batchedmodel_contract.lora import ADAPTERS_FILE, adapter_settings
from batchedmodel_contract.manifest.adapters import AdapterItem, Adapters
from batchedmodel_contract.manifest.source import Source, Volume
from batchedmodel_operator.observed.state import digest
from batchedmodel_operator.render.common import Manifest

_FOLDER: Final = "/var/lib/batchedmodel/adapters"
_LIVE: Final = ("items", "header", "token_secret_ref")
"""What the annotation leaves out: the first reaches running pods, the others stand in variables."""


def adapters_data(adapters: Adapters | None) -> dict[str, str]:
    """The file for the model server as an entry of the ConfigMap; empty without adapters."""
    if adapters is None:
        return {}
    items = tuple(_in_pod(item) for item in adapters.items)
    return {ADAPTERS_FILE: adapter_settings(adapters, items).to_json()}


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
    secret = None if adapters is None else adapters.token_secret_ref
    if secret is None:
        return []
    key = {"name": secret.name, "key": secret.key}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}]


def adapters_annotation(adapters: Adapters | None) -> dict[str, str]:
    """What a model server reads at its start alone, so that an edit replaces the pods."""
    if adapters is None:
        return {}
    fixed = dataclasses.asdict(adapters)
    told = {name: value for name, value in fixed.items() if name not in _LIVE}
    return {ADAPTERS_ANNOTATION: json.dumps(told, sort_keys=True)}


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


def _in_pod(item: AdapterItem) -> AdapterItem:
    """The item with a folder in place of a volume."""
    volume = item.source.volume
    return item if volume is None else dataclasses.replace(item, source=Source(path=_path(volume)))


def _path(volume: Volume) -> str:
    return "/".join(filter(None, (_FOLDER, volume.claim_name, volume.sub_path)))
