"""What of an API server's objects the operator reads, within bounds. Called by `cluster`.

Whoever may edit a namespace decides what stands in its objects, and a dozen models are looked at at
the same time: so of each only that is parsed which somebody asks for.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final, TypeVar

from batchedmodel_contract.kubernetes.names import (
    BATCHING_HASH_ANNOTATION,
    NAME_LABEL,
    REVISION_LABEL,
)
from batchedmodel_contract.kubernetes.object_text import (
    LARGE,
    ItemSplitter,
    Unreadable,
    Wanted,
    all_but,
    members,
    parsed,
    pick,
)
from batchedmodel_contract.manifest.manifest import LARGEST_SPEC
from batchedmodel_operator.interfaces import UNREAD, Body, Unread
from batchedmodel_operator.kinds import CHILDREN, Kind

_T = TypeVar("_T")
_READER: Final = ThreadPoolExecutor(1, thread_name_prefix="reader")
_LARGEST_CHILD_PART: Final = 262_144
"""Bytes of one field. A spec of 64 KiB makes less of a Deployment, its managed fields included."""
_LARGEST_TEMPLATE: Final = 131_072
"""Bytes of one that is kept."""

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


async def apart(text: bytes, read: Callable[[bytes], _T]) -> _T:
    """What is read of the text; of a large one in a thread, as it takes the loop's time.

    In one thread for all: several would take turns with the loop, and leave it less the more
    large objects there are.
    """
    if len(text) <= LARGE:
        return read(text)
    return await asyncio.get_running_loop().run_in_executor(_READER, read, text)


async def items_of(
    chunks: AsyncIterator[bytes], splitter: ItemSplitter
) -> AsyncGenerator[bytes, None]:
    """The items of a list as it arrives, as they are written. Raises `Unreadable`.

    What has arrived already would be cut apart without leaving the loop to anybody else.
    """
    async for chunk in chunks:
        for item in splitter.feed(chunk):
            yield item
        await asyncio.sleep(0)


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


def _read_child(text: bytes, kind: Kind) -> Body:
    # Of children they tell who made them, and who set a Deployment's replicas.
    unwanted = () if kind in CHILDREN else ("managedFields",)
    if kind not in CHILDREN:
        return all_but(text, unwanted, largest=_LARGEST_CHILD_PART)
    body: dict[str, Any] = {}
    for name, value in members(text):
        # Whoever has the name of a child of ours has put there what he likes.
        if name == "metadata":
            body[name] = _read_head(value)
            continue
        with suppress(Unreadable):
            body[name] = parsed(value, largest=_LARGEST_CHILD_PART)
    if kind is Kind.DEPLOYMENT and not ("spec" in body and "managedFields" in body["metadata"]):
        # Others are written anew. Of this one the replicas are somebody's, and nobody knows whose.
        body["metadata"].pop("ownerReferences", None)
        return {"metadata": body["metadata"], UNREAD: "it is too large to be read"}
    return body


def _read_head(text: bytes) -> dict[str, Any]:
    """What can be read of an object's metadata; without readable owners it is a stranger's."""
    head: dict[str, Any] = {}
    for name, value in members(text):
        with nullcontext() if name in _IDENTITY else suppress(Unreadable):
            head[name] = parsed(value, largest=_LARGEST_CHILD_PART)
    return head


def _read_revision(text: bytes) -> Body:
    return pick(text, _REVISION, largest=_LARGEST_TEMPLATE)


def read_pod(text: bytes) -> Body:
    """Of a pod what somebody here asks for; of its owners only the ReplicaSet that controls it.

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
        Kind.CONTROLLER_REVISION: _read_revision,
        Kind.POD: read_pod,
        Kind.REPLICA_SET: partial(pick, wanted={"metadata": _OWNED}),
    }
    return special.get(kind) or partial(_read_child, kind=kind)
