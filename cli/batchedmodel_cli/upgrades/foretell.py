"""What other images would do to each model of a cluster. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_contract.kubernetes.names import (
    BATCHER_CONTAINER,
    FETCH_CONTAINER,
    MODEL_CONTAINER,
)
from batchedmodel_contract.manifest.manifest import read_manifest
from batchedmodel_contract.manifest.model_class import class_name_of, read_class
from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_contract.manifest.workload import UpgradeMode


class Effect(StrEnum):
    """What becomes of a model's pods."""

    ROLLS = "Rolls"
    PINNED = "Pinned"
    UP_TO_DATE = "UpToDate"
    OWN_IMAGES = "OwnImages"
    """The manifest names all of them."""
    NO_PODS = "NoPods"
    UNREADABLE = "Unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """What the chart will say. None: as it is."""

    sidecar: str | None
    model_server: str | None
    mode: UpgradeMode
    """`upgrades.mode`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One model."""

    namespace: str
    name: str
    effect: Effect
    pods: int
    changes: tuple[tuple[str, str], ...] = ()
    """Images that are replaced, and by which."""


def foretell(
    models: Iterable[Mapping[str, Any]],
    classes: Iterable[Mapping[str, Any]],
    deployments: Iterable[Mapping[str, Any]],
    images: Images,
) -> Iterator[Forecast]:
    """Objects of the API, as kubectl prints them; a forecast for each model, in their order."""
    of_name = {one["metadata"]["name"]: one for one in classes}
    running = {_place(one): one for one in deployments}
    for model in models:
        (namespace, name), deployment = _place(model), running.get(_place(model))
        try:
            named = of_name.get(class_name_of(model) or "")
            spec = read_manifest(model, None if named is None else read_class(named)).spec
        except InvalidManifest:
            effect, changes = Effect.UNREADABLE, list[tuple[str, str]]()
        else:
            effect, changes = _effect(spec, deployment, images)
        pods = 0 if deployment is None else int(deployment["spec"].get("replicas", 1))
        yield Forecast(
            namespace=namespace, name=name, effect=effect, pods=pods, changes=tuple(changes)
        )


def _place(body: Mapping[str, Any]) -> tuple[str, str]:
    metadata = body["metadata"]
    return str(metadata.get("namespace", "default")), str(metadata["name"])


def _effect(
    spec: Spec, deployment: Mapping[str, Any] | None, images: Images
) -> tuple[Effect, list[tuple[str, str]]]:
    ours = spec.model.protocol is None and spec.model.image is None
    if spec.sidecar.image is not None and not ours:
        return Effect.OWN_IMAGES, []
    if deployment is None:
        return Effect.NO_PODS, []
    wanted = {
        BATCHER_CONTAINER: None if spec.sidecar.image is not None else images.sidecar,
        MODEL_CONTAINER: images.model_server if ours else None,
        FETCH_CONTAINER: images.model_server if ours else None,
    }
    pod = deployment["spec"]["template"]["spec"]
    changes = {
        (one["image"], new)
        for one in (*pod.get("initContainers", ()), *pod["containers"])
        if (new := wanted.get(one["name"])) is not None and new != one["image"]
    }
    if not changes:
        return Effect.UP_TO_DATE, []
    rolls = (spec.sidecar.upgrade or images.mode) is UpgradeMode.ROLLING
    return Effect.ROLLS if rolls else Effect.PINNED, sorted(changes)
