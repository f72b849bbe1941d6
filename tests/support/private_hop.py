"""The private hop between sidecar and model server, as tests and benchmarks speak it.

The one module of them that knows the wire: sockets, paths, heads and frames. All others speak in
records of the contract, to a server (`connected`) or in place of one (`serving`).
"""

import asyncio
import struct
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import web

from batchedmodel_contract.generation.description import (
    GenerationDescription,
    generation_from_mapping,
)
from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Frame,
    FrameReader,
    Kind,
    Refusal,
    Refused,
    StepReport,
    Submit,
    Token,
    write_frame,
)
from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.batch_wire import (
    read_reply,
    to_request,
    write_reply,
    write_request,
)
from batchedmodel_contract.inference.description import ModelDescription, description_from_metadata
from batchedmodel_contract.inference.profile import Profile, profile_from_mapping
from batchedmodel_contract.inference.v2 import HEADER_LENGTH, read_body
from batchedmodel_contract.processes import server_api, shared_region
from batchedmodel_contract.processes.server_api import (
    ModelState,
    StateEvent,
    state_event_from_mapping,
)

_READ_BYTES: Final = 1 << 18
_FRAME_SECONDS: Final = 20.0
_MAX_BODY_BYTES: Final = 1 << 30


class HopError(Exception):
    """The server refuses what was asked of it, as a whole."""

    def __init__(self, status: int, message: str, *, at_work: bool = False) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.at_work = at_work
        """The device was lost during this batch."""


class Hop:
    """A caller of a model server; made by `connected`.

    Everything raises `HopError` for a refusal, and `ConnectionError` once the server has gone.
    """

    def __init__(self, socket: Path, model: str, session: aiohttp.ClientSession) -> None:
        self.socket: Final = socket
        self._model = model
        self._session = session
        self._opening = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._frames = FrameReader()
        self._unread: deque[Frame] = deque()
        self._last: StepReport | None = None

    async def states(self) -> AsyncIterator[StateEvent]:
        """The present state and all that follow, until the server or the connection ends."""
        try:
            async with self._session.get(server_api.events_path(self._model)) as answer:
                async for line in answer.content:
                    yield state_event_from_mapping(orjson.loads(line))
        except aiohttp.ClientError:
            return

    async def state(self) -> StateEvent:
        """The present state."""
        async for event in self.states():
            return event
        raise ConnectionError("the server went away")

    async def description(self, version: str | None = None) -> ModelDescription:
        """Of the version that serves, unless one is named."""
        return description_from_metadata(await self._get(server_api.model_path, version))

    async def profile(self, version: str | None = None) -> Profile:
        """As far as it has been measured."""
        return profile_from_mapping(await self._get(server_api.profile_path, version))

    async def tokenizer(self, version: str | None = None) -> bytes:
        """The content of the model's tokenizer.json; 404 where it has none."""
        return await self._ask("GET", server_api.tokenizer_path(self._model, version))

    async def generation(self, version: str | None = None) -> GenerationDescription:
        """What callers of its engine must know; 404 where it generates nothing."""
        return generation_from_mapping(await self._get(server_api.generation_path, version))

    async def labels(self, number: int) -> list[str]:
        """By which the adapter of this number classifies; 404 where it has none of its own."""
        content = await self._ask("GET", server_api.labels_path(self._model, number))
        labels: list[str] = orjson.loads(content)
        return labels

    async def index(self) -> list[dict[str, Any]]:
        """The versions that the server knows, each with its state and the reason."""
        rows: list[dict[str, Any]] = orjson.loads(await self._ask("POST", server_api.INDEX))
        return rows

    async def load(self) -> None:
        """Serve what the model's source holds now; returns once it is served."""
        await self._ask("POST", server_api.load_path(self._model))

    async def unload(self) -> None:
        """Give the model's memory back; returns once that is done."""
        await self._ask("POST", server_api.unload_path(self._model))

    async def release(self, version: str) -> None:
        """This version, which another one has replaced, is needed no longer."""
        await self._ask("POST", server_api.release_path(self._model, version))

    async def infer(self, batch: BatchRequest) -> BatchReply:
        """The reply to a batch; to cancel this is to wait for it no longer."""
        length, parts = write_request(batch)
        headers = {HEADER_LENGTH: str(length)}
        path = server_api.infer_path(self._model, batch.version)
        try:
            body = BytesIO(b"".join(parts))
            async with self._session.post(path, data=body, headers=headers) as answer:
                content = await answer.read()
                _raise_for(answer.status, content, answer.headers)
                return read_reply(content, answer.headers[HEADER_LENGTH])
        except aiohttp.ClientError as error:
            raise ConnectionError(f"the server went away: {error}") from error

    async def send(self, *frames: Submit | Cancel | Configure) -> None:
        """Texts to begin and to leave, and bounds of the engine's steps, in one piece."""
        await self.send_bytes(b"".join(map(write_frame, frames)))

    async def next(self) -> StepReport | Refused | None:
        """What the engine says next; None at the connection's end."""
        reader, _ = await self._texts()
        while not self._unread:
            try:
                data = await asyncio.wait_for(reader.read(_READ_BYTES), _FRAME_SECONDS)
            except ConnectionError:
                return None
            if not data:
                return None
            self._unread.extend(self._frames.feed(data))
        frame = self._unread.popleft()
        assert isinstance(frame, StepReport | Refused), frame
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
        """Bytes that may be no frame, where frames of texts go."""
        _, writer = await self._texts()
        writer.write(data)

    def stop_reading(self) -> None:
        """Leave unread what the engine says."""
        assert self._streams is not None
        self._streams[1].transport.pause_reading()  # type: ignore[attr-defined]

    def abort(self) -> None:
        """End the connection at once, as the death of its process does."""
        assert self._streams is not None
        self._streams[1].transport.abort()

    async def _texts(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with self._opening:
            if self._streams is None:
                path = server_api.engine_socket_path(str(self.socket))
                self._streams = await asyncio.open_unix_connection(path)
            return self._streams

    def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].close()

    async def _get(self, path: Callable[[str, str | None], str], version: str | None) -> Any:
        return orjson.loads(await self._ask("GET", path(self._model, version)))

    async def _ask(self, method: str, path: str) -> bytes:
        try:
            async with self._session.request(method, path) as answer:
                content = await answer.read()
                _raise_for(answer.status, content, answer.headers)
                return content
        except aiohttp.ClientError as error:
            raise ConnectionError(f"the server went away: {error}") from error


