"""The private hop between sidecar and model server, as tests and benchmarks speak it.

The one module of them that knows the wire: the socket, its hello and its frames. All others speak
in records of the contract, to a server (`connected`) or in place of one (`serving`).
"""

import asyncio
import socket as sockets
import struct
from array import array
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import orjson

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Refusal,
    Refused,
    StepReport,
    Submit,
    Token,
    read_refused,
    read_step,
    write_cancel,
    write_configure,
    write_refused,
    write_submit,
)
from batchedmodel_contract.inference.batch import BatchFailure, BatchReply, BatchRequest, Ragged
from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.inference.tensors import Buffer, Datatype
from batchedmodel_contract.link.batches import (
    read_batch,
    read_failure,
    read_reply,
    write_batch,
    write_failure,
    write_reply,
)
from batchedmodel_contract.link.connection import FrameReader, FrameWriter, LinkConnection
from batchedmodel_contract.link.hello import HELLO_BYTES, read_hello, write_hello
from batchedmodel_contract.link.kinds import TO_SIDECAR, Kind
from batchedmodel_contract.link.model_frames import (
    Order,
    ServedModel,
    State,
    read_adapters,
    read_answer,
    read_model,
    read_profile,
    read_state,
    write_engine,
    write_model,
    write_order,
    write_state,
)
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.link.region import mapped
from batchedmodel_contract.lora import AdapterState
from support.link_server import LinkPeer, LinkServer

_SECONDS: Final = 20.0
_FIRST_ID: Final = 1 << 32
"""Of batches and orders: tests name their texts by small numbers."""


class HopError(Exception):
    """The server refuses what was asked of it, as a whole."""

    def __init__(self, status: int, message: str, *, at_work: bool = False) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.at_work = at_work
        """The device was lost during this batch."""


