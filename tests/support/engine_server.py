"""The server of a simulated LLM engine: the OpenAI API and the metrics as vLLM has them.

Tests run it within their own process; benchmarks as one of its own:

    python -m support.engine_server --port 0 --model m

All sequences' events of a step are written in one go, by no task of their own. A request says by
`engine_script` how long its output is and what goes wrong with it. `GET /simulate` tells what was
done so far, `GET /simulate/times` when, and `POST /simulate` changes what is usual.
"""

import asyncio
import gc
import signal
import time
from argparse import ArgumentParser
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Self

import orjson
import uvloop
from aiohttp import web

from support import engine_events as events
from support import engine_pages, engine_script
from support.engine import Engine, EngineSettings, tokens_of
from support.engine_exchange import Exchange, write_whole
from support.engine_pages import refusal
from support.engine_script import Script
from support.listening import Listener
from support.ports import unused_port

NAME: Final = "m"
clock: Final = time.perf_counter
_LATE: Final = 0.005
_MOST_SEEN: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request that reached the server."""

    path: str
    headers: dict[str, str]
    document: dict[str, Any]


@dataclass(kw_only=True)
class EngineServer:
    """Serves until the context is left."""

    model: str = NAME
    port: int = 0
    settings: EngineSettings = field(default_factory=EngineSettings)
    adapters: Sequence[str] = ()
    max_model_len: int = 32_768
    script: Script = field(default_factory=Script)
    """Of requests that say nothing themselves."""
    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=_MOST_SEEN))
    first_seconds: deque[tuple[int, float]] = field(
        default_factory=lambda: deque(maxlen=_MOST_SEEN)
    )
    """Of requests, by their marks: from when they were here until their first token."""
    left: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_MOST_SEEN))
    """When those ended whose callers left, on the clock that all processes share."""
    broken_off: int = 0
    """Connections that it has ended before their answers' ends."""
    late_steps: int = 0
    """Steps that ended so late that the machine must have been busy."""

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=2**28)
        route = application.router
        for path in ("/v1/chat/completions", "/v1/completions"):
            route.add_post(path, self._generate)
        route.add_post("/v1/embeddings", self._embed)
        route.add_get("/v1/models", self._models)
        route.add_get("/health", self._health)
        route.add_get("/metrics", self._metrics)
        route.add_get("/simulate", self._told)
        route.add_post("/simulate", self._changed)
        route.add_get("/simulate/times", self._times)
        self.port = self.port or unused_port()
        self.engine = Engine(settings=self.settings)
        self._timer: asyncio.TimerHandle | None = None
        self._stalled = False
        self._count = 0
        self._runner = web.AppRunner(
            application, handler_cancellation=True, shutdown_timeout=0.1, access_log=None
        )
        await self._runner.setup()
        self._listener = await Listener.start(self._runner, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.stop()
        self._forget()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    async def dies(self) -> None:
        """End as a process that is killed: every connection, every sequence, and the port."""
        await self._listener.stop()
        self._forget()

    async def comes_back(self, model: str | None = None) -> None:
        """Listen again at the same port, with another model if one is named."""
        self.model = model or self.model
        self._listener = await Listener.start(self._runner, self.port)

    def stall(self) -> None:
        """No sequence gets a token any more, though all is accepted."""
        self._stalled = True

    def go_on(self) -> None:
        """Run again after a stall."""
        self._stalled = False
        self._wake()

    def counts(self) -> dict[str, float]:
        """What is and what was done so far, by name."""
        engine = self.engine
        return {
            "running": sum(not one.gone for one in engine.running),
            "waiting": len(engine.waiting),
            "steps": engine.steps,
            "late_steps": self.late_steps,
            "prompt_tokens": engine.prompt_tokens,
            "generated_tokens": engine.generated_tokens,
            "finished": engine.finished,
            "cancelled": engine.cancelled,
            "most_running": engine.most_running,
            "broken_off": self.broken_off,
            "requests": self._count,
        }

    def _forget(self) -> None:
        """Lose all sequences and connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for one in (*self.engine.running, *self.engine.waiting):
            self.engine.drop(one)
        self.engine = Engine(settings=self.settings)
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def _wake(self) -> None:
        if self._timer is None and not self._stalled:
            self._begin(asyncio.get_running_loop().time())

    def _begin(self, at: float) -> None:
        seconds = self.engine.begin()
        if seconds is None:
            self._timer = None
        else:
            due = at + seconds
            self._timer = asyncio.get_running_loop().call_at(due, self._end, due)

    def _end(self, due: float) -> None:
        if self._stalled:
            self._timer = None
            return
        late = asyncio.get_running_loop().time() - due
        self.late_steps += late > _LATE
        for exchange in self.engine.end():
            assert isinstance(exchange, Exchange)
            if exchange.emitted == 1:
                self.first_seconds.append((exchange.mark, clock() - exchange.received))
            if exchange.take_token():
                self.broken_off += exchange.broke_off
                self.engine.drop(exchange)
        # A step follows the one before, whenever this process was woken.
        self._begin(due + late if late > self.settings.step_seconds else due)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self._count += 1
        received = clock()
        try:
            document = orjson.loads(await request.read())
            self.seen.append(
                Seen(path=request.path, headers=dict(request.headers), document=document)
            )
            header = request.headers.get(engine_script.HEADER)
            script = Script.of(header, document, self.script)
            prompt_tokens = tokens_of(engine_script.prompt_bytes(document))
            output, is_all = script.output(document)
        except (ValueError, TypeError, AttributeError) as error:
            return refusal(400, str(error))
        if (refused := self._refused(document, script, prompt_tokens)) is not None:
            return refused
        model = document.get("model") or self.model
        mark = self._count if script.mark is None else script.mark
        exchange = Exchange(
            prompt_tokens=prompt_tokens,
            output_tokens=output,
            prefill_seconds=script.prefill_seconds,
            hangs_after=script.hangs_after,
            adapter=model if model in self.adapters else "",
            script=script,
            mark=mark,
            received=received,
            wording=events.Wording(
                chat=request.path == "/v1/chat/completions",
                name=request.headers.get("X-Request-Id") or f"{mark:032x}",
                model=model,
                mark=mark,
            ),
            streamed=bool(document.get("stream")),
            tells_usage=bool((document.get("stream_options") or {}).get("include_usage")),
            reason=events.LENGTH if is_all else events.STOP,
        )
        return await self._answered(request, exchange)

    async def _answered(self, request: web.Request, exchange: Exchange) -> web.StreamResponse:
        engine, response = self.engine, web.StreamResponse()
        if exchange.streamed:
            response.content_type, response.charset = "text/event-stream", "utf-8"
            response.headers["Server"] = "uvicorn"
            response.enable_chunked_encoding()
            await response.prepare(request)
        assert request.transport is not None
        exchange.transport = request.transport
        if exchange.script.breaks_off_after == 0:
            self.broken_off += 1
            exchange.gone = True
            exchange.transport.close()
        else:
            engine.offer(exchange)
            self._wake()
        try:
            await exchange.over
        finally:
            if engine.cancel(exchange):
                self.left.append((exchange.mark, clock()))
        if not exchange.streamed:
            return write_whole(exchange)
        await response.write_eof()
        return response

    def _refused(
        self, document: dict[str, Any], script: Script, prompt_tokens: int
    ) -> web.Response | None:
        if script.status is not None:
            return refusal(script.status, "So it was told.", script.retry_after)
        model = document.get("model") or self.model
        if model not in (self.model, *self.adapters):
            return refusal(404, f"The model `{model}` does not exist.")
        if prompt_tokens >= self.max_model_len:
            message = f"This model's maximum context length is {self.max_model_len} tokens."
            return refusal(400, message)
        return None

    async def _embed(self, request: web.Request) -> web.Response:
        return web.json_response(engine_pages.embeddings(await request.json(), self.model))

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(engine_pages.models(self.model, self.adapters, self.max_model_len))

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=engine_pages.metrics(self.engine, self.model, self.adapters))

    async def _told(self, request: web.Request) -> web.Response:
        return web.json_response(self.counts())

    async def _times(self, request: web.Request) -> web.Response:
        """Tell `first_seconds` and `left`, and forget them."""
        told = {"first": list(self.first_seconds), "left": list(self.left)}
        self.first_seconds.clear()
        self.left.clear()
        return web.json_response(told)

    async def _changed(self, request: web.Request) -> web.Response:
        """Change `settings`, `script`, or whether it is `stalled`; a `model` is a restart."""
        document = await request.json()
        for name, value in document.get("settings", {}).items():
            setattr(self.settings, name, value)
        if "script" in document:
            self.script = replace(Script(), **document["script"])
        if "stalled" in document:
            (self.stall if document["stalled"] else self.go_on)()
        if "model" in document:
            self.model = document["model"]
            asyncio.get_running_loop().call_later(0.01, self._forget)
        return web.json_response(asdict(self.settings))


async def _serve(arguments: Sequence[str] | None) -> None:
    parser = ArgumentParser(description="A simulated engine of a language model.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default=NAME)
    parser.add_argument("--max-model-len", type=int, default=32_768)
    parser.add_argument("--adapters", nargs="*", default=())
    usual = EngineSettings()
    for one in fields(usual):
        name, default = one.name.replace("_", "-"), getattr(usual, one.name)
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = vars(parser.parse_args(arguments))
    settings = EngineSettings(**{one.name: options.pop(one.name) for one in fields(usual)})
    async with EngineServer(settings=settings, **options) as server:
        gc.collect()
        gc.freeze()
        # The first process of a container ends by this signal only if it handles it.
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        print(f"listening: port {server.port}", flush=True)  # noqa: T201
        await told.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the process is ended."""
    uvloop.run(_serve(arguments))


if __name__ == "__main__":
    main()