def _raise_for(status: int, content: bytes, headers: Mapping[str, str]) -> None:
    if status != 200:
        message = orjson.loads(content)["error"]
        raise HopError(status, message, at_work=server_api.AT_WORK in headers)


def _framed(kind: int, content: bytes) -> bytes:
    return struct.pack("<IB", len(content), kind) + content


_SUBMIT: Final = Submit(id=1, ids=array("i", [65, 66]), max_tokens=500)
UNWELCOME: Final[Mapping[str, bytes]] = {
    "no kind of frame": _framed(9, b""),
    "a request that is cut off": _framed(Kind.SUBMIT, b"\x00" * 8),
    "bounds that are none": _framed(Kind.CONFIGURE, b'{"max_sequences": 0}'),
    "a frame without end": struct.pack("<IB", 1 << 31, Kind.SUBMIT),
    "a report": _framed(Kind.STEP, b""),
    "an engine's own words": write_frame(Refused(id=1, why=Refusal.BUSY, message="")),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "two requests of the same name": 2 * write_frame(_SUBMIT),
}
"""Bytes behind which a server hangs up, for `send_bytes`."""


@asynccontextmanager
async def connected(socket: Path, model: str = "model") -> AsyncIterator[Hop]:
    """A caller of the server with this socket."""
    connector = aiohttp.UnixConnector(path=str(socket), limit=0)
    async with aiohttp.ClientSession("http://model", connector=connector) as session:
        hop = Hop(socket, model, session)
        try:
            yield hop
        finally:
            hop.close()


def reply_bytes(reply: BatchReply) -> bytes:
    """What travels of a reply."""
    return b"".join(write_reply(reply, orjson.dumps)[1])


def socket_files(socket: Path) -> list[Path]:
    """All files by which the server with this socket is reached."""
    return [
        socket,
        Path(server_api.engine_socket_path(str(socket))),
        Path(shared_region.socket_path(str(socket))),
    ]


def forbid_shared_memory(socket: Path) -> None:
    """Let no server that will have this socket share memory with its callers."""
    Path(shared_region.socket_path(str(socket))).mkdir()


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
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.splitlines()
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        content = await self._reader.readexactly(int(headers["content-length"]))
        _raise_for(int(first.split()[1]), content, headers)
        return read_reply(content, headers[HEADER_LENGTH.lower()])


