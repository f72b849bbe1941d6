"""The live BatchedModel in kubectl's output, or in a file or stream that holds it.

Called by `command`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from batchedmodel_cli.diff.dry_run import LiveModel
from batchedmodel_cli.simulate.inputs import Refused
from batchedmodel_cli.yaml_text import MOST_CHARACTERS, NotOneDocument, read_document, read_text
from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.model_class import ModelClass, class_name_of, read_class
from batchedmodel_kube.names import CLASS_KIND, KIND


def from_file(file: Path) -> str:
    """kubectl's output from a file; raises `Refused`."""
    try:
        return read_text(file)
    except NotOneDocument as error:
        raise Refused(f"--live {file}: {error}") from error


def from_stream(stream: TextIO) -> str:
    """kubectl's output from standard input; raises `Refused`."""
    try:
        return stream.read(MOST_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise Refused(f"--live -: is not UTF-8 text: {error.reason}") from error


def read_live(
    text: str, name: str, class_of: Callable[[str], ModelClass | None] = lambda _: None
) -> LiveModel:
    """The BatchedModel of that name in kubectl's output, YAML or JSON; raises `Refused`.

    `class_of` gives the class of a name, where the output does not hold it.
    """
    if not text.strip():
        raise Refused(f"the live object: nothing was given; is there a {KIND} {name}?")
    named = _named(text, KIND)
    if name not in named:
        others = f", only {', '.join(sorted(named))}" if named else ""
        raise Refused(f"the live object: there is no {KIND} {name}{others}")
    body = named[name]
    metadata = body["metadata"]
    class_name = class_name_of(body)
    found = None
    if class_name is not None:
        found = read_live_class(text, class_name) or class_of(class_name)
    try:
        spec = read_manifest(body, found).spec
    except InvalidManifest as error:
        # An earlier custom resource definition allowed it; its children stay as they are.
        said = (f"the live object: {mistake}" for mistake in error.mistakes)
        raise Refused("\n".join(said)) from error
    return LiveModel(
        namespace=str(metadata.get("namespace") or "default"),
        name=name,
        uid=str(metadata.get("uid") or ""),
        spec=spec,
        status=_status(body.get("status")),
    )


def _status(found: object) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        return {}
    conditions = found.get("conditions", [])
    texts = ("type", "status")
    if not isinstance(conditions, list) or not all(
        isinstance(one, Mapping) and all(isinstance(one.get(name), str) for name in texts)
        for one in conditions
    ):
        raise Refused("the live object: status.conditions: is not a list of conditions")
    return found


def read_live_class(text: str, name: str) -> ModelClass | None:
    """The class of that name in kubectl's output, None where it is not there; raises `Refused`."""
    body = _named(text, CLASS_KIND).get(name) if text.strip() else None
    try:
        return None if body is None else read_class(body)
    except InvalidManifest as error:
        raise Refused("\n".join(f"the live object: {one}" for one in error.mistakes)) from error


def _named(text: str, kind: str) -> Mapping[str, Mapping[str, Any]]:
    """The objects of a kind in kubectl's output, by their names."""
    try:
        document = read_document(text)
    except NotOneDocument as error:
        raise Refused(f"the live object: {error}") from error
    found: Any = document if isinstance(document, dict) else {}
    items = found["items"] if isinstance(found.get("items"), list) else [found]
    return {
        str(item["metadata"].get("name")): item
        for item in items
        if isinstance(item, dict)
        and item.get("kind") == kind
        and isinstance(item.get("metadata"), dict)
    }
