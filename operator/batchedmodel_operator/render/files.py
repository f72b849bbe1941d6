"""Where a pod's containers find the model's files: volumes, mounts, and the path that is told."""

from typing import Final

from batchedmodel_contract.manifest.source import Source as PodSource
from batchedmodel_contract.processes.environment import HUB_FOLDER
from batchedmodel_kube.manifest.source import HuggingFace, SecretKey, Source
from batchedmodel_kube.manifest.spec import Model
from batchedmodel_kube.names import FILES_VOLUME
from batchedmodel_operator.render.common import Manifest
from batchedmodel_operator.render.resources import DISK

CACHE_PATH: Final = "/var/cache/batchedmodel"
HUB_PATH: Final = f"{CACHE_PATH}/{HUB_FOLDER}"
_VOLUME_PATH: Final = "/var/lib/batchedmodel/model"


def fetched_repository(model: Model) -> HuggingFace | None:
    """What has to be fetched before the model server starts; None: nothing."""
    return None if model.source is None else model.source.hugging_face


def source_in_pod(source: Source | None) -> PodSource | None:
    """The source as the model server is told of it: a mounted volume is a folder there."""
    if source is None:
        return None
    return source.for_model_server() if source.volume is None else PodSource(path=_VOLUME_PATH)


def files_volumes(model: Model) -> list[Manifest]:
    """The pod's volume with the model's files, if they do not come with the image."""
    source, repository = model.source, fetched_repository(model)
    claim = None if repository is None else repository.cache_claim_name
    if source is not None and source.volume is not None:
        claim = source.volume.claim_name
    if claim is not None:
        return [{"name": FILES_VOLUME, "persistentVolumeClaim": {"claimName": claim}}]
    if repository is None:
        return []
    return [{"name": FILES_VOLUME, "emptyDir": sized_by_limit(model)}]


def sized_by_limit(model: Model) -> Manifest:
    """An `emptyDir` for weights, whose size only the author knows: at most what the model may."""
    limits = dict(model.resources.limits)
    return {"sizeLimit": limits[DISK]} if DISK in limits else {}


def hub_token(secret: SecretKey | None) -> list[Manifest]:
    """The variable with the token for repositories; none without a Secret."""
    if secret is None:
        return []
    key = {"name": secret.name, "key": secret.key}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}]


def files_mounts(model: Model) -> list[Manifest]:
    """The same as the model's container sees it."""
    source = model.source
    if source is not None and source.volume is not None:
        mount = {"name": FILES_VOLUME, "mountPath": _VOLUME_PATH, "readOnly": True}
        return [mount | ({"subPath": source.volume.sub_path} if source.volume.sub_path else {})]
    if fetched_repository(model) is None:
        return []
    return [{"name": FILES_VOLUME, "mountPath": HUB_PATH, "readOnly": True}]
