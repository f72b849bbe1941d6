"""The init container that fetches a model's files, and where the model's container finds them."""

from typing import Final

from batchedmodel_contract.kubernetes.names import (
    FETCH_CONTAINER,
    FILES_VOLUME,
    TEMPORARY_VOLUME,
)
from batchedmodel_contract.manifest.source import HuggingFace, Source
from batchedmodel_contract.manifest.spec import Model, PullPolicy, Resources
from batchedmodel_contract.manifest.workload import SecurityProfile
from batchedmodel_contract.processes.environment import (
    HUB_FOLDER,
    PREFIX,
    FetchSettings,
    source_to_json,
    to_environment,
)
from batchedmodel_operator.render.common import Manifest
from batchedmodel_operator.render.containers import (
    CACHE_PATH,
    TEMPORARY_PATH,
    environment,
    of_our_container,
    resources,
)

_HUB_PATH: Final = f"{CACHE_PATH}/{HUB_FOLDER}"
_VOLUME_PATH: Final = "/var/lib/batchedmodel/model"
_REPORT_FILE: Final = "/dev/termination-log"
_TOKEN_VARIABLE: Final = "HF_TOKEN"
_OF_ANY_CONTAINER: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


def fetched_repository(model: Model) -> HuggingFace | None:
    """What has to be fetched before the model server starts; None: nothing."""
    return None if model.source is None else model.source.hugging_face


def source_in_pod(source: Source | None) -> Source | None:
    """The source as the model server is told of it, to whom a mounted volume is a folder."""
    if source is None or source.volume is None:
        return source
    return Source(path=_VOLUME_PATH)


def files_volumes(model: Model) -> list[Manifest]:
    """The pod's volume with the model's files, if they do not come with the image."""
    source, repository = model.source, fetched_repository(model)
    if source is not None and source.volume is not None:
        return [_claimed(source.volume.claim_name)]
    if repository is None:
        return []
    if repository.cache_claim_name is not None:
        return [_claimed(repository.cache_claim_name)]
    return [{"name": FILES_VOLUME, "emptyDir": {}}]


def files_mounts(model: Model) -> list[Manifest]:
    """The same as the model's container sees it."""
    source = model.source
    if source is not None and source.volume is not None:
        mount = {"name": FILES_VOLUME, "mountPath": _VOLUME_PATH, "readOnly": True}
        return [mount | ({"subPath": source.volume.sub_path} if source.volume.sub_path else {})]
    if fetched_repository(model) is None:
        return []
    return [{"name": FILES_VOLUME, "mountPath": _HUB_PATH, "readOnly": True}]


def fetch_container(
    model: Model, profile: SecurityProfile, *, image: str, pull_policy: PullPolicy
) -> Manifest | None:
    """The container that fetches, once and before all others; None where nothing is to be fetched.

    Its image is the model server's: both agree on where files lie.
    """
    repository = fetched_repository(model)
    if repository is None:
        return None
    settings = FetchSettings(
        source=source_to_json(model.source),
        trust=model.trust,
        cache_folder=CACHE_PATH,
        report_file=_REPORT_FILE,
    )
    # Proxies and mirrors are told to it as they are to the model.
    own = {name: value for name, value in model.env if not name.startswith(PREFIX)}
    home = {"HOME": TEMPORARY_PATH, "HF_HOME": f"{TEMPORARY_PATH}/huggingface"}
    variables = home | own | to_environment(settings)
    secret = repository.token_secret_ref
    tokens: list[Manifest] = []
    if secret is not None:
        variables.pop(_TOKEN_VARIABLE, None)
        key = {"name": secret.name, "key": secret.key}
        tokens.append({"name": _TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": key}})
    return {
        "name": FETCH_CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy.value,
        "command": ["python", "-m", "batchedmodel_model_server.sources.fetch"],
        "env": [*environment(variables), *tokens],
        # No more than the model's container: the pod as a whole then asks for nothing more.
        "resources": resources(_of_any_container(model.resources)),
        "securityContext": of_our_container(profile),
        "volumeMounts": [
            {"name": FILES_VOLUME, "mountPath": _HUB_PATH},
            {"name": TEMPORARY_VOLUME, "mountPath": TEMPORARY_PATH},
        ],
    }


def _claimed(claim: str) -> Manifest:
    return {"name": FILES_VOLUME, "persistentVolumeClaim": {"claimName": claim}}


def _of_any_container(given: Resources) -> Resources:
    # A device would be held while nothing computes on it.
    def kept(amounts: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return tuple((name, amount) for name, amount in amounts if name in _OF_ANY_CONTAINER)

    return Resources(requests=kept(given.requests), limits=kept(given.limits))
