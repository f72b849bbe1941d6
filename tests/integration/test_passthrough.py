"""What cannot be batched goes to a foreign server as it is, counted and bounded."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.outcomes import Outcome
from support.books import assert_books_balance, settled
from support.chain import Chain, in_front_of
from support.echo_server import EVERY_DATATYPE, echo_chain

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]
ROW = {"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}


class Behind:
    """A foreign server: v2 with one model, and whatever a test adds."""

    def __init__(self) -> None:
        self.handle: Handle = self._reflect
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Behind"]:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_get("/v2/models/m/ready", self._ready)
        application.router.add_get("/v2/models/m", self._metadata)
        application.router.add_get("/v2", self._server)
        application.router.add_route("*", "/{path:.*}", self._any)
        runner = web.AppRunner(
            application, shutdown_timeout=0.1, auto_decompress=False, handler_cancellation=True
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.port = runner.addresses[0][1]
            yield self
        finally:
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


@pytest.fixture
async def behind() -> AsyncIterator[Behind]:
    async with Behind().serving() as server:
        yield server


@pytest.fixture
async def chain(tmp_path: Path, behind: Behind) -> AsyncIterator[Chain]:
    async with in_front(behind, tmp_path) as running:
        yield running


@asynccontextmanager
async def in_front(behind: Behind, folder: Path, **settings: Any) -> AsyncIterator[Chain]:
    async with in_front_of(behind.url, folder, **settings) as running:
        await running.ready()
        yield running


async def test_an_unknown_path_goes_through_with_method_query_body_and_headers(
    chain: Chain, behind: Behind
) -> None:
    headers = {
        "x-request-id": "a-1",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "vendor=1",
        "Authorization": "Bearer secret",
        "User-Agent": "tests",
    }
    url = chain.url("/generate%2Fa/b?x=1%202&y")
    async with chain.session.put(url, data=b"hello", headers=headers) as response:
        assert (response.status, await response.read()) == (200, b"hello")
        assert response.headers["x-theirs"] == "1"
    (request,) = behind.seen
    assert (request.method, request.raw_path) == ("PUT", "/generate%2Fa/b?x=1%202&y")
    assert {name: request.headers.get(name) for name in headers} == headers
    assert await settled(chain, Outcome.COMPLETED) == 1
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
    async with chain.session.get(chain.url("/x"), allow_redirects=False) as response:
        assert (response.status, response.reason) == (status, "Theirs")
        assert await response.read() == b"theirs"
        assert response.headers["Retry-After"] == "7"
        assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
    outcome = Outcome.COMPLETED if status < 400 else Outcome.FAILED
    assert await settled(chain, outcome) == 1
    await assert_books_balance(chain)


async def test_both_directions_are_streamed(chain: Chain, behind: Behind) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for piece in request.content.iter_any():
            await response.write(piece.upper())
        return response

    behind.handle = handle
    pieces: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def body() -> AsyncIterator[bytes]:
        while (piece := await pieces.get()) is not None:
            yield piece

    pieces.put_nowait(b"one")
    async with chain.session.post(chain.url("/stream"), data=body()) as response:
        # Each piece comes back before the next one is sent.
        for sent, following in ((b"ONE", b"two"), (b"TWO", b"three"), (b"THREE", None)):
            assert await response.content.readany() == sent
            pieces.put_nowait(following)
        assert await response.content.readany() == b""
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
    url = chain.url(chain.infer_path)
    async with chain.session.post(url, json=document, headers=headers) as response:
        assert response.status == 200
        assert json.loads(await response.read()) == document
    assert behind.seen[0].path == chain.infer_path
    assert await settled(chain, Outcome.COMPLETED) == 1
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
    assert not behind.seen
    await assert_books_balance(chain)


async def test_a_large_body_is_refused_declared_or_not(tmp_path: Path, behind: Behind) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 10_000

    async with in_front(behind, tmp_path, max_body_bytes=100_000) as chain:
        async with chain.session.post(chain.url("/x"), data=b"x" * 100_001) as response:
            assert response.status == 413
        assert not behind.seen
        async with chain.session.post(chain.url("/x"), data=endless()) as response:
            assert response.status == 413
        assert not behind.bodies
        await assert_books_balance(chain)


async def test_time_is_limited_before_the_answer_and_within_it(
    tmp_path: Path, behind: Behind
) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60.0)
        raise AssertionError

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        return await never(request)

    settings = BatchSettings(request_timeout_seconds=1.0)
    async with in_front(behind, tmp_path, settings=settings) as chain:
        behind.handle = never
        async with chain.session.get(chain.url("/x")) as response:
            assert response.status == 504
            assert response.headers["x-request-outcome"] == "expired"
        behind.handle = half
        async with chain.session.get(chain.url("/x")) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        assert await settled(chain, Outcome.EXPIRED) == 2
        await assert_books_balance(chain)


async def test_an_answer_that_breaks_off_never_looks_whole(chain: Chain, behind: Behind) -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    behind.handle = breaks
    async with chain.session.get(chain.url("/x")) as response:
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    await assert_books_balance(chain)
    assert await settled(chain, Outcome.FAILED) == 1


async def test_who_leaves_is_counted_and_the_server_is_told(chain: Chain, behind: Behind) -> None:
    left = asyncio.Event()
    began = asyncio.Event()

    async def waits(request: web.Request) -> web.StreamResponse:
        began.set()
        try:
            await asyncio.sleep(60.0)
        finally:
            left.set()
        raise AssertionError

    behind.handle = waits
    caller = asyncio.create_task(chain.session.get(chain.url("/x")))
    await began.wait()
    caller.cancel()
    await asyncio.wait_for(left.wait(), 5.0)
    await assert_books_balance(chain)
    assert await settled(chain, Outcome.CANCELLED) == 1


async def test_so_many_pass_at_once_and_no_more(chain: Chain, behind: Behind) -> None:
    release = asyncio.Event()

    async def waits(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    async def one() -> int:
        async with chain.session.get(chain.url("/x")) as response:
            return response.status

    behind.handle = waits
    callers = [asyncio.create_task(one()) for _ in range(140)]
    refused = 0
    async with asyncio.timeout(10.0):
        while refused < 12:  # all that are refused are answered at once
            await asyncio.sleep(0.01)
            refused = sum(caller.done() for caller in callers)
    release.set()
    statuses = await asyncio.gather(*callers)
    assert (statuses.count(200), statuses.count(429)) == (128, 12)
    await assert_books_balance(chain)


async def test_a_drain_waits_for_what_passes_through(chain: Chain, behind: Behind) -> None:
    release = asyncio.Event()

    async def waits(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response(text="done")

    async def one() -> tuple[int, str]:
        async with chain.session.get(chain.url("/x")) as response:
            return response.status, await response.text()

    behind.handle = waits
    caller = asyncio.create_task(one())
    await chain.until("batchedmodel_requests_accepted_total", lambda value: value == 1)
    drain = asyncio.create_task(chain.admin("/drain"))
    await chain.sidecar.wait_for("INFO draining")
    async with chain.session.get(chain.url("/y")) as response:
        assert response.status == 503
        assert response.headers["x-request-outcome"] == "draining"
    await asyncio.sleep(0.3)
    assert not drain.done()
    release.set()
    assert await drain == (200, "empty\n")
    assert await caller == (200, "done")


async def test_a_server_that_is_gone_is_502(tmp_path: Path) -> None:
    behind = Behind()
    async with behind.serving():
        stack = in_front(behind, tmp_path)
        chain = await stack.__aenter__()
    try:
        async with chain.session.get(chain.url("/x")) as response:
            assert response.status == 502
            assert response.headers["x-request-outcome"] == "failed"
        await assert_books_balance(chain)
    finally:
        await stack.__aexit__(None, None, None)


async def test_nothing_passes_through_to_our_own_server(tmp_path: Path) -> None:
    async with echo_chain(tmp_path, EVERY_DATATYPE) as chain:
        for path in ("/v2/models/m/events", "/v2/models/m/profile", "/anything"):
            async with chain.session.get(chain.url(path)) as response:
                assert response.status == 404, path
        url, headers = chain.url(chain.infer_path), {"x-batch": "off"}
        async with chain.session.post(url, json={"inputs": [ROW]}, headers=headers) as response:
            assert response.status == 400
            assert "x-batch" in (await response.json())["error"]
