"""What the containers of a pod have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.kubernetes.names import ADMIN_PORT, SOCKET_FOLDER, SOCKET_VOLUME
from batchedmodel_contract.manifest.spec import Resources
from batchedmodel_contract.manifest.workload import SecurityProfile
from batchedmodel_operator.render.common import Manifest

CACHE_PATH: Final = "/var/cache/batchedmodel"
TEMPORARY_PATH: Final = "/tmp"
MEMORY_PATH: Final = "/dev/shm"

SOCKET_MOUNT: Final = {"name": SOCKET_VOLUME, "mountPath": SOCKET_FOLDER}


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedBatching:
    """What pods are told about batching at their start, and keep until they are replaced."""

    max_batch_size: int
    """Largest batch to warm up for."""
    drain_timeout_seconds: int


_USER: Final = 65532
GROUP_OF_FILES: Final = _USER
OWN_USER: Final = {"runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER}


def environment(variables: Mapping[str, str]) -> list[Manifest]:
    """A container's `env`, in an order that depends on the names only."""
    return [{"name": name, "value": variables[name]} for name in sorted(variables)]


def resources(wanted: Resources, **limits: str) -> Manifest:
    """A container's `resources`; `limits` come on top of those of the manifest."""
    given = {"requests": dict(wanted.requests), "limits": {**dict(wanted.limits), **limits}}
    return {name: amounts for name, amounts in given.items() if amounts}


def restricted(*, read_only: bool) -> Manifest:
    """The security context that the pod security standard `restricted` asks for."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": read_only,
    }


def of_our_container(profile: SecurityProfile) -> Manifest:
    """The security context of a container of ours: without rights in every profile."""
    context = restricted(read_only=True)
    # A pod of this profile leaves the user to the images.
    return context | OWN_USER if profile is SecurityProfile.BASELINE else context


def of_authors_container(
    profile: SecurityProfile, given: Mapping[str, object] | None
) -> dict[str, Any]:
    """That of a container whose image the manifest's author chose; `given` stands above it."""
    if profile is SecurityProfile.BASELINE:
        return dict(given or {})
    # User code and foreign images may write where they like within their own file system.
    return restricted(read_only=False) | dict(given or {})


def admin_probe(path: str, **timing: int) -> dict[str, Any]:
    """A probe of the sidecar's admin port; the kubelet asks it at the pod's address."""
    return {"httpGet": {"path": path, "port": ADMIN_PORT}, "timeoutSeconds": 5, **timing}
