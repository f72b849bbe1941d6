"""An upstream server for tests of what passes through the sidecar as it is."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from support.chain import Chain, in_front_of
from support.listening import Listener

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Behind:
    """An upstream server: v2 with one model, and whatever a test adds."""

    def __init__(self) -> None:
        self.port = 0
        self.forget()

    def forget(self) -> None:
        """Answer what it was sent, and have seen nothing yet."""
        self.handle: Handle = self._reflect
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Behind"]:
        """Listen on a port of its own."""
        application = web.Application(client_max_size=1 << 30)
        application.router.add_get("/v2/models/m/ready", self._ready)
        application.router.add_get("/v2/models/m", self._metadata)
        application.router.add_get("/v2", self._server)
        application.router.add_route("*", "/{path:.*}", self._any)
        runner = web.AppRunner(
            application, shutdown_timeout=0.1, auto_decompress=False, handler_cancellation=True
        )
        await runner.setup()
        listener = await Listener.start(runner)
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await listener.stop()
            await runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _server(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "theirs", "extensions": []})

    async def _metadata(self, request: web.Request) -> web.Response:
        tensor = {"datatype": "INT64", "shape": [-1, -1]}
        inputs, outputs = [{"name": "x", **tensor}], [{"name": "y", **tensor}]
        document = {"name": "m", "platform": "theirs", "versions": ["1"]}
        return web.json_response(document | {"inputs": inputs, "outputs": outputs})

    async def _any(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        return await self.handle(request)

    async def _reflect(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        return web.Response(body=self.bodies[-1], headers={"x-theirs": "1"})


@asynccontextmanager
async def in_front(behind: Behind, folder: Path, **settings: Any) -> AsyncIterator[Chain]:
    """A sidecar alone, in front of the server, which lets every path pass; both are ready."""
    async with in_front_of(behind.url, folder, **{"pass_paths": ("/*",)} | settings) as running:
        await running.ready()
        yield running
