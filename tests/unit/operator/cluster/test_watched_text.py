"""What Kopf gets to read is small, whatever an API server sends."""

import asyncio
import json
from collections import Counter
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from batchedmodel_operator.cluster.objects import reader_of
from batchedmodel_operator.cluster.watched_text import bounded
from batchedmodel_operator.conditions.autoscaling import looked_at
from batchedmodel_operator.interfaces import LOOKED_AT
from batchedmodel_operator.kinds import Kind

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


def _autoscaler(**annotations: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "minilm",
            "uid": "1",
            "resourceVersion": "7",
            "labels": {"batchedmodel.dev/name": "minilm", "mine": "yes"},
            "annotations": annotations,
            "ownerReferences": [_REFERENCE],
            "managedFields": [{"manager": "kube-controller-manager", "time": "noon"}],
        },
        "spec": {"minReplicas": 2, "maxReplicas": 5},
        "status": {
            "currentReplicas": 2,
            "conditions": [{"type": "ScalingActive", "status": "False", "reason": "no"}],
        },
    }


async def test_of_an_hpa_that_is_watched_the_same_is_known_as_of_one_that_is_read() -> None:
    small, large = _autoscaler(a="b"), _autoscaler(a="b" * 20_000)

    async def answer(request: web.Request) -> web.Response:
        if "watch" in request.query:
            return web.Response(text=f"{json.dumps({'type': 'MODIFIED', 'object': small})}\n")
        return web.json_response({"items": [small, large]})

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    path = "/apis/autoscaling/v2/horizontalpodautoscalers"
    async with TestServer(application) as server:
        kept = bounded(kopf.ConnectionInfo(server=str(server.make_url(""))))
        async with kept.aiohttp_session as session:
            async with session.get(server.make_url(path)) as response:
                listed = json.loads(await response.read())["items"]
            async with session.get(server.make_url(f"{path}?watch=true")) as response:
                [line] = [line async for line in response.content.iter_chunked(65_536)]
    read = looked_at(reader_of(Kind.AUTOSCALER)(json.dumps(small).encode()))
    assert [one.get(LOOKED_AT) for one in (*listed, json.loads(line)["object"])] == [
        read,
        None,
        read,
    ], "one that is too large is followed all the same"
    assert all(one.keys() <= {"metadata", "status", LOOKED_AT} for one in listed)
    assert listed[0]["metadata"]["labels"] == {"batchedmodel.dev/name": "minilm"}


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