@asynccontextmanager
async def batch_in_parts(
    socket: Path, batch: BatchRequest, model: str = "model"
) -> AsyncIterator[BatchInParts]:
    """A connection of its own for one batch; nothing is sent yet."""
    length, parts = write_request(batch)
    body = b"".join(parts)
    head = (
        f"POST {server_api.infer_path(model)} HTTP/1.1\r\nHost: m\r\n"
        f"{HEADER_LENGTH}: {length}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        yield BatchInParts(reader, writer, head.encode() + body)
    finally:
        writer.transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonsense:
    """An answer to a batch that contradicts itself or the wire."""

    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = False
    """The body is all that is sent."""


def nonsense(quoted: str) -> Mapping[str, Nonsense]:
    """What no server should answer, by what is wrong with it; most of it holds the quoted text."""
    text = quoted.encode()
    output = {"name": "x", "datatype": "UINT8", "shape": [1], "data": [1]}

    def outputs(**changed: Any) -> bytes:
        return orjson.dumps({"outputs": [output | changed]})

    return {
        "no JSON": Nonsense(body=text),
        "no outputs": Nonsense(),
        "bad length": Nonsense(body=b'{"outputs": [{"name": 3}]}', headers={HEADER_LENGTH: "9999"}),
        "no length": Nonsense(headers={HEADER_LENGTH: quoted}),
        "other type": Nonsense(body=outputs(datatype=quoted)),
        "other shape": Nonsense(body=outputs(shape=[quoted])),
        "no HTTP": Nonsense(body=b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % text, is_whole=True),
    }


class PretendModel:
    """What a test answers in place of a model server; read anew whenever it is asked for."""

    tokenizer: bytes | None = None

    def __init__(self, description: ModelDescription, profile: Profile) -> None:
        self.description = description
        self.profile = profile

    def describe(self) -> ModelDescription:
        """Of the version that serves."""
        return self.description

    async def states(self) -> AsyncIterator[StateEvent]:
        """Those that one caller is told, for whom it stays in the last."""
        yield StateEvent(
            state=ModelState.READY, detail="", version=self.description.version or None
        )

    def labels(self, number: int) -> Sequence[str] | None:
        """By which the adapter of this number classifies; None where it has none of its own."""
        return None

    async def answer(self, batch: BatchRequest) -> BatchReply | Nonsense:
        """The answer to a batch; raises `HopError` to refuse it. This one never answers."""
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def serving(socket: Path, model: PretendModel) -> AsyncIterator[None]:
    """Let this model be served at the socket meanwhile, whatever its name."""
    served, name = _Served(model), "{name}"
    application = web.Application(client_max_size=_MAX_BODY_BYTES)
    router = application.router
    router.add_get(server_api.events_path(name), served.events)
    router.add_get(server_api.labels_path(name, "{number}"), served.labels)
    for version in (None, "{version}"):
        router.add_get(server_api.model_path(name, version), served.metadata)
        router.add_get(server_api.profile_path(name, version), served.profile)
        router.add_get(server_api.tokenizer_path(name, version), served.tokenizer)
        router.add_post(server_api.infer_path(name, version), served.infer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(socket)).start()
        yield
    finally:
        await runner.cleanup()


class _Served:
    """The handlers of a pretended model."""

    def __init__(self, model: PretendModel) -> None:
        self._model = model

    async def events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for event in self._model.states():
            await response.write(orjson.dumps(event.to_mapping()) + b"\n")
        await asyncio.Event().wait()
        return response

    async def metadata(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._model.describe().to_metadata())

    async def profile(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._model.profile.to_mapping())

    async def tokenizer(self, request: web.Request) -> web.StreamResponse:
        content = self._model.tokenizer
        return web.Response(status=404) if content is None else web.Response(body=content)

    async def labels(self, request: web.Request) -> web.StreamResponse:
        labels = self._model.labels(int(request.match_info["number"]))
        return web.Response(status=404) if labels is None else web.json_response(list(labels))

    async def infer(self, request: web.Request) -> web.StreamResponse:
        length = request.headers[HEADER_LENGTH]
        head, tensors = read_body(await request.read(), length, "inputs", orjson.loads)
        batch = replace(to_request(head, tensors), version=request.match_info.get("version"))
        try:
            answer = await self._model.answer(batch)
        except HopError as refusal:
            return web.json_response({"error": refusal.message}, status=refusal.status)
        if isinstance(answer, Nonsense):
            return self._nonsense(request, answer)
        head_length, parts = write_reply(answer)
        return web.Response(body=b"".join(parts), headers={HEADER_LENGTH: str(head_length)})

    def _nonsense(self, request: web.Request, answer: Nonsense) -> web.Response:
        if answer.is_whole:
            assert request.transport is not None
            request.transport.write(answer.body)
            request.transport.close()
        return web.Response(body=answer.body, headers=answer.headers)
