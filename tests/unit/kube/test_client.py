"""Requests to an API server over real HTTP, and what its refusals mean."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import permutations
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler
from hypothesis import example, given, strategies
from kubernetes.aio.client.configuration import Configuration

from batchedmodel_kube.client import Client, Collection, Event, EventType, as_yaml
from batchedmodel_kube.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    QuotaExceeded,
    Refused,
    TooOld,
    Unreachable,
    translated,
)
from batchedmodel_kube.object_text import Unreadable, parsed


@asynccontextmanager
async def client_of(answer: Handler) -> AsyncIterator[Client]:
    """A client of an API server that answers everything so."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        client = Client(Configuration(host=str(server.make_url(""))))
        try:
            yield client
        finally:
            await client.close()


def _answer(message: str, *causes: str) -> bytes:
    details = {"causes": [{"reason": cause} for cause in causes]}
    return json.dumps({"kind": "Status", "message": message, "details": details}).encode()


def test_a_complaint_is_one_line_whatever_users_wrote() -> None:
    error = translated(422, _answer("a: \n12:00:00 ERROR forged\r\x1b[2J\u2028\x00"))
    assert str(error) == "a:  12:00:00 ERROR forged  [2J  "


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (404, _answer("not found"), Gone),
        (404, _answer('admission webhook "v.x.io" denied the request: no'), Invalid),
        (409, _answer('admission webhook "v.x.io" denied the request: no'), Invalid),
        (403, _answer("is being terminated", "NamespaceTerminating"), Gone),
        (403, _answer('services "x" is forbidden: exceeded quota: q'), QuotaExceeded),
        (403, _answer('User "u" cannot patch resource "services"'), Forbidden),
        (403, _answer('deployments "x" is forbidden: policy says no'), Invalid),
        (409, _answer("has been modified"), Conflict),
        (422, _answer("spec.ports: Required value"), Invalid),
        (500, _answer("failed to create typed patch object (x): expected map"), Invalid),
        (500, _answer("etcdserver: request timed out"), Unreachable),
        (410, _answer("too old resource version"), TooOld),
        (429, _answer("too many requests"), Unreachable),
        (401, _answer("Unauthorized"), Unreachable),
        (405, _answer("method not allowed"), Refused),
        (503, b"<html>no JSON at all", Unreachable),
        (502, b"[]", Unreachable),
    ],
)
def test_each_complaint_of_the_api_server_has_its_error(
    status: int, answer: bytes, expected: type[ClusterError]
) -> None:
    assert type(translated(status, answer)) is expected


def test_a_complaint_keeps_its_sentence_within_bounds() -> None:
    assert str(translated(409, _answer("has been modified"))) == "has been modified"
    assert len(str(translated(422, _answer("x" * 10_000)))) == 1000
    assert str(translated(503, b"")) == "the API server answered 503"


async def test_a_refusal_that_comes_in_pieces_is_read_whole() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=403)
        await response.prepare(request)
        for piece in (b'{"message": "pods is forbidden: ', b'exceeded quota: q"}'):
            await response.write(piece)
            await asyncio.sleep(0.05)
        return response

    async with client_of(answer) as client:
        with pytest.raises(QuotaExceeded, match="exceeded quota: q"):
            await client.get("/api/v1/pods")


async def test_of_an_answer_to_a_write_nothing_is_read_unless_somebody_wants_it() -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        labels = {f"key-{number}": "x" * 60 for number in range(10_000)}
        return web.json_response({"metadata": {"name": "a", "labels": labels}})

    async with client_of(answer) as client:
        assert await client.apply("/api/v1/x", {}, manager="us") == {}
        await client.merge("/api/v1/x", {})
        await client.replace("/api/v1/x", {})
        await client.delete("/api/v1/x", uid="1")
        with pytest.raises(Unreachable, match="more than the 524288 that are read"):
            await client.apply("/api/v1/x", {}, manager="us", read=parsed)


@pytest.mark.parametrize(("status", "expected"), [(409, Conflict), (403, Forbidden)])
async def test_a_write_that_is_refused_says_so(status: int, expected: type[ClusterError]) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=_answer('User "u" cannot do this'))

    async with client_of(answer) as client:
        for write in (
            client.apply("/api/v1/x", {}, manager="us"),
            client.merge("/api/v1/x", {}),
            client.replace("/api/v1/x", {}),
            client.delete("/api/v1/x", uid="1"),
        ):
            with pytest.raises(expected):
                await write


async def test_what_is_gone_already_need_not_be_deleted() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=404, body=_answer("not found"))

    async with client_of(answer) as client:
        await client.delete("/api/v1/x", uid="1")
        assert await client.get("/api/v1/x") is None


# A key of YAML has at most 1,024 characters as it is written; those of Kubernetes are shorter.
@given(strategies.dictionaries(strategies.text(max_size=100), strategies.text()))
@example({"a": "\U0001f600", "b": "\\ud83d\\ude00", "c": "\\\U0010ffff\\", "d": "\ud7ff\ue000"})
def test_what_is_applied_is_yaml_whatever_users_wrote(values: dict[str, str]) -> None:
    assert yaml.safe_load(as_yaml({"data": values})) == {"data": values}


@pytest.mark.slow
async def test_no_request_waits_for_others_that_a_slow_api_server_keeps_waiting() -> None:
    # 16 looks ask for seven things each and 64 namespaces may be tried, beside the Lease.
    at_once = 16 * 7 + 64 + 1
    there, all_there = 0, asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        nonlocal there
        there += 1
        if there == at_once:
            all_there.set()
        await all_there.wait()
        return web.json_response({})

    async with client_of(answer) as client:
        asked = [asyncio.create_task(client.get(f"/{number}")) for number in range(at_once)]
        try:
            await asyncio.wait_for(all_there.wait(), 10)
            assert await asyncio.gather(*asked) == [{}] * at_once
        finally:
            all_there.set()
            await asyncio.gather(*asked)


