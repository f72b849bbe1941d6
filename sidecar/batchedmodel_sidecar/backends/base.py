"""What the rest of the sidecar knows of the server behind, whichever kind it is.

`native.link` follows a server of ours over its Unix socket, `foreign.link` any other over TCP.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_scheduling.core.policy import MemoryCap
from batchedmodel_sidecar.model import ReadyModel

Infer = Callable[[BatchRequest, float], Awaitable[BatchReply]]
"""Carries one batch to the server within so many seconds; raises `Unserved`.

It is begun without a task: what needs one waits a turn of the loop (`asyncio.sleep(0)`) before.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus:
    """Whether the model can be asked now."""

    model: ReadyModel | None
    reason: str
    """Why there is no model; empty while there is one."""
    stuck: bool = False
    """The server holds its connections and answers nothing: only a restart will help."""


class LinkListener(Protocol):
    """What a link tells when the model comes and goes."""

    def model_ready(self, model: ReadyModel) -> None:
        """The server is ready; called again after each loss."""

    def model_lost(self, reason: str) -> None:
        """The server cannot be asked at present."""

    def profile_measured(self, profile: Profile) -> None:
        """The server has measured more of the model that is ready."""

    def memory_bound(self, cap: MemoryCap) -> None:
        """The server's memory was found to hold so much, as far as is known."""


class Link(Protocol):
    """The connection to one server."""

    @property
    def status(self) -> LinkStatus:
        """The present state, for probes and refusals."""

    async def follow(self) -> None:
        """Keep the status right, for ever."""

    async def infer(self, request: BatchRequest, seconds: float) -> BatchReply:
        """The server's reply to a batch within so many seconds; raises `Unserved`."""

    def watch(self, closely: bool) -> None:
        """While closely, no restart of the server may go unnoticed, however short."""

    async def close(self) -> None:
        """Hang up."""