class _Calls:
    """One connection and all that came over it."""

    def __init__(self) -> None:
        self.link: Final = LinkConnection(self, TO_SIDECAR)
        self.ended = False
        self.states: list[State] = []
        self.adapters: list[tuple[AdapterState, ...]] = []
        self.labels: dict[int, tuple[str, ...]] = {}
        self.models: dict[str, ServedModel] = {}
        self.profile: Profile | None = None
        self.engines: list[int] = []
        """Those that take texts, the newest last."""
        self.texts: deque[StepReport | Refused | None] = deque()
        """None: an engine has ended."""
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
        """See `FrameHandler`."""
        match kind:
            case Kind.STATE:
                self.states.append(read_state(content))
            case Kind.MODEL:
                model = read_model(content)
                self.models[model.description.version] = model
                self.profile = model.profile
            case Kind.PROFILE:
                self.profile = read_profile(content)
            case Kind.ADAPTERS:
                adapters = read_adapters(content)
                self.labels |= adapters.labels
                self.adapters.append(adapters.states)
            case Kind.ENGINE:
                self.engines.append(frame_id)
            case Kind.ENGINE_ENDED:
                self.engines.remove(frame_id)
                self.texts.append(None)
            case Kind.STEP:
                self.texts.append(read_step(content))
            case Kind.REFUSED:
                self.texts.append(read_refused(frame_id, content))
            case Kind.REPLY:
                self._settle(frame_id, read_reply(content))
            case Kind.FAILED:
                self._settle(frame_id, read_failure(content))
            case Kind.ANSWER:
                self._settle(frame_id, read_answer(content))
        self._change()

    def disconnected(self, reason: str) -> None:
        """See `FrameHandler`."""
        self.ended = True
        self.texts.append(None)
        for one in self.waiting.values():
            if not one.done():
                one.set_exception(ConnectionError(f"the server went away: {reason}"))
        self._change()

    def change(self) -> asyncio.Future[None]:
        """Done once anything more has come."""
        return asyncio.shield(self._changed)

    def _change(self) -> None:
        before, self._changed = self._changed, asyncio.get_running_loop().create_future()
        before.set_result(None)

    def _settle(self, frame_id: int, answer: object) -> None:
        waiting = self.waiting.get(frame_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


class Hop:
    """A caller of a model server, over one connection; made by `connected`.

    Everything raises `HopError` for a refusal, and `ConnectionError` once the server has gone.
    """

    def __init__(self, socket: Path) -> None:
        self.socket: Final = socket
        self._opening = asyncio.Lock()
        self._calls: _Calls | None = None
        self._ids = count(_FIRST_ID)
        self._last: StepReport | None = None

    async def states(self) -> AsyncIterator[State]:
        """The present state and all that follow, until the server or the connection ends."""
        try:
            calls = await self._connected()
            await self.state()
        except ConnectionError:
            return
        at = len(calls.states) - 1
        while True:
            while at < len(calls.states):
                yield calls.states[at]
                at += 1
            if calls.ended:
                return
            await calls.change()

    async def state(self) -> State:
        """The present state."""
        calls = await self._connected()
        while not calls.states:
            if calls.ended:
                raise ConnectionError("the server went away")
            await calls.change()
        return calls.states[-1]

    async def adapters(self) -> AsyncIterator[tuple[AdapterState, ...]]:
        """The present states of all adapters and all that follow, until the connection ends."""
        calls = await self._connected()
        at = max(0, len(calls.adapters) - 1)
        while True:
            while at < len(calls.adapters):
                yield calls.adapters[at]
                at += 1
            if calls.ended:
                return
            await calls.change()

    async def description(self) -> ModelDescription:
        """Of the version that serves."""
        return (await self._model()).description

    async def profile(self) -> Profile:
        """Of the version that serves, as far as it has been measured."""
        await self._model()
        profile = (await self._connected()).profile
        assert profile is not None, "a model comes with one"
        return profile

    async def whole_profile(self) -> Profile:
        """Of the version that serves, once nothing is left to measure."""
        while (profile := await self.profile()).partial:
            await (await self._connected()).change()
        return profile

    async def tokenizer(self) -> bytes:
        """The content of the model's tokenizer.json; empty where it has none."""
        return bytes((await self._model()).tokenizer)

    async def generation(self) -> GenerationDescription | None:
        """What callers of its engine must know; None where it generates nothing."""
        return (await self._model()).generation

    async def labels(self, number: int) -> tuple[str, ...] | None:
        """By which the adapter of this number classifies; None where it has none of its own."""
        return (await self._connected()).labels.get(number)

    async def index(self, body: bytes = b"") -> list[dict[str, Any]]:
        """The versions that the server knows, each with its state and the reason."""
        rows: list[dict[str, Any]] = orjson.loads(await self._order(Order.INDEX, body))
        return rows

    async def load(self, body: bytes = b"") -> None:
        """Serve what the model's source holds now; returns once it is served."""
        await self._order(Order.LOAD, body)

    async def unload(self, body: bytes = b"") -> None:
        """Give the model's memory back; returns once that is done."""
        await self._order(Order.UNLOAD, body)

    async def release(self, version: str) -> None:
        """This version, which another one has replaced, is needed no longer."""
        (await self._connected()).link.send(Kind.RELEASE, 0, [write_engine(version)])

    async def infer(self, batch: BatchRequest) -> BatchReply:
        """The reply to a batch; to cancel this is to wait for it no longer."""
        frame_id = next(self._ids)
        try:
            answer = await self._answer(Kind.BATCH, frame_id, write_batch(batch))
        except asyncio.CancelledError:
            if self._calls is not None:
                self._calls.link.send(Kind.CANCEL, frame_id, [write_cancel(0)])
            raise
        if isinstance(answer, BatchFailure):
            raise HopError(answer.status, answer.message, at_work=answer.at_work)
        assert isinstance(answer, BatchReply)
        return answer

    async def send(self, *frames: Submit | Cancel | Configure, engine: int = 0) -> None:
        """Texts to begin and to leave, and bounds of the engine's steps.

        They go to the engine of this number, or to the newest.
        """
        calls = await self._connected()
        while not calls.engines:
            assert not calls.ended
            await asyncio.wait_for(calls.change(), _SECONDS)
        number = engine or calls.engines[-1]
        for frame in frames:
            match frame:
                case Submit():
                    calls.link.send(Kind.SUBMIT, frame.id, write_submit(frame, number))
                case Cancel():
                    cancel = write_cancel(number, frame.choice)
                    calls.link.send(Kind.CANCEL, frame.id, [cancel])
                case Configure():
                    calls.link.send(Kind.CONFIGURE, number, [write_configure(frame)])

    async def engines(self) -> list[int]:
        """The numbers of those that take texts."""
        await self.state()
        return (await self._connected()).engines

    async def next(self) -> StepReport | Refused | None:
        """What an engine says next; None at its end, and at the connection's."""
        calls = self._calls or await self._connected()
        while not calls.texts:
            if calls.ended:
                return None
            await asyncio.wait_for(calls.change(), _SECONDS)
        frame = calls.texts.popleft()
        if isinstance(frame, StepReport):
            self._last = frame
        return frame

    async def report(self) -> StepReport:
        """The engine's next report; what was refused by then is an error."""
        frame = await self.next()
        assert isinstance(frame, StepReport), frame
        return frame

    async def refused(self) -> Refused:
        """The next refusal of a text, whatever reports come first."""
        while not isinstance(frame := await self.next(), Refused):
            assert frame is not None
        return frame

    async def texts(self, count: int) -> dict[tuple[int, int], list[Token]]:
        """The tokens by request and choice, until so many texts have ended."""
        tokens: dict[tuple[int, int], list[Token]] = {}
        while count:
            for token in (await self.report()).tokens:
                tokens.setdefault((token.id, token.choice), []).append(token)
                count -= bool(token.finish)
        return tokens

    async def idle(self) -> StepReport:
        """The last report of an engine once it has nothing."""
        while self._last is None or self._last.running or self._last.waiting:
            await self.report()
        return self._last

    async def send_bytes(self, data: bytes) -> None:
        """Bytes that may be no frame."""
        (await self._connected()).link._transport.write(data)

    def stop_reading(self) -> None:
        """Leave unread what the server says."""
        assert self._calls is not None
        self._calls.link._transport.pause_reading()

    def abort(self) -> None:
        """End the connection at once, as the death of its process does."""
        if self._calls is not None:
            self._calls.link.abort()

    async def _model(self) -> ServedModel:
        state = await self.state()
        model = (await self._connected()).models.get(state.version or "")
        if model is None:
            raise HopError(503, f"model is {state.state}: {state.detail}")
        return model

    async def _order(self, order: Order, body: bytes) -> bytes:
        status, content = await self._answer(Kind.ORDER, next(self._ids), write_order(order, body))
        if status != 200:
            raise HopError(status, orjson.loads(content)["error"])
        return bytes(content)

    async def _answer(self, kind: Kind, frame_id: int, parts: Sequence[Buffer]) -> Any:
        calls = await self._connected()
        if calls.ended:
            raise ConnectionError("the server went away")
        waiting = calls.waiting[frame_id] = asyncio.get_running_loop().create_future()
        calls.link.send(kind, frame_id, parts)
        try:
            return await waiting
        finally:
            del calls.waiting[frame_id]

    async def _connected(self) -> _Calls:
        async with self._opening:
            if self._calls is None or self._calls.ended:
                calls, loop = _Calls(), asyncio.get_running_loop()
                plug = await _greeted(self.socket)
                await loop.connect_accepted_socket(lambda: calls.link, plug)
                self._calls = calls
            return self._calls


def _framed(kind: int, content: bytes, frame_id: int = 1) -> bytes:
    frame = FrameWriter().add(kind, frame_id, [content])
    assert frame is not None, "it fits in one piece"
    return b"".join(frame)


_SUBMIT: Final = Submit(id=1, ids=array("i", [65, 66]), max_tokens=500)
_LONG: Final = struct.pack("<IB3xQQ", 8, Kind.SUBMIT, 1 << 40, 1)
UNWELCOME: Final[Mapping[str, bytes]] = {
    "no kind of frame": _framed(9, b""),
    "a request that is cut off": _framed(Kind.SUBMIT, b"\x00" * 8),
    "a batch's end that is cut off": _framed(Kind.CANCEL, b"\x00" * 7),
    "an order that is none": _framed(Kind.ORDER, b"\x06\x00\x00\x00format"),
    "bounds that are none": _framed(Kind.CONFIGURE, b'{"max_sequences": 0}'),
    "a frame without end": _LONG + bytes(8),
    "a report": _framed(Kind.STEP, b""),
    "an engine's own words": _framed(
        Kind.REFUSED, b"".join(write_refused(Refused(id=1, why=Refusal.BUSY, message="")))
    ),
    "another protocol": b"GET / HTTP/1.1\r\nHost: model\r\n\r\n",
    "two requests of the same name": 2 * _framed(Kind.SUBMIT, b"".join(write_submit(_SUBMIT, 1))),
}
"""Bytes behind which a server hangs up, for `send_bytes`."""


async def _greeted(socket: Path) -> sockets.socket:
    """A connection behind the hello of both ends; raises `ConnectionError`."""
    loop, plug = asyncio.get_running_loop(), sockets.socket(sockets.AF_UNIX)
    plug.setblocking(False)
    try:
        await loop.sock_connect(plug, str(socket))
        await loop.sock_sendall(plug, write_hello())
        answer = await asyncio.wait_for(loop.sock_recv(plug, HELLO_BYTES), _SECONDS)
    except OSError as error:
        plug.close()
        raise ConnectionError(f"no server is there: {error}") from error
    if len(answer) < HELLO_BYTES or read_hello(answer).max_version == 0:
        plug.close()
        raise ConnectionError("the server hangs up")
    return plug


@asynccontextmanager
async def connected(socket: Path) -> AsyncIterator[Hop]:
    """A caller of the server with this socket, who connects once it asks for anything."""
    hop = Hop(socket)
    try:
        yield hop
    finally:
        hop.abort()
        await asyncio.sleep(0)


def reply_bytes(reply: BatchReply) -> bytes:
    """What travels of a reply."""
    return b"".join(write_reply(reply))


class BatchInParts:
    """One batch whose bytes are sent when the test says; made by `batch_in_parts`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._left = wire

    def send(self, *, but_bytes: int = 0) -> None:
        """What was not sent yet, but for so many bytes at the end."""
        end = len(self._left) - but_bytes
        self._writer.write(self._left[:end])
        self._left = self._left[end:]

    async def reply(self) -> BatchReply:
        """The answer; raises `HopError`, and `EOFError` where none came."""
        await self._reader.readexactly(HELLO_BYTES)
        frames = FrameReader(TO_SIDECAR)
        while True:
            buffer = frames.buffer()
            data = await self._reader.read(len(buffer))
            if not data:
                raise EOFError
            buffer[: len(data)] = data
            for kind, _, content in frames.received(len(data)):
                if kind == Kind.FAILED:
                    failed = read_failure(content)
                    raise HopError(failed.status, failed.message, at_work=failed.at_work)
                if kind == Kind.REPLY:
                    return read_reply(content)


@asynccontextmanager
async def batch_in_parts(socket: Path, batch: BatchRequest) -> AsyncIterator[BatchInParts]:
    """A connection of its own for one batch; nothing is sent yet, and no hello."""
    frame = FrameWriter().add(Kind.BATCH, 1, write_batch(batch))
    assert frame is not None, "it fits in one piece"
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        yield BatchInParts(reader, writer, write_hello() + b"".join(frame))
    finally:
        writer.transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonsense:
    """An answer to a batch that contradicts itself or the wire."""

    content: bytes = b""
    is_whole: bool = False
    """The content is all that is sent, and no frame around it."""


def nonsense(quoted: str) -> Mapping[str, Nonsense]:
    """What no server should answer, by what is wrong with it; most of it holds the quoted text."""
    text = quoted.encode()
    row = Ragged(quoted, Datatype.UINT8, ((1,),), (b"\x01",))
    reply = BatchReply(
        outputs=(row,),
        statuses=(200,),
        errors=("",),
        compute_seconds=0.0,
        queue_seconds=0.0,
        tokens=1,
        padded_tokens=1,
    )
    whole = b"".join(write_reply(reply))
    return {
        "no reply": Nonsense(content=text),
        "nothing": Nonsense(),
        "bad length": Nonsense(content=whole[:-1]),
        "too much": Nonsense(content=whole + text),
        "other type": Nonsense(content=whole.replace(text, b"\xff" * len(text))),
        "other output": Nonsense(content=whole),
        "no frames": Nonsense(content=b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % text, is_whole=True),
    }


class PretendModel:
    """What a test answers in place of a model server; read anew whenever it is asked for."""

    tokenizer: bytes = b""

    def __init__(self, description: ModelDescription, profile: Profile) -> None:
        self.description = description
        self.profile = profile

    def describe(self) -> ModelDescription:
        """Of the version that serves."""
        return self.description

    async def states(self) -> AsyncIterator[State]:
        """Those that one caller is sent, for whom it stays in the last."""
        yield State(ModelState.READY, "", self.description.version)

    async def answer(self, batch: BatchRequest) -> BatchReply | Nonsense:
        """The answer to a batch; raises `HopError` to refuse it. This one never answers."""
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def serving(socket: Path, model: PretendModel) -> AsyncIterator[None]:
    """Let this model be served at the socket meanwhile."""

    async def meet(peer: LinkPeer) -> None:
        await _serve(model, peer)

    async with LinkServer().serving(socket, meet):
        yield


async def _serve(model: PretendModel, peer: LinkPeer) -> None:
    """Answer the batches of one connection, until it ends."""
    rows = None
    if peer.descriptors:
        rows = memoryview(mapped(peer.descriptors[0], writable=False))
    told = asyncio.create_task(_tell(model, peer))
    answers: dict[int, asyncio.Task[None]] = {}
    ended = asyncio.create_task(peer.ended.wait())
    try:
        while not ended.done():
            coming = asyncio.create_task(peer.frames.get())
            await asyncio.wait((coming, ended), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                return
            kind, frame_id, content = coming.result()
            if kind == Kind.BATCH:
                batch = read_batch(content, rows)
                answers[frame_id] = asyncio.create_task(_answer(model, peer, frame_id, batch))
            elif kind == Kind.CANCEL and frame_id in answers:
                answers[frame_id].cancel()
    finally:
        for task in (told, ended, *answers.values()):
            task.cancel()


async def _tell(model: PretendModel, peer: LinkPeer) -> None:
    async for state in model.states():
        if state.state is ModelState.READY:
            served = ServedModel(
                description=model.describe(), profile=model.profile, tokenizer=model.tokenizer
            )
            peer.send(Kind.MODEL, 0, write_model(served))
        peer.send(Kind.STATE, 0, [write_state(state)])


async def _answer(model: PretendModel, peer: LinkPeer, frame_id: int, batch: BatchRequest) -> None:
    try:
        answer = await model.answer(batch)
    except HopError as refusal:
        failed = BatchFailure(status=refusal.status, message=refusal.message)
        peer.send(Kind.FAILED, frame_id, write_failure(failed))
    except asyncio.CancelledError:
        failed = BatchFailure(status=499, message="cancelled")
        peer.send(Kind.FAILED, frame_id, write_failure(failed))
        raise
    else:
        if isinstance(answer, BatchReply):
            peer.reply(frame_id, answer)
        elif answer.is_whole:
            peer.connection._transport.write(answer.content)
            peer.connection.close()
        else:
            peer.send(Kind.REPLY, frame_id, [answer.content])
