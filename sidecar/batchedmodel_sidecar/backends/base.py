"""What the rest of the sidecar knows of the server behind, whichever kind it is.

`native.link` follows a server of ours over its Unix socket, `upstream.link` any other over TCP.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.link.kinds import Kind
from batchedmodel_contract.link.model_frames import Answer
from batchedmodel_scheduling.core.policy import MemoryCap
from batchedmodel_sidecar.model import ReadyModel

MAX_ORDER_BYTES: Final = 16 * 1024
"""Of a call of the repository; all that is known fits into a hundredth of it."""

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
    link_version: int = 0
    """Of the frames that both ends speak; 0 while there is no link, and for an upstream."""


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


class FrameChannel(Protocol):
    """Sends frames to a server of ours."""

    def next_id(self) -> int:
        """The next number of a batch, a text or an order: one sequence for all of them."""
        ...

    def send(self, kind: Kind, frame_id: int, parts: Sequence[Buffer] = (b"",)) -> None:
        """Send a frame; nothing where there is no connection."""
        ...


class TextFrames(Protocol):
    """Handles what a server of ours says of its engines and of the texts that they make."""

    def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
        """Handle one frame; raises `InvalidInput` where it cannot be read."""
        ...

    def disconnected(self) -> None:
        """The connection has ended, and its engines are gone."""
        ...


class Repository(Protocol):
    """The versions of a model server of ours; each call raises `Unserved`.

    A body is JSON as its caller sent it, and the server's documents pass as they are.
    """

    async def index(self, body: bytes = b"") -> Answer:
        """The versions with their states."""
        ...

    async def load(self, body: bytes) -> Answer:
        """Serve what the source holds now; takes minutes."""
        ...

    async def unload(self, body: bytes) -> Answer:
        """Give the memory back."""
        ...


class Link(Protocol):
    """The connection to one server."""

    @property
    def status(self) -> LinkStatus:
        """The present state, for probes and refusals."""

    async def follow(self) -> None:
        """Keep the status right, for ever."""

    def infer(self, request: BatchRequest, seconds: float) -> Awaitable[BatchReply]:
        """The server's reply to a batch within so many seconds; raises `Unserved`."""
        ...

    def watch(self, closely: bool) -> None:
        """While closely, no restart of the server may go unnoticed, however short."""

    async def close(self) -> None:
        """Hang up."""
