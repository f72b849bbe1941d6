"""What of an API server's objects the operator keeps, within bounds. Pure.

Users of a namespace decide what its objects hold, and how many there are. So of each object only
those fields are parsed, and kept, that a reconcile looks at: a change of any other field is no
news. What is only compared is kept as a digest.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any, Final

from batchedmodel_kube.manifest.manifest import LARGEST_SPEC
from batchedmodel_kube.names import BATCHING_HASH_ANNOTATION, NAME_LABEL, REVISION_LABEL
from batchedmodel_kube.object_text import (
    Unreadable,
    Wanted,
    members,
    parsed,
    pick,
    read_whole,
)
from batchedmodel_operator.conditions.autoscaling import Heard
from batchedmodel_operator.interfaces import UNREAD, Body
from batchedmodel_operator.kinds import CHILDREN, Kind
from batchedmodel_operator.observed.state import digest

_LARGEST_PART: Final = 262_144
"""Bytes of one field. A Deployment of a spec of 64 KiB has less, with its managed fields."""
_LARGEST_TEMPLATE: Final = 131_072
"""Bytes of a pod template that is kept."""
_MOST_INIT_CONTAINERS: Final = 64
"""The operator makes two, and a manifest names 16."""
_MOST_WRITERS: Final = 64
"""Entries of `managedFields`; controllers and people are a handful."""
_MOST_OWNERS: Final = 64
"""Owners of an object; ours has one."""
_MOST_NAMES: Final = 64
"""Labels, and annotations, of an object; a manifest sets a few."""
_LONGEST_VALUE: Final = 256
"""Characters of a label or an annotation. Of a longer one the digest is enough."""
_LONGEST_MESSAGE: Final = 4_096
"""Characters of what a container or a controller says; a container's last words are no longer."""

_OWNED: Final[Wanted] = {
    **dict.fromkeys(("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")),
    "ownerReferences": None,
    "labels": {NAME_LABEL: None},
}
_REVISION: Final[Wanted] = {"metadata": _OWNED, "revision": None, "data": None}
_POD: Final[Wanted] = {
    "metadata": {
        **_OWNED,
        "creationTimestamp": None,
        "labels": dict.fromkeys((NAME_LABEL, REVISION_LABEL)),
        "annotations": {BATCHING_HASH_ANNOTATION: None},
    },
    "spec": {"initContainers": None},
    "status": dict.fromkeys(
        ("phase", "podIP", "conditions", "initContainerStatuses", "containerStatuses")
    ),
}
_MODEL_METADATA: Final = dict.fromkeys(
    ("name", "namespace", "uid", "generation", "resourceVersion", "deletionTimestamp")
)
_IDENTITY: Final = frozenset({"name", "uid", "resourceVersion"})
_HEAD: Final = ("name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp")
_COUNTS: Final = (
    *("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"),
    "observedGeneration",
)
_CONTAINER: Final = ("name", "image", "ready", "started", "restartCount")
_SAID: Final = ("reason", "message", "exitCode")


def reader_of(kind: Kind) -> Callable[[bytes], Body]:
    """How the objects of a kind are read. It raises `Unreadable`."""
    special: Mapping[Kind, Callable[[bytes], Body]] = {
        Kind.BATCHED_MODEL: read_model,
        Kind.MODEL_CLASS: read_model,
        Kind.CONTROLLER_REVISION: _read_revision,
        Kind.POD: read_pod,
        Kind.REPLICA_SET: partial(pick, wanted={"metadata": _OWNED}),
    }
    if kind in CHILDREN:
        return partial(_read_child, kind=kind)
    return special.get(kind) or parsed


def read_model(text: bytes) -> Body:
    """A BatchedModel or its class, with `UNREAD` in place of a spec that cannot be read.

    Raises `Unreadable` only for its metadata.
    """
    body: dict[str, Any] = {"metadata": {}}
    for name, value in members(text):
        if name == "metadata":
            body[name] = pick(value, _MODEL_METADATA)
        elif name == "spec":
            try:
                body[name] = parsed(value, largest=LARGEST_SPEC)
            except Unreadable as error:
                body[UNREAD] = f"spec {error}"
        else:
            # The operator writes a status that is too large anew.
            with suppress(Unreadable):
                body[name] = parsed(value, largest=_LARGEST_PART)
    return body


def read_pod(text: bytes) -> Body:
    """What is needed of a pod, and of its owners the ReplicaSet that controls it."""
    body = pick(text, _POD, largest=_LARGEST_PART)
    metadata, spec, status = body.get("metadata"), body.get("spec"), body.get("status") or {}
    if not isinstance(metadata, dict):
        raise Unreadable("has no metadata")
    owners = [
        one
        for one in metadata.get("ownerReferences") or ()
        if one.get("controller") and one.get("kind") == Kind.REPLICA_SET
    ]
    if not owners:
        # It belongs to no model, though it has the label.
        return {"metadata": _picked(metadata, (*_HEAD, "labels"))}
    metadata["ownerReferences"] = owners
    _shorten(metadata.get("annotations"))
    given = islice((spec or {}).get("initContainers") or (), _MOST_INIT_CONTAINERS)
    names = ("name", "restartPolicy")
    return {
        "metadata": metadata,
        "spec": {"initContainers": [_picked(one, names) for one in given]},
        "status": {
            **_picked(status, ("phase", "podIP")),
            "conditions": [
                _condition(one, "lastTransitionTime")
                for one in status.get("conditions") or ()
                if one.get("type") in ("Ready", "PodScheduled")
            ],
            **{
                name: [_container(one) for one in status.get(name) or ()]
                for name in ("initContainerStatuses", "containerStatuses")
            },
        },
    }


