"""What other images would do to each model of a cluster. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.model_class import class_name_of, read_class
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.manifest.workload import UpgradeMode
from batchedmodel_kube.names import BATCHER_CONTAINER, FETCH_CONTAINER, MODEL_CONTAINER


class Effect(StrEnum):
    """What becomes of a model's pods."""

    ROLLS = "Rolls"
    TAKEN_BACK = "TakenBack"
    """These very images failed in its pods."""
    WAITS = "WaitingForModelImage"
    """The sidecar keeps its image beside a model server that may be of an earlier release."""
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
    images: Sequence[Mapping[str, str]]
    """Those that are replaced (``from``), and by which (``to``)."""
    why: str | None
    """What failed, of images that were taken back; what a model that waits waits for."""


def foretell(
    models: Iterable[Mapping[str, Any]],
    classes: Iterable[Mapping[str, Any]],
    deployments: Iterable[Mapping[str, Any]],
    templates: Iterable[Mapping[str, Any]],
    images: Images,
) -> Iterator[Forecast]:
    """Objects of the API, as kubectl prints them; a forecast for each model, in their order.

    `templates`: ControllerRevisions, in which the operator keeps pod templates.
    """
    of_name = {one["metadata"]["name"]: one for one in classes}
    running = {_place(one): one for one in deployments}
    kept = {_place(one): one for one in templates}
    for model in models:
        (namespace, name), deployment = _place(model), running.get(_place(model))
        try:
            named = of_name.get(class_name_of(model) or "")
            spec = read_manifest(model, None if named is None else read_class(named)).spec
        except InvalidManifest:
            effect, changes = Effect.UNREADABLE, list[tuple[str, str]]()
        else:
            effect, changes = _effect(spec, deployment, images)
        why = None
        waits = _waits_for_model_image(model)
        if effect in (Effect.ROLLS, Effect.PINNED) and waits:
            effect, why = Effect.WAITS, waits
        elif effect is Effect.ROLLS:
            rollout = (model.get("status") or {}).get("rollout") or {}
            failed = kept.get((namespace, str(rollout.get("failedRevision")))) or {}
            template = (failed.get("data") or {}).get("template")
            if template and not _changes(template, spec, images):
                effect = Effect.TAKEN_BACK
                said = (rollout.get(name, "") for name in ("failedReason", "failedMessage"))
                why = ": ".join(one for one in said if one)
        pods = 0 if deployment is None else int(deployment["spec"].get("replicas", 1))
        images_changed = [{"from": old, "to": new} for old, new in changes]
        yield Forecast(
            namespace=namespace, name=name, effect=effect, pods=pods, images=images_changed, why=why
        )


def _place(body: Mapping[str, Any]) -> tuple[str, str]:
    metadata = body["metadata"]
    return str(metadata.get("namespace", "default")), str(metadata["name"])


def _effect(
    spec: Spec, deployment: Mapping[str, Any] | None, images: Images
) -> tuple[Effect, list[tuple[str, str]]]:
    if spec.sidecar.image is not None and not _is_ours(spec):
        return Effect.OWN_IMAGES, []
    if deployment is None:
        return Effect.NO_PODS, []
    changes = _changes(deployment["spec"]["template"], spec, images)
    if not changes:
        return Effect.UP_TO_DATE, []
    rolls = (spec.sidecar.upgrade or images.mode) is UpgradeMode.ROLLING
    return Effect.ROLLS if rolls else Effect.PINNED, changes


def _waits_for_model_image(model: Mapping[str, Any]) -> str | None:
    """The operator's sentence, where its condition says so; None where it does not."""
    conditions = (model.get("status") or {}).get("conditions") or ()
    waiting = (one for one in conditions if one.get("reason") == Effect.WAITS.value)
    return next((str(one.get("message", "")) for one in waiting), None)


def _is_ours(spec: Spec) -> bool:
    """Whether the model server is the operator's."""
    return spec.model.protocol is None and spec.model.image is None


def _changes(template: Mapping[str, Any], spec: Spec, images: Images) -> list[tuple[str, str]]:
    """Images of a pod template that others would replace, and by which."""
    server = images.model_server if _is_ours(spec) else None
    wanted = {
        BATCHER_CONTAINER: None if spec.sidecar.image is not None else images.sidecar,
        MODEL_CONTAINER: server,
        FETCH_CONTAINER: server,
    }
    pod = template["spec"]
    changes = {
        (str(one.get("image")), new)
        for one in (*(pod.get("initContainers") or ()), *pod["containers"])
        if (new := wanted.get(one["name"])) is not None and new != one.get("image")
    }
    return sorted(changes)
