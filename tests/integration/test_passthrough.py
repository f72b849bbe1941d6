"""What cannot be batched goes to an upstream server as it is, and comes back so."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from batchedmodel_contract.outcomes import Outcome
from support.behind import Behind, in_front
from support.books import assert_books_balance, settled
from support.chain import Chain
from support.echo_server import EVERY_DATATYPE, echo_chain
from support.raw_caller import RawCaller

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROW = {"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, stands_behind: Behind
) -> AsyncIterator[Chain]:
    """One for all, which must keep its books through all of it."""
    async with in_front(stands_behind, tmp_path_factory.mktemp("passing")) as chain:
        yield chain
        await assert_books_balance(chain)


@pytest.fixture
def behind(stands_behind: Behind) -> Behind:
    stands_behind.forget()
    return stands_behind


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain, behind: Behind) -> Chain:
    await assert_books_balance(running)
    return running


async def test_a_path_of_no_protocol_goes_through_with_method_query_body_and_headers(
    chain: Chain, behind: Behind
) -> None:
    headers = {
        "x-request-id": "a-1",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "vendor=1",
        "Authorization": "Bearer secret",
        "User-Agent": "tests",
    }
    before = await settled(chain, Outcome.COMPLETED)
    url = URL(chain.url("/generate/a/b?x=1%202%2f%41&y"), encoded=True)
    async with chain.session.put(url, data=b"hello", headers=headers) as response:
        assert (response.status, await response.read()) == (200, b"hello")
        assert response.headers["x-theirs"] == "1"
    (request,) = behind.seen
    assert (request.method, request.raw_path) == ("PUT", "/generate/a/b?x=1%202%2f%41&y")
    assert {name: request.headers.get(name) for name in headers} == headers
    assert await settled(chain, Outcome.COMPLETED) == before + 1
    await assert_books_balance(chain)


async def test_headers_of_one_connection_stay_on_it(chain: Chain, behind: Behind) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        headers = {"Connection": "x-hop", "x-hop": "1", "Keep-Alive": "timeout=9", "x-end": "1"}
        return web.Response(text="ok", headers=headers)

    behind.handle = handle
    headers = {
        "Connection": "x-private, keep-alive",
        "x-private": "1",
        "TE": "trailers",
        "Proxy-Authorization": "secret",
        "Upgrade": "h2c",
        "x-public": "1",
    }
    async with chain.session.get(chain.url("/docs"), headers=headers) as response:
        assert response.status == 200
        assert "x-hop" not in response.headers
        assert "Keep-Alive" not in response.headers
        assert response.headers["x-end"] == "1"
    got = {name.lower() for name in behind.seen[0].headers}
    assert "x-public" in got
    assert got.isdisjoint({"x-private", "te", "proxy-authorization", "upgrade"})
    assert behind.seen[0].headers["Host"] == f"127.0.0.1:{behind.port}"


async def test_headers_that_are_not_utf_8_hurt_nobody(chain: Chain, behind: Behind) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        # By hand: this server would not write such a header itself.
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx-name: caf\xe9\r\n"
        request.transport.write(head + b"Connection: close\r\n\r\nok")
        await asyncio.sleep(0.2)
        return web.Response()

    behind.handle = handle
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    writer.write(b"GET /x HTTP/1.1\r\nHost: x\r\nx-name: caf\xe9\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert "x-name: café".encode() in answer
    assert behind.seen[0].headers["x-name"] == "café"


@pytest.mark.parametrize(
    "head",
    [
        b"200 a\x01b\r\nx-name: 1",
        b"200 OK\r\nx-name: a\x01b",
        b"200 OK\r\nSet-Cookie: \x7f=\x0b",
        b"200 OK\r\nx-name: \xe9\x01",
    ],
    ids=["reason", "header", "cookie", "not UTF-8"],
)
async def test_control_characters_of_a_servers_head_cost_the_caller_no_answer(
    chain: Chain, behind: Behind, head: bytes
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(
            b"HTTP/1.1 " + head + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
        )
        await asyncio.sleep(0.2)
        return web.Response()

    behind.handle = handle
    async with RawCaller.calling(chain.port) as caller:
        caller.sends(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await caller.answer() == (200, b"ok")


async def test_a_caller_of_http_1_0_gets_its_stream(chain: Chain, behind: Behind) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        await response.write(b"two")
        return response

    behind.handle = handle
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    writer.write(b"GET /x HTTP/1.0\r\nx-request-id: 7\r\n\r\n")
    head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert content == b"onetwo"
    assert b"x-request-id: 7" in head.lower()


@pytest.mark.parametrize("status", [301, 404, 418, 500])
async def test_the_servers_own_errors_and_redirects_come_back(
    chain: Chain, behind: Behind, status: int
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        headers = {"Location": "/elsewhere", "Retry-After": "7", "Set-Cookie": "a=1"}
        response = web.Response(status=status, reason="Theirs", body=b"theirs", headers=headers)
        response.headers.add("Set-Cookie", "b=2")
        return response

    behind.handle = handle
    outcome = Outcome.COMPLETED if status < 400 else Outcome.FAILED
    before = await settled(chain, outcome)
    async with chain.session.get(chain.url("/x"), allow_redirects=False) as response:
        assert (response.status, response.reason) == (status, "Theirs")
        assert await response.read() == b"theirs"
        assert response.headers["Retry-After"] == "7"
        assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
    assert await settled(chain, outcome) == before + 1
    await assert_books_balance(chain)


async def test_each_piece_of_an_answer_comes_at_once(chain: Chain, behind: Behind) -> None:
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while piece := await pieces.get():
            await response.write(piece)
        return response

    behind.handle = handle
    pieces.put_nowait(b"one")
    async with chain.session.post(chain.url("/stream"), data=b"{}") as response:
        # The server writes each piece once the one before it was read.
        for sent, following in ((b"one", b"two"), (b"two", b"three"), (b"three", b"")):
            assert await response.content.readany() == sent
            pieces.put_nowait(following)
        assert await response.content.readany() == b""
    await assert_books_balance(chain)


async def test_a_large_body_comes_whole(chain: Chain, behind: Behind) -> None:
    pieces = [bytes([number]) * 1_000_003 for number in range(20)]

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async with chain.session.post(chain.url("/x"), data=body()) as response:
        assert response.status == 200
    assert behind.bodies[-1] == b"".join(pieces)
    await assert_books_balance(chain)


async def test_a_compressed_body_stays_as_it_is(chain: Chain, behind: Behind) -> None:
    data = gzip.compress(b"a" * 1000)
    headers = {"Content-Encoding": "gzip"}
    async with chain.session.post(chain.url("/x"), data=data, headers=headers) as response:
        assert response.status == 200
    assert behind.bodies == [data]
    assert behind.seen[0].headers["Content-Encoding"] == "gzip"


@pytest.mark.parametrize(
    ("document", "headers"),
    [
        ({"inputs": [ROW]}, {"x-batch": "off"}),
        ({"inputs": [ROW | {"shape": [0, 2], "data": []}]}, {}),
        ({"inputs": [ROW | {"shape": [2]}]}, {}),
    ],
    ids=["declared", "no rows", "no batch dimension"],
)
async def test_what_makes_no_rows_goes_to_the_server_alone(
    chain: Chain, behind: Behind, document: Any, headers: dict[str, str]
) -> None:
    before = await settled(chain, Outcome.COMPLETED)
    url = chain.url(chain.infer_path)
    async with chain.session.post(url, json=document, headers=headers) as response:
        assert response.status == 200
        assert json.loads(await response.read()) == document
    assert behind.seen[0].path == chain.infer_path
    assert await settled(chain, Outcome.COMPLETED) == before + 1
    await assert_books_balance(chain)


async def test_other_models_and_protocols_are_the_servers_to_judge(
    chain: Chain, behind: Behind
) -> None:
    paths = ["/v2/models/other/infer", "/v1/models/m:predict", "/v1/embeddings", "/rerank"]
    for path in paths:
        async with chain.session.post(chain.url(path), json={"inputs": [ROW]}) as response:
            assert response.headers["x-theirs"] == "1"
    assert [request.path for request in behind.seen] == paths


async def test_what_is_wrong_in_itself_is_still_refused_here(chain: Chain, behind: Behind) -> None:
    for document in (b"", b"[]", b'{"inputs": [{"name": 3}'):
        url = chain.url(chain.infer_path)
        async with chain.session.post(url, data=document) as response:
            assert response.status == 400
    headers = {"x-batch": "perhaps"}
    async with chain.session.post(chain.url(chain.infer_path), headers=headers) as response:
        assert response.status == 400
        assert (await response.json())["error"] == 'x-batch: "perhaps" is not on or off'
    twice = CIMultiDict([("x-batch", "off"), ("x-batch", "on")])
    async with chain.session.post(chain.url(chain.infer_path), headers=twice) as response:
        assert response.status == 400
        assert "x-batch: is sent more than once" in (await response.json())["error"]
    assert not behind.seen
    await assert_books_balance(chain)


async def test_nothing_passes_through_to_our_own_server(tmp_path: Path) -> None:
    async with echo_chain(tmp_path, EVERY_DATATYPE) as chain:
        for path in ("/v2/models/m/events", "/v2/models/m/profile", "/anything"):
            async with chain.session.get(chain.url(path)) as response:
                assert response.status == 404, path
        url, headers = chain.url(chain.infer_path), {"x-batch": "off"}
        async with chain.session.post(url, json={"inputs": [ROW]}, headers=headers) as response:
            assert response.status == 400
            assert "x-batch" in (await response.json())["error"]
