"""A server whose answer to a row depends on that row alone, in all protocols that may be behind.

It shows in its answers which values it was sent, so that a test sees whether a value was changed on
the way; it can be told to refuse, to run out of memory, to be busy, or to answer nonsense.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from aiohttp import web
from aiohttp.typedefs import Handler

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.chain import Chain, in_front_of
from support.json_numbers import by_value
from support.listening import Listener
from support.ports import unused_port

NAME = "m"
SHARING = BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=0.1)
"""Calls that are sent together share a batch."""

_ONE_ROW: Final[dict[ServerProtocol, tuple[str, dict[str, Any]]]] = {
    ServerProtocol.V1: (f"/v1/models/{NAME}:predict", {"instances": [1]}),
    ServerProtocol.V2: (
        f"/v2/models/{NAME}/infer",
        {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}]},
    ),
    ServerProtocol.OPENAI: ("/v1/embeddings", {"model": NAME, "input": "a"}),
}


_TWO_ROWS: Final[dict[str, Any]] = {
    "inputs": [{"name": "x", "datatype": "INT64", "shape": [2, 1], "data": [1, 2]}]
}
"""Of the same form, for a V2 server: only then its output is known to follow the rows."""


@dataclass
class RowServer:
    """Serves until the context is left."""

    port: int = 0
    rows: list[int] = field(default_factory=list)
    """How many rows each request had."""
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    """Seconds of each request."""
    holds: int | None = None
    """Rows that its memory holds."""
    failure: tuple[int, dict[str, str], str] | None = None
    """Status, headers and text of every answer."""
    failure_of: tuple[bytes, tuple[int, dict[str, str], str]] | None = None
    """What in a body makes it give such an answer."""
    breaks_off_at: bytes | None = None
    """What in a body makes it break the connection off."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of every answer that is none of these failures."""
    rows_off: int = 0
    seconds: float = 0.0
    binary: bool = False
    """Whether it names the binary extension of v2."""
    finishes: Callable[[web.Response], None] = lambda response: None
    """Changes how an answer is sent."""
    beside: Callable[[int], dict[str, Any]] = lambda rows: {}
    """What a v1 or OpenAI answer holds beside its rows, by their number."""
    outputs: Callable[[list[dict[str, Any]]], None] = lambda outputs: None
    """Changes the outputs of a v2 answer."""
    about: str | None = None
    """What it says in place of the model's metadata."""
    tls: ssl.SSLContext | None = None
    """What it shows of itself to callers; None: it speaks in the clear."""

    async def __aenter__(self) -> Self:
        application = web.Application(
            client_max_size=2**28, middlewares=[self._timed, _refusing_nonsense]
        )
        route = application.router
        route.add_get(f"/v1/models/{NAME}", self._json({"name": NAME, "ready": True}))
        route.add_get("/v1/models", self._json({"object": "list", "data": []}))
        route.add_post(f"/v1/models/{{name:{NAME}:(?:predict|explain)}}", self._v1)
        for path in ("/v1/embeddings", "/v1/score"):
            route.add_post(path, self._openai)
        route.add_get(f"/v2/models/{NAME}/ready", self._json({}))
        route.add_get(f"/v2/models/{NAME}", self._metadata)
        route.add_get("/v2", self._server)
        for name in (NAME, "other"):
            route.add_post(f"/v2/models/{name}/infer", self._v2)
        route.add_post(f"/v2/models/{NAME}/versions/{{version}}/infer", self._v2)
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        # It comes back to its port after a restart, so nobody may be given it meanwhile.
        self.port = self.port or unused_port()
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._listen()
        return self

    async def _listen(self) -> None:
        self._listener = await Listener.start(self._runner, self.port, tls=self.tls)

    async def __aexit__(self, *_: object) -> None:
        await self._listener.stop()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def begins_anew(self, chain: Chain, protocol: ServerProtocol, **changed: Any) -> None:
        """Be as at first, but for what is named, for a sidecar that knows nothing bad of it.

        For tests that share a chain. Unless it is and was as at first the server restarts, which
        makes the sidecar forget; no call may be on its way then.
        """
        usual = {
            one.name: one.default if one.default_factory is MISSING else one.default_factory()
            for one in fields(self)
            if one.name not in ("port", "tls")
        }
        wanted, seen = usual | changed, ("rows", "requests", "bodies", "took")
        was = {name: getattr(self, name) for name in usual if name not in seen}
        if wanted == usual == usual | was:
            for name in seen:
                setattr(self, name, usual[name])
        else:
            await self._restart(chain, protocol, wanted)

    async def _restart(
        self, chain: Chain, protocol: ServerProtocol, wanted: dict[str, Any]
    ) -> None:
        self._goes_on.clear()
        self.rows.clear()
        async with asyncio.TaskGroup() as group:
            # Whose call breaks off makes the sidecar look at once; otherwise that takes seconds.
            call = group.create_task(self.is_seen_by(chain, protocol))
            while not self.rows:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            seen = len(chain.sidecar.lines)
            await self._listener.stop()
            assert self._runner.server is not None
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            await chain.sidecar.wait_for("model not ready: ", after=seen)
            for name, value in wanted.items():
                setattr(self, name, value)
            self._goes_on.set()
            await self._listen()
            await chain.ready(after=seen)
        if call.result() != 200:  # of a sidecar that sends nothing twice
            await self.is_seen_by(chain, protocol)

    async def is_seen_by(self, chain: Chain, protocol: ServerProtocol) -> int:
        """Answer one row by itself, and forget it; the status that it was answered with."""
        path, document = _ONE_ROW[protocol]
        async with chain.session.post(chain.url(path), json=document) as response:
            await response.read()
        if protocol is ServerProtocol.V2 and self.outputs is RowServer.outputs:
            async with chain.session.post(chain.url(path), json=_TWO_ROWS) as another:
                await another.read()
        for seen in (self.rows, self.requests, self.bodies, self.took):
            seen.clear()
        return response.status

    @web.middleware
    async def _timed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.monotonic()
        try:
            return await handler(request)
        finally:
            self.took.append(time.monotonic() - began)

    def _json(self, document: object) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response(document)

        return answer

    async def _metadata(self, request: web.Request) -> web.Response:
        if self.about is not None:
            return web.Response(text=self.about)
        tensor = {"datatype": "FP32", "shape": [-1, -1]}
        inputs, outputs = [{"name": "x", **tensor}], [{"name": "y", **tensor}]
        document = {"name": NAME, "platform": "theirs", "inputs": inputs, "outputs": outputs}
        return web.json_response(document)

    async def _server(self, request: web.Request) -> web.Response:
        extensions = ["binary_tensor_data"] if self.binary else []
        return web.json_response({"name": "theirs", "extensions": extensions})

    async def _refusal(self, request: web.Request, rows: int) -> web.Response | None:
        self.rows.append(rows)
        self.requests.append(request)
        body = await request.read()
        self.bodies.append(body)
        await self._goes_on.wait()
        await asyncio.sleep(self.seconds)
        if self.breaks_off_at is not None and self.breaks_off_at in body:
            assert request.transport is not None
            request.transport.abort()
        failure = self.failure
        if self.failure_of is not None and self.failure_of[0] in body:
            failure = self.failure_of[1]
        if failure is not None:
            status, headers, text = failure
            return web.Response(status=status, headers=headers, text=text)
        if self.holds is not None and rows > self.holds:
            return web.json_response({"error": "CUDA out of memory"}, status=500)
        if b"poison" in body:
            poisoned = {"error": "this is poison", "code": 7}
            return web.json_response(poisoned, status=422, headers={"x-about": "poison"})
        return None

    async def _v1(self, request: web.Request) -> web.Response:
        body = await request.text()
        document = by_value(body)  # shows which numbers arrived
        instances = document.pop("instances", None)
        if instances is None:
            instances = document.pop("inputs")
        refusal = await self._refusal(request, len(instances))
        if refusal is not None:
            return refusal
        predictions = [{"got": one, "with": document} for one in instances]
        predictions = predictions[: len(predictions) + self.rows_off]
        answer = {"predictions": predictions, **self.beside(len(instances))}
        return self._finished(web.json_response(answer, headers=self.headers))

    async def _openai(self, request: web.Request) -> web.Response:
        document = await request.json()
        given = document.pop("input")
        inputs = _inputs(given)
        refusal = await self._refusal(request, len(inputs))
        if refusal is not None:
            return refusal
        data = [
            {"object": "embedding", "index": index, "embedding": _vector(one)}
            for index, one in enumerate(inputs)
        ]
        tokens = sum(len(one) for one in inputs)
        answer = {
            "object": "list",
            # As some servers do: in an order of their own.
            "data": data[::-1],
            "model": document.get("model"),
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            **self.beside(len(inputs)),
        }
        return self._finished(web.json_response(answer, headers=self.headers))

    async def _v2(self, request: web.Request) -> web.Response:
        body = await request.read()
        length = request.headers.get("Inference-Header-Content-Length")
        head = json.loads(body[: int(length)] if length else body)
        tensor = head["inputs"][0]
        shape = tensor["shape"]
        refusal = await self._refusal(request, shape[0])
        if refusal is not None:
            return refusal
        output: dict[str, Any] = {
            "name": "y",
            "datatype": tensor["datatype"],
            "shape": [shape[0] + self.rows_off, *shape[1:]],
            "parameters": {"unit": "m"},
        }
        data = b""
        if length:
            data = body[int(length) :]
            output["parameters"]["binary_data_size"] = len(data)
        else:
            output["data"] = tensor["data"]
        outputs = [output]
        self.outputs(outputs)
        answer = {
            "model_name": NAME,
            "model_version": request.match_info.get("version", "3"),
            "parameters": head.get("parameters", {}),
            "outputs": outputs,
        }
        text = json.dumps(answer).encode()
        headers = dict(self.headers)
        if length:
            headers["Inference-Header-Content-Length"] = str(len(text))
        return self._finished(web.Response(body=text + data, headers=headers))

    def _finished(self, response: web.Response) -> web.Response:
        self.finishes(response)
        return response


