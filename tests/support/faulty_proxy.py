"""Stands in front of a real API server and does what networks and busy servers do to its clients.

Plain HTTP towards the client, whose token passes through; it counts what it is asked.
"""

import asyncio
import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from cluster import ControlPlane

_HOP = frozenset({"host", "connection", "transfer-encoding", "content-length", "content-encoding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked, and when in monotonic seconds."""

    at: float
    method: str
    path: str
    watch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What becomes of every new request but a Lease's."""

    status: int = 0
    """Answered with it; 0: never answered, unless it is only late."""
    late_by: float = 0.0
    """Seconds that the API server's answer takes longer; a write is in force before."""
    leases_too: bool = False
    reads_pass: bool = False
    retry_after: str = "1"
    """What is said with status 429."""
    watched: bytes | None = None
    """All that each watch says before it ends; then nothing else is concerned."""


class FaultyProxy:
    """A proxy whose faults a test switches on and off."""

    def __init__(self, plane: ControlPlane) -> None:
        cluster = json.loads(plane.kubeconfig.read_text())["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._upstream = cluster["server"]
        self._trust = ssl.create_default_context(cadata=authority)
        self._fault: Fault | None = None
        self._frozen = 0
        """Watches of this generation and earlier ones are silent."""
        self._watches = 0
        self._open: set[asyncio.Transport] = set()
        """Connections of watches."""
        self._requests: list[Request] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.url = ""

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[None]:
        """For the block; a request that was never answered stays so."""
        self._fault = fault
        try:
            yield
        finally:
            self._fault = None

    def freeze_watches(self) -> None:
        """Those that are open say nothing more and stay open; new ones are as they should be."""
        self._frozen = self._watches

    def end_watches(self) -> None:
        """Those that are open end in their middle, as on a connection that is lost."""
        assert self._loop is not None
        for transport in tuple(self._open):
            self._loop.call_soon_threadsafe(transport.abort)

    def since(self, began: float) -> list[Request]:
        """What was asked since then, monotonic seconds; Leases are left out."""
        return [one for one in self._requests if one.at >= began and "/leases/" not in one.path]

    @contextmanager
    def running(self) -> Iterator["FaultyProxy"]:
        """In a thread of its own, for the block."""
        started, stop = threading.Event(), asyncio.Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            runner = web.AppRunner(self._application(), shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}"
            started.set()
            await stop.wait()
            await runner.cleanup()

        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        assert started.wait(10)
        try:
            yield self
        finally:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(stop.set)
            thread.join(10)

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=2**24)
        application.cleanup_ctx.append(self._client)
        application.router.add_route("*", "/{path:.*}", self._handle)
        return application

    async def _client(self, application: web.Application) -> Any:
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        yield
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") in ("true", "1")
        one = Request(at=time.monotonic(), method=request.method, path=request.path, watch=watch)
        self._requests.append(one)
        fault = self._fault
        concerned = (
            fault is not None
            and (fault.leases_too or "/leases/" not in request.path)
            and not (fault.reads_pass and request.method == "GET")
        )
        late_by = fault.late_by if fault is not None and concerned else 0.0
        if fault is not None and fault.watched is not None:
            if watch:
                return web.Response(body=fault.watched, content_type="application/json")
        elif fault is not None and concerned and not late_by:
            if not fault.status:
                await asyncio.Event().wait()
            return _refusal(fault)
        try:
            return await self._passed_on(request, watch=watch, late_by=late_by)
        except (OSError, aiohttp.ClientError):
            # Whichever side is gone, the other is to see no more than that.
            raise web.HTTPBadGateway from None

    async def _passed_on(
        self, request: web.Request, *, watch: bool, late_by: float
    ) -> web.StreamResponse:
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in _HOP
        }
        asked = self._session.request(
            request.method,
            f"{self._upstream}{request.path_qs}",
            data=await request.read() or None,
            headers=headers,
            skip_auto_headers=("Content-Type",),
            ssl=self._trust,
        )
        self._watches += watch
        generation = self._watches
        if watch and isinstance(request.transport, asyncio.Transport):
            self._open.add(request.transport)
        async with asked as answer:
            kept = {n: v for n, v in answer.headers.items() if n.lower() not in _HOP}
            if "Content-Encoding" in answer.headers:
                kept["Content-Encoding"] = answer.headers["Content-Encoding"]
            await asyncio.sleep(late_by)
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                if watch and generation <= self._frozen:
                    await asyncio.Event().wait()
                await response.write(chunk)
            if watch and generation <= self._frozen:
                # Not even its end comes through.
                await asyncio.Event().wait()
            await response.write_eof()
            return response


def _refusal(fault: Fault) -> web.Response:
    said = {"kind": "Status", "status": "Failure", "message": "not just now", "code": fault.status}
    headers = {"Retry-After": fault.retry_after} if fault.status == 429 else {}
    return web.json_response(said, status=fault.status, headers=headers)
