"""What Kopf gets to read is small, whatever an API server sends."""

import json

import kopf
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
