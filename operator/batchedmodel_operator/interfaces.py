"""What the reconciler needs of the world: an API server and the pods' sidecars.

`cluster` and `sidecars` are the real ones; tests bring an API server in memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from batchedmodel_contract.lora import AdapterState
from batchedmodel_kube.admin_client import Whom
from batchedmodel_operator.kinds import Kind

Body = Mapping[str, Any]
"""An object as JSON, in the API's own form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Stands for a BatchedModel's spec that is too large or too deep to be read."""

    why: str


UNREAD: Final = "unread"
"""Where a child's body says why its head alone was read, and its owners were not."""

LOOKED_AT: Final = "lookedAt"
"""Where a watched HorizontalPodAutoscaler's body has a digest of all that a reconcile looks at."""


class Cluster(Protocol):
    """An API server. Every call ends in bounded time and raises only `ClusterError`s."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """The object, or None when it, its namespace or its kind is not there."""
        ...

    async def labelled(self, kind: Kind, namespace: str, model: str) -> Sequence[Body]:
        """The objects of a kind that carry a BatchedModel's label."""
        ...

    async def apply(self, manifest: Body, *, manager: str, subresource: str = "") -> Body:
        """Server-side apply as `manager`, with force; the object as it then is."""
        ...

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this object; nothing to do when it is gone."""
        ...

    async def annotate(self, pod: str, namespace: str, uid: str, annotation: Body) -> None:
        """Set annotations of exactly this pod; nothing to do when it is gone."""
        ...


class Sidecars(Protocol):
    """The admin ports of the pods."""

    async def settings_hash(self, address: str, whom: Whom) -> str | None:
        """The hash of the batch settings in force, or None when the pod gives no answer."""
        ...

    async def model_startup(self, address: str, whom: Whom) -> str | None:
        """What is said of the model's start, or None when the pod gives no answer."""
        ...

    async def link_version(self, address: str, whom: Whom) -> int | None:
        """The version of the link that it speaks with its model server, 0 where it tells none."""
        ...

    async def adapters(self, address: str, whom: Whom) -> Sequence[AdapterState] | None:
        """What is said of the model's adapters, or None when the pod gives no answer."""
        ...