def _read_revision(text: bytes) -> Body:
    body = pick(text, _REVISION, largest=_LARGEST_TEMPLATE)
    return body if _is_a_models(body) else {"metadata": body.get("metadata") or {}}


def _read_child(text: bytes, kind: Kind) -> Body:
    whole = read_whole(text, largest=_LARGEST_PART)
    body = _in_parts(text) if whole is None else whole
    metadata = body.get("metadata") or {}
    if kind is Kind.DEPLOYMENT and not (whole or ("spec" in body and "managedFields" in metadata)):
        # Other children are written anew. A Deployment's replicas may be somebody else's.
        head = {**_head(metadata), "ownerReferences": []}
        return {"metadata": head, UNREAD: "it is too large to be read"}
    kept: dict[str, Any] = {"metadata": _head(metadata)}
    if not _is_a_models(body):
        return kept
    status = body.get("status") or {}
    if kind is Kind.DEPLOYMENT:
        said = [_condition(one) for one in status.get("conditions") or ()]
        return {
            **kept,
            "spec": body["spec"],
            "status": {**_picked(status, _COUNTS), "conditions": said},
        }
    if kind is Kind.AUTOSCALER:
        # Each time it looks, an HPA writes numbers and times beside it.
        kept["status"] = {"heard": asdict(Heard.of(status))}
    parts = ("spec", "data", "binaryData")
    return {**kept, **{part: {"digest": digest(body[part])} for part in parts if part in body}}


def _in_parts(text: bytes) -> dict[str, Any]:
    """An object without those of its parts that are too large to be read."""
    body: dict[str, Any] = {}
    for name, value in members(text):
        # A stranger's object may have the name of our child, and hold anything.
        if name == "metadata":
            body[name] = _head_in_parts(value)
            continue
        with suppress(Unreadable):
            body[name] = parsed(value, largest=_LARGEST_PART)
    return body


def _head_in_parts(text: bytes) -> dict[str, Any]:
    """What can be read of an object's metadata. Without readable owners it is a stranger's."""
    head: dict[str, Any] = {}
    for name, value in members(text):
        with nullcontext() if name in _IDENTITY else suppress(Unreadable):
            head[name] = parsed(value, largest=_LARGEST_PART)
    return head


def _head(metadata: Body) -> dict[str, Any]:
    head = _picked(metadata, _HEAD)
    if metadata.get("ownerReferences"):
        head["ownerReferences"] = metadata["ownerReferences"][:_MOST_OWNERS]
    for part in ("labels", "annotations"):
        if metadata.get(part):
            head[part] = dict(islice(metadata[part].items(), _MOST_NAMES))
            _shorten(head[part])
    writers = islice(metadata.get("managedFields") or (), _MOST_WRITERS)
    head["managedFields"] = [_writer(one) for one in writers if not one.get("subresource")]
    return head


def _writer(entry: Body) -> dict[str, Any]:
    """Who wrote, and whether the replicas are among it; a number stands for the rest."""
    fields = entry.get("fieldsV1") or {}
    kept = _picked(entry, ("manager", "operation", "time"))
    if "f:replicas" in fields.get("f:spec", {}):
        kept["fieldsV1"] = {"f:spec": {"f:replicas": {}}}
    return {**kept, "size": len(str(fields))}


def _container(status: Body) -> dict[str, Any]:
    states = {name: status.get(name) or {} for name in ("state", "lastState")}
    return {
        **_picked(status, _CONTAINER),
        **{
            name: {
                phase: _texts(_picked(said or {}, _SAID))
                for phase, said in state.items()
                if name == "state" or phase == "terminated"
            }
            for name, state in states.items()
        },
    }


def _condition(said: Body, *more: str) -> dict[str, Any]:
    of_placing = more if said.get("type") == "PodScheduled" else ()
    return _texts(_picked(said, ("type", "status", "reason", "message", *of_placing)))


def _texts(said: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value[:_LONGEST_MESSAGE] if isinstance(value, str) else value
        for name, value in said.items()
    }


def _shorten(texts: dict[str, Any] | None) -> None:
    for name, value in (texts or {}).items():
        if len(str(value)) > _LONGEST_VALUE:
            texts[name] = digest(value)  # type: ignore[index]  # there are texts


def _is_a_models(body: Body) -> bool:
    owners = (body.get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("kind") == Kind.BATCHED_MODEL for owner in owners)


def _picked(whole: Body, names: Iterable[str]) -> dict[str, Any]:
    return {name: whole[name] for name in names if name in whole}
