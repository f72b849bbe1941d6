"""An API server on loopback that has one Lease, keeps watches open, and may answer nothing else."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

_LOOK_SECONDS = 0.01


class PretendApiServer:
    """Speaks plain HTTP."""

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]]] = {}
        """What there is, by the path of its list; of everything else there is nothing."""
        self.hangs = False
        """Whether nothing but the Lease is answered."""
        self.unanswered = 0
        """Requests that hang."""
        self.watches: Counter[str] = Counter()
        """How many are open of each address."""
        self.lease: dict[str, Any] | None = None
        self.renewals = 0
        self.date = ""
        """What its clock says, in the form of HTTP; empty: this machine's."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Anything that is asked."""
        if "/leases/" in request.path:
            return await self._lease(request)
        if self.hangs:
            self.unanswered += 1
            await asyncio.Event().wait()
        if request.query.get("watch") != "true":
            items = self.lists.get(request.path, [])
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        self.watches[f"{request.path} {request.query.get('fieldSelector', '')}".strip()] += 1
        await asyncio.Event().wait()
        return response

    async def _lease(self, request: web.Request) -> web.Response:
        if request.method == "PUT":
            body = await request.json()
            self.renewals += 1
            body["metadata"]["resourceVersion"] = str(self.renewals)
            self.lease = body
        dated = {"Date": self.date} if self.date else {}
        if self.lease is None:
            return web.json_response({"message": "not found"}, status=404, headers=dated)
        return web.json_response(self.lease, headers=dated)


@asynccontextmanager
async def pretend_api_server(folder: Path) -> AsyncIterator[tuple[PretendApiServer, Path]]:
    """One that runs, and a kubeconfig that leads to it."""
    server, application = PretendApiServer(), web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    kubeconfig = folder / "kubeconfig"
    named = {"name": "pretend"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "pretend",
        "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{**named, "user": {}}],
        "contexts": [{**named, "context": {"cluster": "pretend", "user": "pretend"}}],
    }
    kubeconfig.write_text(json.dumps(config))
    try:
        yield server, kubeconfig
    finally:
        await runner.cleanup()


async def becomes(what: Callable[[], bool], *, seconds: float = 180.0) -> None:
    """Wait until something is so; raises `TimeoutError`."""
    async with asyncio.timeout(seconds):
        while not what():  # noqa: ASYNC110  # of a server that tells nobody
            await asyncio.sleep(_LOOK_SECONDS)
