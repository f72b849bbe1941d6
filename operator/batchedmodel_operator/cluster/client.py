"""What the operator asks of the API server, by kinds and names.

Kopf watches by itself and only says that something happened.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

from batchedmodel_kube.client import Client, Collection, Event, EventType, path_of
from batchedmodel_kube.errors import Forbidden, Gone, Unreachable
from batchedmodel_kube.names import NAME_LABEL
from batchedmodel_operator.cluster.objects import reader_of
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import RESOURCES, Kind

_log: Final = logging.getLogger(__name__)
_MOST_LISTED: Final = {Kind.CONTROLLER_REVISION: 524_288, Kind.POD: 16_777_216}
"""Bytes as JSON of all objects with a model's label that are read in one reconcile."""
_LEAST_COUNTED: Final = 5_592
"""Bytes that each counts for: three thousand pods."""
_HEAVY: Final = 131_072
_TIMES_BEYOND: Final = 16
"""So many times more counts what of a pod is beyond `_HEAVY`: one is read at a time, for all."""
_MUCH: Final = 0.25
"""Of `_MOST_LISTED`: models that had so much are listed one after the other."""
_MOST_KNOWN: Final = 1_024
"""Of such models are remembered."""
_TURN_SECONDS: Final = 30.0
"""For which one waits for its turn. A dozen are done in seconds."""


class KubernetesCluster:
    """An API server as the operator's account sees it."""

    def __init__(self, client: Client, *, may_write: Callable[[], bool] = lambda: True) -> None:
        """`may_write`: whether this operator leads, at this moment. Else writes are `Unreachable`.

        The process of a leader that leads no more ends. What it was about to write when it was
        frozen must not be sent when it is thawed long after, before it notices.
        """
        self._client = client
        self._may_write = may_write
        self._much: set[tuple[Kind, str, str]] = set()
        """Kinds and models that had `_MUCH` when they were last listed."""
        self._turn = asyncio.Lock()

    async def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """The object, or None when it, its namespace or its kind is not there."""
        return await self._client.get(_path(kind, namespace, name), read=reader_of(kind))

    async def served(self, group: str, version: str) -> frozenset[str]:
        """The resources that the API server lists of a group's version; none where it has none."""
        found = await self._client.get(f"/apis/{group}/{version}") or {}
        return frozenset(one.get("name", "") for one in found.get("resources") or ())

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server lists the kind among those that can be asked for."""
        resource = RESOURCES[kind]
        return resource.plural in await self.served(resource.group, resource.version)

    async def may_list(self, kind: Kind, namespace: str) -> bool:
        """Whether the objects of a kind can be listed in a namespace."""
        one = f"{_path(kind, namespace)}?limit=1"
        try:
            return await self._client.get(one, read=lambda _: {}) is not None
        except Forbidden:
            return False

    async def each(self, kind: Kind, namespace: str) -> AsyncIterator[Body]:
        """The objects of a kind as they arrive; those of all namespaces where none is named.

        Objects that cannot be read are left out.
        """
        async for event in self._listed(kind, namespace):
            yield event.found

    async def labelled(self, kind: Kind, namespace: str, model: str) -> Sequence[Body]:
        """The objects of a kind with a BatchedModel's label that can be read and have an owner."""
        whose = kind, namespace, model
        async with self._in_turn(whose):
            found, held = await self._read_of(kind, namespace, model)
        if held > _MUCH * _MOST_LISTED[kind]:
            if len(self._much) >= _MOST_KNOWN:
                self._much.clear()
            self._much.add(whose)
        else:
            self._much.discard(whose)
        return found

    async def apply(self, manifest: Body, *, manager: str, subresource: str = "") -> Body:
        """Server-side apply as `manager`, with force; the object as it then is."""
        kind, metadata = Kind(manifest["kind"]), manifest["metadata"]
        path = self._written(kind, metadata["namespace"], metadata["name"], subresource)
        return await self._client.apply(path, manifest, manager=manager, read=reader_of(kind))

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this object; nothing to do when it is gone."""
        await self._client.delete(self._written(kind, namespace, name), uid=uid)

    async def annotate(self, pod: str, namespace: str, uid: str, annotation: Body) -> None:
        """Set annotations of exactly this pod; nothing to do when it is gone."""
        patch = {"metadata": {"uid": uid, "annotations": dict(annotation)}}
        with suppress(Gone):
            await self._client.merge(self._written(Kind.POD, namespace, pod), patch)

    async def _read_of(self, kind: Kind, namespace: str, model: str) -> tuple[list[Body], int]:
        """As `labelled`, and the bytes that these objects count for."""
        held, found = 0, []
        async with aclosing(self._listed(kind, namespace, f"{NAME_LABEL}={model}")) as listed:
            async for event in listed:
                held += max(event.size, _LEAST_COUNTED)
                if kind is Kind.POD:
                    held += _TIMES_BEYOND * max(0, event.size - _HEAVY)
                if held > _MOST_LISTED[kind]:
                    what = f"{namespace}: there is more of {kind} with the label of {model}"
                    _log.warning("%s than the %d bytes that are read", what, _MOST_LISTED[kind])
                    break
                # Without an owner it is nobody's, whatever its label says.
                if event.found["metadata"].get("ownerReferences"):
                    found.append(event.found)
        return found, held

    @asynccontextmanager
    async def _in_turn(self, whose: tuple[Kind, str, str]) -> AsyncIterator[None]:
        """One at a time of those that have much: a dozen together take the API server from all."""
        if whose not in self._much:
            yield
            return
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError as error:
            raise Unreachable("the lists of other models take too long") from error
        try:
            yield
        finally:
            self._turn.release()

    async def _listed(
        self, kind: Kind, namespace: str, labels: str = ""
    ) -> AsyncGenerator[Event, None]:
        path, read = _path(kind, namespace), reader_of(kind)
        collection = Collection(path=path, labels=labels, read=read)
        async with aclosing(self._client.list(collection)) as listed:
            async for event in listed:
                if event.type is EventType.ADDED:
                    yield event

    def _written(self, kind: Kind, namespace: str, name: str, subresource: str = "") -> str:
        """The address, for a leader's write."""
        if not self._may_write():
            raise Unreachable("this operator leads no more")
        return _path(kind, namespace, name, subresource)


def _path(kind: Kind, namespace: str, name: str = "", subresource: str = "") -> str:
    resource = RESOURCES[kind]
    where = {"namespace": namespace, "name": name, "subresource": subresource}
    return path_of(resource.group, resource.version, resource.plural, **where)
