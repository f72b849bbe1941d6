"""What Kopf gets to read is small, whatever an API server sends."""

import asyncio
import json
from collections import Counter

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from batchedmodel_operator.cluster.watched_text import bounded

_REFERENCE = {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "1"}


async def test_an_object_with_thousands_of_owners_is_read_without_them() -> None:
    def pod(name: str, owners: int) -> dict[str, object]:
        return {"metadata": {"name": name, "ownerReferences": [_REFERENCE] * owners}, "spec": {}}

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"kind": "PodList", "items": [pod("one", 1), pod("many", 1_000)]})

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    async with TestServer(application) as server:
        kept = bounded(kopf.ConnectionInfo(server=str(server.make_url(""))))
        pods = server.make_url("/api/v1/pods")
        async with kept.aiohttp_session as session, session.get(pods) as response:
            page = json.loads(await response.read())
    assert page == {
        "kind": "PodList",
        "items": [
            {"metadata": {"name": "one", "ownerReferences": [_REFERENCE]}},
            {"metadata": {"name": "many"}},
        ],
    }


async def test_a_server_that_asks_for_patience_is_a_connection_that_failed_to_kopf() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, status=429, headers={"Retry-After": "86400"})

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    async with TestServer(application) as server:
        kept = bounded(kopf.ConnectionInfo(server=str(server.make_url(""))))
        async with kept.aiohttp_session as session:
            with pytest.raises(aiohttp.ClientConnectionError, match="too many requests"):
                await session.get(server.make_url("/api/v1/pods"))


async def test_watches_that_end_at_once_are_begun_anew_without_haste() -> None:
    asked: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.Response:
        asked[request.path_qs] += 1
        return web.Response()

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    async with TestServer(application) as server:
        kept = bounded(kopf.ConnectionInfo(server=str(server.make_url(""))))

        async def again_and_again(what: str) -> None:
            while True:
                async with kept.aiohttp_session.get(server.make_url(f"/api/v1/{what}")):
                    pass

        tasks = [
            asyncio.create_task(again_and_again(what))
            for what in ("pods?watch=true", "services?watch=true", "pods?continue=x")
        ]
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await kept.aiohttp_session.close()
    assert asked["/api/v1/pods?watch=true"] == asked["/api/v1/services?watch=true"] == 4
    assert asked["/api/v1/pods?continue=x"] > 4
