"""Live objects, as kubectl prints them or as a file or stream holds them. Called by `command`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchedmodel_cli.simulate.inputs import Refused
from batchedmodel_cli.yaml_text import MOST_CHARACTERS, NotOneDocument, read_document, read_text
from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.model_class import ModelClass, class_name_of, read_class
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.names import CLASS_KIND, KIND

Objects = Sequence[Mapping[str, Any]]
_STANDARD_INPUT: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """A BatchedModel as it is in a cluster."""

    spec: Spec
    pods: int
    """An autoscaler's number, as the status has it, or else the manifest's."""


def text_of(live: str) -> str:
    """What `--live` names; raises `Refused`."""
    try:
        if live == _STANDARD_INPUT:
            return sys.stdin.read(MOST_CHARACTERS + 1)
        return read_text(Path(live))
    except (NotOneDocument, UnicodeDecodeError) as error:
        raise Refused(f"--live {live}: {error}") from error


def objects_in(text: str) -> Objects:
    """The objects in kubectl's output, YAML or JSON; raises `Refused`."""
    try:
        document: Any = read_document(text) if text.strip() else {}
    except NotOneDocument as error:
        raise Refused(f"the live object: {error}") from error
    items = document.get("items", [document]) if isinstance(document, dict) else []
    return [
        item
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, dict) and isinstance(item.get("metadata"), dict)
    ]


def read_live(
    objects: Objects, name: str, class_of: Callable[[str], ModelClass | None]
) -> LiveModel:
    """The BatchedModel of that name; raises `Refused`.

    `class_of` gives the class of a name, where the objects do not hold it.
    """
    body = _named(objects, KIND, name)
    if body is None:
        raise Refused(f"the live object: there is no {KIND} {name}")
    class_name, model_class = class_name_of(body), None
    if class_name is not None:
        model_class = read_live_class(objects, class_name) or class_of(class_name)
    try:
        spec = read_manifest(body, model_class).spec
    except InvalidManifest as error:
        # An earlier custom resource definition allowed it; its children stay as they are.
        raise _refused(error) from error
    status = body.get("status")
    desired = status.get("desiredReplicas") if isinstance(status, Mapping) else None
    return LiveModel(spec=spec, pods=pods_with(spec, desired if isinstance(desired, int) else 0))


def pods_with(spec: Spec, present: int) -> int:
    """Pods with this spec where so many are present, before an autoscaler measures anything."""
    scaling = spec.autoscaling
    if spec.suspend:
        return 0
    if scaling is None:
        return 1 if spec.replicas is None else spec.replicas
    return max(scaling.min_replicas, min(present, scaling.max_replicas))


def read_live_class(objects: Objects, name: str) -> ModelClass | None:
    """The class of that name, None where it is not there; raises `Refused`."""
    body = _named(objects, CLASS_KIND, name)
    try:
        return None if body is None else read_class(body)
    except InvalidManifest as error:
        raise _refused(error) from error


def _refused(error: InvalidManifest) -> Refused:
    return Refused("\n".join(f"the live object: {mistake}" for mistake in error.mistakes))


def _named(objects: Objects, kind: str, name: str) -> Mapping[str, Any] | None:
    of_kind = (one for one in objects if one.get("kind") == kind)
    return next((one for one in of_kind if one["metadata"].get("name") == name), None)
