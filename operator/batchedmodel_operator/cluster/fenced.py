"""A cluster that only a leader writes to.

The process of a leader that leads no more ends. What it was about to write when it was frozen must
not be sent when it is thawed long after, before it notices.
"""

from collections.abc import Callable, Sequence

from batchedmodel_operator.errors import Unreachable
from batchedmodel_operator.interfaces import Body, Cluster
from batchedmodel_operator.kinds import Kind


class FencedCluster:
    """The cluster behind it; a write that is not allowed just now raises `Unreachable`."""

    def __init__(self, cluster: Cluster, *, may_write: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._may_write = may_write

    async def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """As the cluster does."""
        return await self._cluster.get(kind, namespace, name)

    async def labelled(self, kind: Kind, namespace: str, model: str) -> Sequence[Body]:
        """As the cluster does."""
        return await self._cluster.labelled(kind, namespace, model)

    async def apply(self, manifest: Body, *, manager: str, subresource: str = "") -> Body:
        """As the cluster does, for a leader."""
        self._check()
        return await self._cluster.apply(manifest, manager=manager, subresource=subresource)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """As the cluster does, for a leader."""
        self._check()
        await self._cluster.delete(kind, namespace, name, uid)

    async def annotate(self, pod: str, namespace: str, uid: str, annotation: Body) -> None:
        """As the cluster does, for a leader."""
        self._check()
        await self._cluster.annotate(pod, namespace, uid, annotation)

    def _check(self) -> None:
        if not self._may_write():
            raise Unreachable("this operator leads no more")
