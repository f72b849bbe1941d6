"""Reads out of an API server's objects what the operator asks for. Pure.

Objects are JSON as it is written, and go out as plain mappings. Used by `cluster` alone.
"""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final

from batchedmodel_contract.kubernetes_names import (
    BATCHING_HASH_ANNOTATION,
    NAME_LABEL,
    REVISION_LABEL,
)
from batchedmodel_contract.object_text import (
    Unreadable,
    Wanted,
    all_but,
    members,
    parsed,
    pick,
    pick_owned,
)
from batchedmodel_operator.kinds import CHILDREN, Kind
from batchedmodel_operator.ports import Body, Unread

LARGEST_SPEC: Final = 65_536
"""Bytes of a BatchedModel's spec as JSON."""
_MODEL_METADATA: Final = dict.fromkeys(
    ("name", "namespace", "uid", "generation", "resourceVersion", "deletionTimestamp")
)
_POD: Final[Wanted] = {
    "metadata": {
        **dict.fromkeys(("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")),
        "labels": {NAME_LABEL: None, REVISION_LABEL: None},
        "annotations": {BATCHING_HASH_ANNOTATION: None},
        "ownerReferences": None,
    },
    "spec": {"initContainers": None},
    "status": dict.fromkeys(
        ("phase", "podIP", "conditions", "initContainerStatuses", "containerStatuses")
    ),
}
_MAY_BE_STRANGERS: Final = frozenset(CHILDREN) - {Kind.DEPLOYMENT}
"""Children whose heads alone tell whose they are; what else cannot be read is written anew."""


def read_model(text: bytes) -> Body:
    """A BatchedModel without what nobody here asks for. Raises `Unreadable` for its head alone.

    Where its spec cannot be read, an `Unread` stands there.
    """
    body: dict[str, Any] = {"metadata": {}}
    for name, value in members(text):
        if name == "metadata":
            body[name] = pick(value, _MODEL_METADATA)
        elif name != "spec":
            # What is said of it is written anew.
            with suppress(Unreadable):
                body[name] = parsed(value)
            continue
        else:
            try:
                body[name] = parsed(value, largest=LARGEST_SPEC)
            except Unreadable as error:
                body[name] = Unread(why=f"spec {error}")
    return body


def _read_pod(text: bytes) -> Body:
    body = pick_owned(text, _POD)
    spec = body.get("spec") or {}
    beside = [
        {"name": one.get("name"), "restartPolicy": one.get("restartPolicy")}
        for one in spec.get("initContainers") or ()
    ]
    return {**body, "spec": {"initContainers": beside}}


def _read_child(text: bytes, kind: Kind) -> Body:
    # Of children they tell who made them, and who set a Deployment's replicas.
    unwanted = () if kind in CHILDREN else ("managedFields",)
    if kind not in _MAY_BE_STRANGERS:
        return all_but(text, unwanted)
    body: dict[str, Any] = {}
    for name, value in members(text):
        # Whoever has the name of a child of ours has put there what he likes.
        with nullcontext() if name == "metadata" else suppress(Unreadable):
            body[name] = parsed(value)
    return body


def reader(kind: Kind) -> Callable[[bytes], Body]:
    """How an object of a kind is read; it raises `Unreadable`."""
    if kind is Kind.POD:
        return _read_pod
    return read_model if kind is Kind.BATCHED_MODEL else partial(_read_child, kind=kind)