class DataHandler(NamedTuple):
    """A sidecar and the only server that it is in front of; several tests share them."""

    chain: Chain
    server: RowServer
    protocol: ServerProtocol

    async def anew(self, **changed: Any) -> Chain:
        """The sidecar, once the server began anew."""
        await self.server.begins_anew(self.chain, self.protocol, **changed)
        return self.chain


Fronts = dict[str, DataHandler]


@asynccontextmanager
async def fronting(
    folder: Path, protocol: ServerProtocol, **sidecar_settings: Any
) -> AsyncIterator[DataHandler]:
    """Both of them, ready."""
    async with (
        RowServer() as server,
        in_front(server, folder, protocol, **sidecar_settings) as chain,
    ):
        yield DataHandler(chain, server, protocol)


@asynccontextmanager
async def in_front(
    server: RowServer | str,
    folder: Path,
    protocol: ServerProtocol,
    settings: BatchSettings = SHARING,
    **sidecar_settings: Any,
) -> AsyncIterator[Chain]:
    """A sidecar alone, in front of the server, which may be an address; both are ready.

    Of a v2 server that is well it has seen already that its output follows the rows.
    """
    async with in_front_of(
        server if isinstance(server, str) else server.url,
        folder,
        upstream_protocol=protocol,
        settings=settings,
        **sidecar_settings,
    ) as chain:
        await chain.ready()
        if isinstance(server, RowServer) and protocol is ServerProtocol.V2:
            await server.is_seen_by(chain, protocol)
        yield chain


@web.middleware
async def _refusing_nonsense(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return web.json_response({"error": "not understood"}, status=400)


def _inputs(given: Any) -> list[Any]:
    if not isinstance(given, list) or all(isinstance(one, int) for one in given):
        return [given]
    return given


def _vector(given: Any) -> list[float]:
    """Of the input alone, in numbers whose text is long."""
    seed = sum(map(ord, given)) if isinstance(given, str) else sum(given)
    return [seed / 7, -seed / 1e7, float(seed)]