def read(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = parsed(text)
    if found.get("odd"):
        raise Unreadable("is odd")
    return found


THINGS = Collection(path="/api/v1/things", labels="ours", name="a", read=read)


async def test_a_list_comes_page_after_page_and_ends_with_its_version() -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        if "continue" not in request.query:
            items = [{"n": 1}, {"odd": True}, {"n": 2}]
            metadata = {"continue": "next", "resourceVersion": "7"}
            return web.json_response({"metadata": metadata, "items": items})
        # An empty list is `null` to some API servers.
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": None})

    async with client_of(answer) as client:
        found = [event async for event in client.list(THINGS)]
    assert found == [
        Event(type=EventType.ADDED, found={"n": 1}, size=8),
        Event(type=EventType.ADDED, found={"n": 2}, size=8),
        Event(type=EventType.BOOKMARK, found={}, version="7"),
    ]
    assert client.left_out == 1
    page = {"labelSelector": "ours", "fieldSelector": "metadata.name=a", "limit": "100"}
    assert asked == [page, {**page, "continue": "next"}]


def message(kind: str, found: object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


@pytest.mark.parametrize(
    ("ended", "error"),
    [
        (message("ERROR", {"code": 410, "message": "too old"}), TooOld),
        (message("ERROR", {"code": 500, "message": "no"}), Unreachable),
    ],
)
async def test_a_watch_leaves_out_what_is_odd_and_says_how_it_ended(
    ended: bytes, error: type[ClusterError]
) -> None:
    good = {"metadata": {"resourceVersion": "8"}}

    async def answer(request: web.Request) -> web.Response:
        assert request.query["resourceVersion"] == "7"
        lines = [
            *(message("ADDED", {"odd": True}), b"[]\n", b"{}\n", message("STRANGE", good)),
            *(message("MODIFIED", {}), message("BOOKMARK", good), ended),
        ]
        return web.Response(body=b"".join(lines))

    async with client_of(answer) as client:
        watched = client.watch(THINGS, "7")
        assert await anext(watched) == Event(type=EventType.BOOKMARK, found=good, version="8")
        with pytest.raises(error):
            await anext(watched)
    assert client.left_out == 5


async def test_an_object_that_cannot_be_read_any_more_counts_as_gone() -> None:
    odd = {"metadata": {"uid": "u1", "resourceVersion": "8"}, "odd": True}

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=message("MODIFIED", odd) + message("DELETED", odd))

    gone = Event(type=EventType.DELETED, found={"metadata": odd["metadata"]}, version="8")
    async with client_of(answer) as client:
        assert [event async for event in client.watch(THINGS, "7")] == [gone, gone]
    assert client.left_out == 2


@pytest.mark.parametrize("body", [b"", b"[", b'{"items":[{"n":1}', b'{"items":[{]}'])
async def test_a_list_that_is_none_is_no_answer(body: bytes) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body)

    async with client_of(answer) as client:
        with pytest.raises(Unreachable, match="GET /api/v1/things/a: the answer"):
            [event async for event in client.list(THINGS)]
        with pytest.raises(Unreachable, match="GET /x: the answer is not JSON"):
            await client.get("/x")


async def test_a_page_that_trickles_is_an_api_server_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batchedmodel_kube.client._CALL_SECONDS", 0.3)
    asked = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    async with client_of(answer) as client, asyncio.timeout(5):
        with pytest.raises(Unreachable, match="GET /api/v1/things/a: the answer comes too slowly"):
            [event async for event in client.list(THINGS)]
    assert asked == 1


@pytest.mark.parametrize("body", ["{}", '{"kind": "Status", "code": 200}', '{"items": []}'])
async def test_an_answer_without_a_version_is_no_empty_list(body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    async with client_of(answer) as client:
        with pytest.raises(Unreachable, match="is no list: it has no resourceVersion"):
            [event async for event in client.list(THINGS)]


async def test_without_credentials_no_client_is_made() -> None:
    with pytest.raises(Unreachable, match="no credentials"):
        await Client.connect({"KUBECONFIG": "/nowhere"})
    with pytest.raises(Unreachable, match="no credentials"):
        await Client.connect({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


async def test_the_time_is_the_api_servers_as_soon_as_it_has_answered() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, status=503, headers={"Date": "Tue, 06 May 2031 07:08:09 GMT"})

    async with client_of(answer) as client:
        assert client.calendar().year < 2031
        with pytest.raises(Unreachable):
            await client.get("/x")
        assert client.calendar().isoformat(timespec="minutes") == "2031-05-06T07:08+00:00"


def test_faults_that_an_api_server_lists_in_any_order_are_told_in_one() -> None:
    """A status that changes with each answer would be written, and looked at, without end."""
    causes = [{"field": f"spec.{one}", "message": f"Invalid value: {one}"} for one in "abc"]

    def answer(order: Sequence[dict[str, str]]) -> bytes:
        listed = ", ".join(f"{one['field']}: {one['message']}" for one in order)
        message = f'Deployment.apps "m" is invalid: [{listed}]'
        return json.dumps({"message": message, "details": {"causes": order}}).encode()

    told = {str(translated(422, answer(order))) for order in permutations(causes)}
    assert told == {
        'Deployment.apps "m" is invalid: spec.a: Invalid value: a, '
        "spec.b: Invalid value: b, spec.c: Invalid value: c"
    }
