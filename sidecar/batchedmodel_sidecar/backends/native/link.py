"""The link to our model server: one connection, over which everything goes.

The server says at once how its model is, and when that changes; the connection's end says that the
server is gone. Nothing is asked periodically. What the server sends and makes no sense ends the
connection, and the model is ready again once a new one says so. Over a batch that is not answered,
or with nonsense, the connection ends behind the other batches that are under way.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Final

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link import model_frames
from batchedmodel_contract.link.connection import UNREADABLE, LinkConnection
from batchedmodel_contract.link.kinds import TO_SIDECAR, Kind
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_scheduling.batching.decisions import MemoryCap
from batchedmodel_sidecar.backends.native.batches import NONSENSE, Outputs, PendingBatches
from batchedmodel_sidecar.backends.native.connecting import AbsentServer, RefusedLink, connect
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.errors import Busy, Unserved
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import LinkListener, LinkStatus, ReadyModel, TextFrames
from batchedmodel_sidecar.tokenizer import Tokens, text_threads

logger: Final = logging.getLogger(__name__)

_TEXT_THREADS: Final = 2
_DEPTH: Final = 2  # one batch that runs and one handed over just in time
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
_LONGEST_ABSENCE: Final = 0.5
"""Between two tries where nobody listens on the socket: they cost next to nothing, and a server
that is started again is found soon."""
_MAX_DOUBLINGS: Final = 10
_HELLO_SECONDS: Final = 30.0
"""A stopped process still has its connections taken by the kernel, and says nothing."""
_INDEX_SECONDS: Final = 10.0
_MAX_INDEX_ORDERS: Final = 16
"""Under way: any caller of the data port may ask, and the server hangs up on who reads too little.
"""
_MAX_UNANSWERED: Final = 2  # batches in a row after which only a restart helps
_UNREACHABLE: Final = "the model server cannot be reached"
_WENT_AWAY: Final = "the model server cannot be reached, or went away"


class NativeLink:
    """Follows one model server over its Unix socket and carries all that is for it."""

    def __init__(
        self,
        socket_path: str,
        listener: LinkListener,
        regions: SharedRegions,
        adapters: ServedAdapters,
    ) -> None:
        """Needs a running loop. `adapters` hears what the server says of them."""
        self.texts: TextFrames | None = None
        """Hears of engines and texts."""
        self._socket_path = socket_path
        self._listener = listener
        self._regions = regions
        self._adapters = adapters
        self._text_threads = text_threads(_TEXT_THREADS)
        self._tokens: Tokens | None = None
        """Of the last model with text."""
        self._batches = PendingBatches(self, regions, self)
        self._connection: LinkConnection | None = None
        self._version = 0
        """Of the frames that were last agreed on."""
        self._ended: asyncio.Future[str] | None = None
        """Of the connection: why it has ended."""
        self._orders: dict[int, asyncio.Future[model_frames.Answer]] = {}
        self._index_turns = asyncio.Semaphore(_MAX_INDEX_ORDERS)
        self._last_id = 0
        self._outputs: dict[str, Outputs] = {}
        """By version: the model's, and those that it replaced and that requests still need."""
        self._served: model_frames.ServedModel | None = None
        """What the server said of a model last."""
        self._is_new = False
        """Whether it has said so since a model became ready."""
        self._model: ReadyModel | None = None
        self._reason = "the model server has not been reached yet"
        self._stuck = False
        self._hung = False
        """Whether the server itself says that its pass hangs."""
        self._distrusted: str | None = None
        """Why this connection carries no new batch and ends behind those that are under way."""
        self._max_cost: int | None = None
        """What its memory holds, as the listener was told last."""
        self._failures = 0
        """Broken connections in a row; a ready model sets it back."""
        self._unanswered = 0
        """Connections in a row with a batch that had no answer in time; an answered one ends it."""
        self._distrusts = 0
        """Connections given up for what the server answered; an answered batch sets it back."""

    @property
    def status(self) -> LinkStatus:
        """Whether the model can be asked now."""
        # One unanswered batch may have been a pause that is over. After a second one a new
        # connection proves nothing: what answers it is not the pass that hangs.
        stuck = self._hung or self._stuck or self._unanswered >= _MAX_UNANSWERED
        version = 0 if self._connection is None else self._version
        return LinkStatus(model=self._model, reason=self._reason, stuck=stuck, link_version=version)

    async def follow(self) -> None:
        """Keep connected for ever, with growing pauses while that fails."""
        while True:
            longest = _LONGEST_PAUSE
            try:
                reason = await self._connected()
            except RefusedLink as error:
                reason = str(error)
            except AbsentServer:
                self._begins_anew()
                longest, reason = _LONGEST_ABSENCE, _UNREACHABLE
            except OSError as error:
                logger.debug("link: %s", type(error).__name__)
                reason = _UNREACHABLE
            except Exception as bug:
                # Without this loop no model would ever be ready again.
                logger.error("link", exc_info=bug)
                reason = f"error in the sidecar: {bug!r}"
            self._lose(reason)
            # The exponent is bounded: days of failures must not overflow a float.
            attempts = min(max(self._failures, self._distrusts), _MAX_DOUBLINGS)
            self._failures += 1
            await asyncio.sleep(min(longest, _FIRST_PAUSE * 2**attempts))

    def infer(self, request: BatchRequest, seconds: float) -> Awaitable[BatchReply]:
        """Send a batch now; its reply within so many seconds. Raises `Unserved`, here or there."""
        outputs = self._outputs.get(request.version or "")
        if outputs is None:
            raise Busy(f"version {request.version} of the model is not served any more")
        if self._connection is None or not self._connection.is_open or self._distrusted:
            raise Busy(_UNREACHABLE)  # nothing was sent, so nothing was in work
        return self._batches.send(request, outputs, seconds)

    async def index(self, body: bytes = b"") -> model_frames.Answer:
        """The versions with their states, as the server's document; raises `Unserved`.

        `body`: JSON as its caller sent it.
        """
        try:
            async with asyncio.timeout(_INDEX_SECONDS), self._index_turns:
                return await self._ordered(model_frames.Order.INDEX, body)
        except TimeoutError as error:
            raise Unserved("the model server does not answer", status=504) from error

    async def load(self, body: bytes) -> model_frames.Answer:
        """Serve what the source holds now, which takes minutes; raises `Unserved`."""
        return await self._ordered(model_frames.Order.LOAD, body)

    async def unload(self, body: bytes) -> model_frames.Answer:
        """Give the memory back; raises `Unserved`."""
        return await self._ordered(model_frames.Order.UNLOAD, body)

    def watch(self, closely: bool) -> None:
        """See `Link`: the connection ends with the server, so there is nothing to do."""

    async def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.abort()
        self._text_threads.close()

    def next_id(self) -> int:
        """See `FrameChannel`."""
        self._last_id += 1
        return self._last_id

    def send(self, kind: Kind, frame_id: int, parts: Sequence[Buffer] = (b"",)) -> None:
        """See `FrameChannel`."""
        if self._connection is not None:
            self._connection.send(kind, frame_id, parts)

    def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
        """From the connection: one frame."""
        try:
            match kind:
                case Kind.REPLY:
                    self._batches.replied(frame_id, content)
                case Kind.FAILED:
                    self._batches.failed(frame_id, content)
                case Kind.STEP | Kind.REFUSED | Kind.ENGINE | Kind.ENGINE_ENDED:
                    if self.texts is not None:
                        self.texts.frame(kind, frame_id, content)
                case Kind.STATE:
                    self._hear_state(model_frames.read_state(content))
                case Kind.MODEL:
                    self._served, self._is_new = model_frames.read_model(content), True
                case Kind.PROFILE:
                    self._hear_profile(content)
                case Kind.ADAPTERS:
                    adapters = model_frames.read_adapters(content)
                    self._adapters.told(adapters.states, adapters.labels)
                case Kind.ANSWER:
                    order = self._orders.pop(frame_id, None)
                    if order is not None and not order.done():
                        order.set_result(model_frames.read_answer(content))
        except InvalidInput as error:
            self.hang_up(str(error))
        except Exception as bug:
            # What a server says must not end the process that stands in front of it.
            logger.error("a frame of the model server", exc_info=bug)
            self.hang_up(f"error in the sidecar: {bug!r}")

    def disconnected(self, reason: str) -> None:
        """From the connection: it has ended."""
        self._connection, self._served, self._hung = None, None, False
        self._regions.retire()
        garbled = reason.startswith(UNREADABLE)
        if garbled:
            logger.error("link: %s", reason)
            self._distrusts += 1
            reason = NONSENSE
        self._batches.lost(garbled=garbled)
        orders, self._orders = self._orders, {}
        for order in orders.values():
            if not order.done():
                order.set_exception(_gone())
        if self.texts is not None:
            self.texts.disconnected()
        self._adapters.lost()
        reason, self._distrusted = self._distrusted or reason, None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(reason)

    def batch_answered(self, version: str | None, max_cost: int | None) -> None:
        """From the batches: that version answered one, and what its memory holds."""
        self._distrusts = self._unanswered = 0
        self._stuck = False
        served = self._model and self._model.description.version
        if served == version and max_cost != self._max_cost:
            self._max_cost = max_cost
            self._listener.memory_bound(MemoryCap(cost=max_cost))

    def batch_unanswered(self) -> None:
        """From the batches: there was no answer in time."""
        self._stuck = True
        # Those behind the first on a connection may have met the same pause.
        self._unanswered += self._distrusted is None

    def distrust(self, reason: str) -> None:
        """From the batches: the model is not ready until a new connection says so."""
        if self._distrusted is None and self._connection is not None:
            self._distrusts += 1
            self._distrusted = reason
            self._lose(reason)

    def hang_up(self, reason: str) -> None:
        """End the connection at once, with what is under way."""
        self.distrust(reason)
        if self._connection is not None:
            self._connection.abort(reason)

    async def _connected(self) -> str:
        """Connect, and return when the connection has ended, with the reason."""
        self._ended = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(_HELLO_SECONDS):
            self._version = await connect(self._socket_path, self._opened, self._regions)
        return await self._ended or "the model server closed the connection"

    def _opened(self) -> LinkConnection:
        self._connection = LinkConnection(self, TO_SIDECAR)
        return self._connection

    def _hear_state(self, event: model_frames.State) -> None:
        self._hung = event.state is ModelState.HUNG
        if self._distrusted is not None:
            return
        if event.state is ModelState.READY:
            if self._model is None or self._is_new:
                self._is_ready()
            return
        coming = event.state in (ModelState.LOADING, ModelState.WARMING)
        if coming:
            self._begins_anew()
        detail = f": {event.detail}" if event.detail else ""
        self._lose(
            f"the model is {event.state}{detail}", logging.INFO if coming else logging.WARNING
        )

    def _is_ready(self) -> None:
        if self._served is None:
            raise InvalidInput("state", "says that a model is ready which was not described")
        model, self._is_new = self._ready_model(self._served), False
        version = model.description.version
        self._failures = 0
        replaced, self._model = self._model, model
        # After a loss the versions are those of another process, perhaps.
        others = {} if replaced is None else self._outputs
        outputs = [(spec.name, spec.datatype) for spec in model.description.outputs]
        self._outputs = {**others, version: outputs}
        self._max_cost = model.profile.max_cost if model.profile else None
        self._reason = ""
        self._stuck = False
        self._listener.model_ready(model)
        if replaced is not None and replaced.description.version != version:
            gone = replaced.description.version
            logger.info("version %s takes the place of %s", version, gone)
            replaced.users.replaced(lambda: self._release(gone))

    def _hear_profile(self, content: memoryview) -> None:
        profile = model_frames.read_profile(content)
        if self._served is not None and not self._is_new:
            self._served = replace(self._served, profile=profile)
        if self._model is not None:
            self._model = replace(self._model, profile=profile)
            self._max_cost = profile.max_cost
            self._listener.profile_measured(self._model)

    def _ready_model(self, served: model_frames.ServedModel) -> ReadyModel:
        """The model that is served; raises `InvalidInput` for a tokenizer that cannot be read."""
        description, tokenizer = served.description, bytes(served.tokenizer)
        tokens, text = None, description.text
        if text is not None:
            # Most versions have the tokenizer of the one before, and to read a large one stops the
            # loop for a second, in which others are served.
            if self._tokens is None or not self._tokens.are_of(tokenizer, text):
                self._tokens = Tokens(tokenizer, text, self._text_threads)
            tokens = self._tokens
        return ReadyModel(
            description=description,
            profile=served.profile,
            tokens=tokens,
            generation=served.generation,
            tokenizer_json=b"" if served.generation is None else tokenizer,
            depth=_DEPTH,
            rows_pad=not description.equal_lengths,
        )

    def _release(self, version: str) -> None:
        """Let the server end a version that it has replaced and that no request needs."""
        if self._model is not None and self._model.description.version == version:
            return  # it has come back meanwhile
        self._outputs.pop(version, None)
        self.send(Kind.RELEASE, 0, [version.encode()])

    async def _ordered(self, order: model_frames.Order, body: bytes) -> model_frames.Answer:
        """What comes of an order; raises `Unserved`."""
        if self._connection is None or not self._connection.is_open:
            raise _gone()
        number = self.next_id()
        answer: asyncio.Future[model_frames.Answer] = asyncio.get_running_loop().create_future()
        self._orders[number] = answer
        self.send(Kind.ORDER, number, model_frames.write_order(order, body))
        try:
            return await answer
        finally:
            self._orders.pop(number, None)

    def _begins_anew(self) -> None:
        """No batch is with a model that loads, nor with a process that is not there."""
        self._stuck = False
        self._unanswered = 0

    def _lose(self, reason: str, level: int = logging.WARNING) -> None:
        if reason != self._reason:
            logger.log(level, "model not ready: %s", reason)
        self._model = None
        self._reason = reason
        self._listener.model_lost(reason)


def _gone() -> Unserved:
    return Unserved(_WENT_AWAY, status=503, retry_after=1.0)
