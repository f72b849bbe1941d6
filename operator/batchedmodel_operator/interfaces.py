"""What the reconciler needs of the world: what is known, an API server and the pods' sidecars.

`cluster` has the real ones; tests bring an API server in memory.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from batchedmodel_contract.lora import AdapterState
from batchedmodel_kube.admin_client import Whom
from batchedmodel_kube.errors import ClusterError
from batchedmodel_operator.kinds import Kind

Body = Mapping[str, Any]
"""An object as JSON, in the API's own form."""


UNREAD: Final = "unread"
"""Where a body says why its head alone was read: a child's without its owners, a BatchedModel's
without its spec."""


class Known(Protocol):
    """What is known of an API server's objects, in memory."""

    def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """An object of ours, or None when it is not there."""
        ...

    def owned(
        self, kind: Kind, namespace: str, model: str, owners: Container[str]
    ) -> Sequence[Body]:
        """The objects of a kind with a BatchedModel's label and one of these controllers."""
        ...

    def unseen(self, namespace: str) -> Mapping[Kind, ClusterError]:
        """The kinds of which it is not known what there is, each with the reason."""
        ...


class Cluster(Protocol):
    """An API server. Every call ends in bounded time and raises only `ClusterError`s."""

    async def read(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """The object, or None when it, its namespace or its kind is not there."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarState:
    """What the sidecar of a pod says of itself."""

    settings_hash: str
    """Of the batch settings in force."""
    link_version: int
    """Of the link that it speaks with its model server; 0 where it says none."""
    startup: str | None
    """How the start of the model goes; None where that cannot be read."""
    adapters: Sequence[AdapterState] | None
    """The model's adapters; None where they cannot be read."""


class Sidecars(Protocol):
    """The admin ports of the pods."""

    async def state(self, address: str, whom: Whom) -> SidecarState | None:
        """What the sidecar says of itself, or None when the pod gives no answer."""
        ...
