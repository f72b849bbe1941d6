"""What the operator asks of the API server, by kinds and names."""

from collections.abc import Callable
from contextlib import suppress

from batchedmodel_kube.client import Client, path_of
from batchedmodel_kube.errors import Gone, Unreachable
from batchedmodel_operator.cluster.objects import reader_of
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import RESOURCES, Kind


class KubernetesCluster:
    """An API server as the operator's account sees it."""

    def __init__(
        self,
        client: Client,
        *,
        may_write: Callable[[], bool] = lambda: True,
        wrote: Callable[[Kind, Body], None] = lambda kind, body: None,
    ) -> None:
        """`may_write`: whether this operator leads, at this moment. Else writes are `Unreachable`.

        The process of a leader that leads no more ends. What it was about to write when it was
        frozen must not be sent when it is thawed long after, before it notices.

        `wrote` hears of each object as a write has made it.
        """
        self._client = client
        self._may_write = may_write
        self._wrote = wrote

    async def read(self, kind: Kind, namespace: str, name: str) -> Body | None:
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

    async def apply(self, manifest: Body, *, manager: str, subresource: str = "") -> Body:
        """Server-side apply as `manager`, with force; the object as it then is."""
        kind, metadata = Kind(manifest["kind"]), manifest["metadata"]
        path = self._written(kind, metadata["namespace"], metadata["name"], subresource)
        body = await self._client.apply(path, manifest, manager=manager, read=reader_of(kind))
        self._wrote(kind, body)
        return body

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this object; nothing to do when it is gone."""
        await self._client.delete(self._written(kind, namespace, name), uid=uid)

    async def annotate(self, pod: str, namespace: str, uid: str, annotation: Body) -> None:
        """Set annotations of exactly this pod; nothing to do when it is gone."""
        patch = {"metadata": {"uid": uid, "annotations": dict(annotation)}}
        with suppress(Gone):
            await self._client.merge(self._written(Kind.POD, namespace, pod), patch)

    def _written(self, kind: Kind, namespace: str, name: str, subresource: str = "") -> str:
        """The address, for a leader's write."""
        if not self._may_write():
            raise Unreachable("this operator leads no more")
        return _path(kind, namespace, name, subresource)


def _path(kind: Kind, namespace: str, name: str = "", subresource: str = "") -> str:
    resource = RESOURCES[kind]
    where = {"namespace": namespace, "name": name, "subresource": subresource}
    return path_of(resource.group, resource.version, resource.plural, **where)
