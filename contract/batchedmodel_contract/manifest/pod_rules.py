"""The rules about what pods carry: labels, volumes, mounts, and containers beside ours.

Part of `cross_field_rules`, which has all of them.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Any, Final

from batchedmodel_contract.kubernetes.names import (
    ADAPTERS_VOLUME_PREFIX,
    BATCHER_TEMPORARY_VOLUME,
    CONTAINERS,
    MANAGED_BY_LABEL,
    RESERVED_PREFIX,
    SIDECAR_VOLUMES,
    VOLUMES,
)
from batchedmodel_contract.manifest.cross_field_rule import (
    Check,
    Condition,
    given,
    invalid,
    reserved,
    where,
)
from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_contract.schema.kubernetes_types import (
    ABOVE_LIMITS,
    CEL_ABOVE_LIMITS,
    above_limits,
)
from batchedmodel_contract.schema.reading import value_at


def _names_one_of(entries: Iterable[Any], names: Collection[str]) -> bool:
    return any(entry["name"] in names for entry in entries)


def _cel_names_one_of(entries: str, names: Collection[str]) -> str:
    return f"{entries}.exists(entry, entry.name in {list(names)})"


def _has_reserved(field: str, *names: str) -> Condition:
    """Whether a mapping has a key that only the operator gives."""
    tests = [*(f"name == '{name}'" for name in names), f"name.startsWith('{RESERVED_PREFIX}')"]
    return where(
        lambda pairs: any(key in names or key.startswith(RESERVED_PREFIX) for key, _ in pairs),
        f"{{0}}.exists(name, {' || '.join(tests)})",
        field,
    )


def _has_named(field: str, names: Collection[str]) -> Condition:
    return where(lambda found: _names_one_of(found, names), _cel_names_one_of("{0}", names), field)


def _mounts_of_the_sidecar(containers: list[Any]) -> bool:
    return any(_names_one_of(one.get("volumeMounts") or (), SIDECAR_VOLUMES) for one in containers)


_OF_ADAPTERS: Final = where(
    lambda found: any(entry["name"].startswith(ADAPTERS_VOLUME_PREFIX) for entry in found),
    f"{{0}}.exists(entry, entry.name.startsWith('{ADAPTERS_VOLUME_PREFIX}'))",
    "pod.volumes",
)
_CEL_MOUNTS_OF_THE_SIDECAR: Final = (
    "{0}.exists(container, has(container.volumeMounts) && "
    + _cel_names_one_of("container.volumeMounts", SIDECAR_VOLUMES)
    + ")"
)


def _asks_above_limits(resources: str) -> Check:
    above = where(
        lambda requests, limits: above_limits(dict(requests), dict(limits)),
        CEL_ABOVE_LIMITS,
        *(f"{resources}.requests", f"{resources}.limits"),
    )
    return invalid(f"{resources}.requests", above, ABOVE_LIMITS)


_CEL_NAMES_NO_VOLUME: Final = (
    f".exists(mount, !(mount.name in {list(VOLUMES)} || "
    f"mount.name.startsWith('{ADAPTERS_VOLUME_PREFIX}') || has(self.pod) && "
    "has(self.pod.volumes) && self.pod.volumes.exists(volume, volume.name == mount.name)))"
)


def _mounts_nothing(field: str, mounts_of: Callable[[Any], Iterable[Any]], cel: str) -> Check:
    """A rule that each mount has its volume; `cel` says of the field whether one has none."""

    def lacks(spec: Spec) -> bool:
        known = {*VOLUMES, *(volume["name"] for volume in value_at(spec, "pod.volumes") or ())}
        names = [mount["name"] for mount in mounts_of(value_at(spec, field))]
        return any(not one.startswith(ADAPTERS_VOLUME_PREFIX) for one in names if one not in known)

    fault = given(field) & Condition(holds=lacks, cel=cel)
    rule = "mounts a volume that neither spec.pod.volumes nor the operator has"
    return invalid(field, fault, rule)


POD_CHECKS: Final[tuple[Check, ...]] = (
    _asks_above_limits("model.resources"),
    _asks_above_limits("sidecar.resources"),
    _mounts_nothing("model.volumeMounts", iter, f"self.model.volumeMounts{_CEL_NAMES_NO_VOLUME}"),
    _mounts_nothing(
        "pod.initContainers",
        lambda containers: chain(*(one.get("volumeMounts") or () for one in containers)),
        "self.pod.initContainers.exists(container, has(container.volumeMounts) && "
        f"container.volumeMounts{_CEL_NAMES_NO_VOLUME})",
    ),
    reserved(
        "pod.labels",
        _has_reserved("pod.labels", MANAGED_BY_LABEL),
        f"holds a label that the operator gives: {MANAGED_BY_LABEL} or {RESERVED_PREFIX}...",
    ),
    reserved(
        "pod.annotations",
        _has_reserved("pod.annotations"),
        f"holds an annotation that the operator gives: {RESERVED_PREFIX}...",
    ),
    reserved(
        "pod.volumes",
        _has_named("pod.volumes", VOLUMES) | _OF_ADAPTERS,
        f"holds a name that the operator's own volumes have: {', '.join(VOLUMES)} or "
        f"{ADAPTERS_VOLUME_PREFIX}...",
    ),
    reserved(
        "model.volumeMounts",
        # Its token for draining is there. The socket the model has anyway, settings are no secret.
        _has_named("model.volumeMounts", (BATCHER_TEMPORARY_VOLUME,)),
        f"mounts a volume that is the sidecar's alone: {BATCHER_TEMPORARY_VOLUME}",
    ),
    reserved(
        "pod.initContainers",
        _has_named("pod.initContainers", CONTAINERS),
        f"holds a name that the operator's own containers have: {', '.join(CONTAINERS)}",
    ),
    reserved(
        "pod.initContainers",
        where(_mounts_of_the_sidecar, _CEL_MOUNTS_OF_THE_SIDECAR, "pod.initContainers"),
        f"mounts a volume that is the sidecar's: {', '.join(SIDECAR_VOLUMES)}",
    ),
)
