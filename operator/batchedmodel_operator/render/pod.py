"""The pod: its containers, what they share, how it ends."""

from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.kubernetes.names import (
    BATCHER_TEMPORARY_VOLUME,
    CACHE_VOLUME,
    MEMORY_VOLUME,
    SETTINGS_VOLUME,
    SOCKET_VOLUME,
    TEMPORARY_VOLUME,
)
from batchedmodel_contract.manifest.spec import PullPolicy, Spec
from batchedmodel_contract.manifest.workload import SecurityProfile
from batchedmodel_operator.kinds import Kind, child_name
from batchedmodel_operator.reconcile.state import Model
from batchedmodel_operator.render.common import Manifest
from batchedmodel_operator.render.containers import (
    GROUP_OF_FILES,
    OWN_USER,
    PinnedBatching,
    of_authors_container,
)
from batchedmodel_operator.render.fetch_container import fetch_container, files_volumes
from batchedmodel_operator.render.model_container import model_container
from batchedmodel_operator.render.placement import placement
from batchedmodel_operator.render.sidecar_container import batcher

_STOP_MARGIN_SECONDS: Final = 15
"""What the containers may take to end after the drain, before the kubelet kills them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """What the chart says about images."""

    sidecar: str
    model_server: str
    pull_policy: PullPolicy


def pod_spec(model: Model, spec: Spec, images: Images, pinned: PinnedBatching) -> Manifest:
    """The `spec` of the pod template."""
    sidecar = batcher(
        model,
        spec,
        image=spec.sidecar.image or images.sidecar,
        pull_policy=images.pull_policy,
        pinned=pinned,
    )
    model_image = spec.model.image or images.model_server
    model_pull_policy = spec.model.image_pull_policy or images.pull_policy
    fetch = fetch_container(
        spec.model, spec.security.profile, image=model_image, pull_policy=model_pull_policy
    )
    server = model_container(
        model,
        spec,
        image=model_image,
        pull_policy=model_pull_policy,
        pinned=pinned,
    )
    body: Manifest = {
        # As an init container that is always restarted the sidecar starts before the model and
        # ends after it. It has nothing to do while files are fetched. Those of the manifest come
        # after it: one of them that is always restarted as well then ends before it.
        "initContainers": [*([] if fetch is None else [fetch]), sidecar, *_init_containers(spec)],
        "containers": [server],
        "volumes": [*_volumes(model), *files_volumes(spec.model), *(spec.pod.volumes or ())],
        "securityContext": _security_context(spec.security.profile),
        "automountServiceAccountToken": spec.pod.automount_service_account_token,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": (
            spec.drain.delay_seconds + pinned.drain_timeout_seconds + _STOP_MARGIN_SECONDS
        ),
    }
    return body | placement(model, spec)


def _volumes(model: Model) -> list[Manifest]:
    settings = {"name": child_name(Kind.CONFIG_MAP, model.key.name)}
    return [
        {"name": SOCKET_VOLUME, "emptyDir": {}},
        {"name": SETTINGS_VOLUME, "configMap": settings},
        {"name": CACHE_VOLUME, "emptyDir": {}},
        {"name": TEMPORARY_VOLUME, "emptyDir": {}},
        {"name": BATCHER_TEMPORARY_VOLUME, "emptyDir": {}},
        # The 64 MiB that a container gets otherwise are too few for servers of several processes.
        {"name": MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}},
    ]


def _init_containers(spec: Spec) -> list[Manifest]:
    given: list[Any] = spec.pod.init_containers or []
    profile = spec.security.profile
    return [
        one | {"securityContext": of_authors_container(profile, one.get("securityContext"))}
        for one in given
    ]


def _security_context(profile: SecurityProfile) -> Manifest:
    context: Manifest = {
        # Whoever writes the socket, the sidecar can use it.
        "fsGroup": GROUP_OF_FILES,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return context | OWN_USER if profile is SecurityProfile.RESTRICTED else context
