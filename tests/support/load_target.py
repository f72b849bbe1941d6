"""Servers for the load generator: ordinary ones, and ones that send the bytes they were told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

from load_generator import Load, LoadResult, Target, run_load

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    """An aiohttp server that answers every request by `handler`; gives its port."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        assert server.port is not None
        yield server.port


@asynccontextmanager
async def serving_bytes(answer: bytes, *, closes: bool = False) -> AsyncIterator[int]:
    """A server that sends exactly these bytes per request, in small pieces; gives its port."""
    connections: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                for start in range(0, len(answer), 7):
                    writer.write(answer[start : start + 7])
                    await asyncio.sleep(0)
                await writer.drain()
                if closes:
                    return
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*filter(None, connections))


async def load(target: Target, load: Load, *, timeout_seconds: float = 10.0) -> LoadResult:
    return await asyncio.to_thread(run_load, target, load, timeout_seconds=timeout_seconds)


async def answer_ok(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(text="ok")
