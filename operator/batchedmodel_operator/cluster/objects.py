"""What of an API server's objects the operator reads, within bounds. Pure.

Whoever may edit a namespace decides what its objects hold, and the operator reconciles a dozen
models at the same time. So only those parts of an object are parsed that somebody asks for.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final

from batchedmodel_kube.manifest.manifest import LARGEST_SPEC
from batchedmodel_kube.names import BATCHING_HASH_ANNOTATION, NAME_LABEL, REVISION_LABEL
from batchedmodel_kube.object_text import (
    Unreadable,
    Wanted,
    all_but,
    members,
    parsed,
    pick,
    read_whole,
)
from batchedmodel_operator.interfaces import UNREAD, Body, Unread
from batchedmodel_operator.kinds import CHILDREN, Kind

_LARGEST_CHILD_PART: Final = 262_144
"""Bytes of one field. A Deployment of a spec of 64 KiB has less, with its managed fields."""
_LARGEST_TEMPLATE: Final = 131_072
"""Bytes of a pod template that is kept."""
_MOST_INIT_CONTAINERS: Final = 64
"""The operator makes two, and a manifest names 16."""
_OWNED: Final[Wanted] = dict.fromkeys(
    ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "ownerReferences")
)
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

_IDENTITY: Final = frozenset({"name", "uid", "resourceVersion"})
_MODEL_METADATA: Final = dict.fromkeys(
    ("name", "namespace", "uid", "generation", "resourceVersion", "deletionTimestamp")
)


def read_model(text: bytes) -> Body:
    """A BatchedModel or its class, with an `Unread` in place of a spec that cannot be read.

    Raises `Unreadable` only for its metadata.
    """
    body: dict[str, Any] = {"metadata": {}}
    for name, value in members(text):
        if name == "metadata":
            body[name] = pick(value, _MODEL_METADATA)
        elif name != "spec":
            # The operator writes the status anew.
            with suppress(Unreadable):
                body[name] = parsed(value)
            continue
        else:
            try:
                body[name] = parsed(value, largest=LARGEST_SPEC)
            except Unreadable as error:
                body[name] = Unread(why=f"spec {error}")
    return body


def _read_child(text: bytes, kind: Kind) -> Body:
    if kind not in CHILDREN:
        # Of children they tell who made them, and who set a Deployment's replicas.
        return all_but(text, ("managedFields",), largest=_LARGEST_CHILD_PART)
    whole = read_whole(text, largest=_LARGEST_CHILD_PART)
    if whole is not None and isinstance(whole.get("metadata"), dict):
        return whole
    body: dict[str, Any] = {}
    for name, value in members(text):
        # A stranger's object may have the name of our child, and hold anything.
        if name == "metadata":
            body[name] = _read_head(value)
            continue
        with suppress(Unreadable):
            body[name] = parsed(value, largest=_LARGEST_CHILD_PART)
    if kind is Kind.DEPLOYMENT and not ("spec" in body and "managedFields" in body["metadata"]):
        # Other children are written anew. A Deployment's replicas may be somebody else's.
        body["metadata"].pop("ownerReferences", None)
        return {"metadata": body["metadata"], UNREAD: "it is too large to be read"}
    return body


def _read_head(text: bytes) -> dict[str, Any]:
    """What can be read of an object's metadata. Without readable owners it is a stranger's."""
    head: dict[str, Any] = {}
    for name, value in members(text):
        with nullcontext() if name in _IDENTITY else suppress(Unreadable):
            head[name] = parsed(value, largest=_LARGEST_CHILD_PART)
    return head


def _read_revision(text: bytes) -> Body:
    return pick(text, _REVISION, largest=_LARGEST_TEMPLATE)


def read_pod(text: bytes) -> Body:
    """What is needed of a pod, and of its owners the ReplicaSet that controls it.

    Raises `Unreadable`.
    """
    body = pick(text, _POD, largest=_LARGEST_CHILD_PART)
    metadata, spec = body.get("metadata"), body.get("spec")
    if not isinstance(metadata, dict):
        raise Unreadable("has no metadata")
    owners = metadata.get("ownerReferences") or ()
    metadata["ownerReferences"] = [
        one for one in owners if one.get("controller") and one.get("kind") == Kind.REPLICA_SET
    ]
    if isinstance(spec, dict):
        given = (spec.get("initContainers") or ())[:_MOST_INIT_CONTAINERS]
        names = ("name", "restartPolicy")
        spec["initContainers"] = [{key: one[key] for key in names if key in one} for one in given]
    return body


def reader_of(kind: Kind) -> Callable[[bytes], Body]:
    """How the objects of a kind are read."""
    special: Mapping[Kind, Callable[[bytes], Body]] = {
        Kind.BATCHED_MODEL: read_model,
        Kind.MODEL_CLASS: read_model,
        Kind.CONTROLLER_REVISION: _read_revision,
        Kind.POD: read_pod,
        Kind.REPLICA_SET: partial(pick, wanted={"metadata": _OWNED}),
    }
    return special.get(kind) or partial(_read_child, kind=kind)
