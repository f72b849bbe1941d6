"""What the sidecar knows of the model behind it, and of the link that leads there.

`native.link` follows a server of ours over its Unix socket, `upstream.link` any other over TCP.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.params import Values
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.link.kinds import Kind
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.batching.decisions import MemoryCap
from batchedmodel_sidecar.calls import Call, Row
from batchedmodel_sidecar.tokenizer import INLINE_CHARACTERS, Tokens


class VersionUsers:
    """The requests of one version."""

    __slots__ = ("_count", "_unneeded")

    def __init__(self) -> None:
        self._count = 0
        self._unneeded: Callable[[], None] | None = None

    @property
    def any(self) -> bool:
        """Whether a request needs the version."""
        return self._count > 0

    def come(self) -> None:
        """One more request needs it."""
        self._count += 1

    def leave(self) -> None:
        """One request has ended."""
        self._count -= 1
        self._end_if_unneeded()

    def replaced(self, unneeded: Callable[[], None]) -> None:
        """No more will come; `unneeded` is called once, when the last has left."""
        self._unneeded = unneeded
        self._end_if_unneeded()

    def _end_if_unneeded(self) -> None:
        if self._unneeded is not None and not self._count:
            unneeded, self._unneeded = self._unneeded, None
            unneeded()


class VersionLease:
    """What one request needs until it is closed."""

    __slots__ = ("_users",)

    def __init__(self) -> None:
        self._users: VersionUsers | None = None

    def turn_to(self, users: VersionUsers) -> None:
        """The request is read for that version; said once."""
        users.come()
        self._users = users

    def close(self) -> None:
        """The request needs none any more."""
        users, self._users = self._users, None
        if users is not None:
            users.leave()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyModel:
    """A model that can be asked."""

    description: ModelDescription
    profile: Profile | None
    """None when nobody measured the server."""
    tokens: Tokens | None
    """None when the model takes no text."""
    generation: GenerationDescription | None = None
    """Of the texts that it generates; None when it generates none."""
    tokenizer_json: bytes = field(default=b"", compare=False, repr=False)
    """Of those texts."""
    depth: int
    """Batches that each worker of the server takes at once: the one that runs, and perhaps the
    next."""
    rows_pad: bool
    """Whether rows of different shapes may share a batch: the server pads or packs them, which
    leaves the model's answers as they are."""
    users: VersionUsers = field(default_factory=VersionUsers, compare=False, repr=False)
    """The requests that were parsed for this version."""

    def asked_by(self, share: Share, size: int) -> "ReadyModel":
        """The same model for a body of so many bytes: long texts are tokenised in this tenant's
        turn.
        """
        if self.tokens is None or size <= INLINE_CHARACTERS:
            return self
        return replace(self, tokens=self.tokens.asked_by(share))

    def takes(self, call: Call) -> bool:
        """Whether the call's rows were checked for such a model."""
        # It is nearly always the very same description. To compare all of it takes a microsecond.
        mine = self.description
        return call.description is mine or call.description == mine

    def holds(self, settings: BatchSettings) -> int:
        """Batches that all its workers take at once."""
        return self.depth * settings.max_concurrent_batches

    def call_of(self, rows: tuple[Row, ...], params: Values | None = None) -> Call:
        """A call for this model; its rows and `params` were checked against the description."""
        return Call(
            rows=rows,
            description=self.description,
            # Two versions may serve at a time, and each batch goes to one of them.
            key=self.description.version,
            equal_shapes=not self.rows_pad,
            params=params,
        )


def take(call: Call, *models: ReadyModel) -> bool:
    """Whether one of the models takes the call."""
    return any(model.takes(call) for model in models)


def still_needed(*replaced: ReadyModel | None) -> tuple[ReadyModel, ...]:
    """The replaced versions that requests still need: those that were parsed for them."""
    return tuple(model for model in replaced if model is not None and model.users.any)


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

    def profile_measured(self, model: ReadyModel) -> None:
        """The server has measured more of the model that is ready: now it is this one."""

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
