"""The rules over several fields of `spec.pod`, or over names in it that are the operator's.

Part of `checks`.
"""

from collections.abc import Collection, Iterator
from typing import Any, Final

from batchedmodel_contract.kubernetes.names import (
    BATCHER_TEMPORARY_VOLUME,
    CONTAINERS,
    MANAGED_BY_LABEL,
    RESERVED_PREFIX,
    SIDECAR_VOLUMES,
    VOLUMES,
)
from batchedmodel_contract.manifest.cross_field_rule import Check, Reason


def _reserved(names: tuple[tuple[str, str], ...]) -> bool:
    return any(name.startswith(RESERVED_PREFIX) for name, _ in names)


def _names_one_of(entries: list[Any] | None, reserved: Collection[str]) -> bool:
    return any(entry["name"] in reserved for entry in entries or ())


def _cel_list(names: Collection[str]) -> str:
    return f"[{', '.join(repr(name) for name in names)}]"


def _mounts(containers: list[Any] | None) -> Iterator[Any]:
    for container in containers or ():
        yield from container.get("volumeMounts") or ()


POD_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="a pod has a label of the operator's",
        field="pod.labels",
        broken=lambda spec: _reserved(spec.pod.labels) or MANAGED_BY_LABEL in dict(spec.pod.labels),
        holds="!has(self.pod.labels) || self.pod.labels.all(name,"
        f" name != '{MANAGED_BY_LABEL}' && !name.startsWith('{RESERVED_PREFIX}'))",
        rule=f"holds a label that the operator gives: {MANAGED_BY_LABEL} or {RESERVED_PREFIX}...",
        reason=Reason.FORBIDDEN,
    ),
    Check(
        name="a pod has an annotation of the operator's",
        field="pod.annotations",
        broken=lambda spec: _reserved(spec.pod.annotations),
        holds="!has(self.pod.annotations) || !self.pod.annotations.exists(name,"
        f" name.startsWith('{RESERVED_PREFIX}'))",
        rule=f"holds an annotation that the operator gives: {RESERVED_PREFIX}...",
        reason=Reason.FORBIDDEN,
    ),
    Check(
        name="a volume has the name of one of the operator's",
        field="pod.volumes",
        broken=lambda spec: _names_one_of(spec.pod.volumes, VOLUMES),
        holds="!has(self.pod.volumes) || self.pod.volumes.all(volume,"
        f" !(volume.name in {_cel_list(VOLUMES)}))",
        rule=f"holds a name that the operator's own volumes have: {', '.join(VOLUMES)}",
        reason=Reason.FORBIDDEN,
    ),
    Check(
        name="the model sees what is the sidecar's alone",
        field="model.volumeMounts",
        # Its token for draining is there. The socket the model has anyway, settings are no secret.
        broken=lambda spec: _names_one_of(spec.model.volume_mounts, (BATCHER_TEMPORARY_VOLUME,)),
        holds="!has(self.model.volumeMounts) || self.model.volumeMounts.all(mount,"
        f" mount.name != '{BATCHER_TEMPORARY_VOLUME}')",
        rule=f"mounts a volume that is the sidecar's alone: {BATCHER_TEMPORARY_VOLUME}",
        reason=Reason.FORBIDDEN,
    ),
    Check(
        name="an init container has the name of one of the operator's",
        field="pod.initContainers",
        broken=lambda spec: _names_one_of(spec.pod.init_containers, CONTAINERS),
        holds="!has(self.pod.initContainers) || self.pod.initContainers.all(container,"
        f" !(container.name in {_cel_list(CONTAINERS)}))",
        rule=f"holds a name that the operator's own containers have: {', '.join(CONTAINERS)}",
        reason=Reason.FORBIDDEN,
    ),
    Check(
        name="an init container sees what is the sidecar's",
        field="pod.initContainers",
        broken=lambda spec: _names_one_of([*_mounts(spec.pod.init_containers)], SIDECAR_VOLUMES),
        holds="!has(self.pod.initContainers) || self.pod.initContainers.all(container,"
        " !has(container.volumeMounts) || container.volumeMounts.all(mount,"
        f" !(mount.name in {_cel_list(SIDECAR_VOLUMES)})))",
        rule=f"mounts a volume that is the sidecar's: {', '.join(SIDECAR_VOLUMES)}",
        reason=Reason.FORBIDDEN,
    ),
)
"""In the order in which their messages are shown."""
