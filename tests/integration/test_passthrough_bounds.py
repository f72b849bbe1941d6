"""What passes through is bounded in size, time and number, and whatever ends it is counted."""

import asyncio
import io
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import Outcome
from support.behind import Behind, in_front
from support.books import assert_books_balance, settled
from support.chain import Chain
from support.large_bodies import MEBIBYTE, helper_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, stands_behind: Behind
) -> AsyncIterator[Chain]:
    """One for all, which must keep its books through all of it."""
    async with in_front(stands_behind, tmp_path_factory.mktemp("bounds")) as chain:
        yield chain
        await assert_books_balance(chain)


@pytest.fixture
def behind(stands_behind: Behind) -> Behind:
    stands_behind.forget()
    return stands_behind


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain, behind: Behind) -> Chain:
    await running.goes_by(BatchSettings())
    await assert_books_balance(running)
    return running


@pytest_asyncio.fixture(loop_scope="module")
async def drained(tmp_path: Path, behind: Behind) -> AsyncIterator[Chain]:
    """One for a single test, which drains it."""
    async with in_front(behind, tmp_path) as chain:
        yield chain


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
    chain: Chain, behind: Behind
) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60.0)
        raise AssertionError

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        return await never(request)

    await chain.goes_by(BatchSettings(request_timeout_seconds=1.0))
    before = await settled(chain, Outcome.EXPIRED)
    behind.handle = never
    async with chain.session.get(chain.url("/x")) as response:
        assert response.status == 504
        assert response.headers["x-request-outcome"] == "expired"
    behind.handle = half
    async with chain.session.get(chain.url("/x")) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    assert await settled(chain, Outcome.EXPIRED) == before + 2
    await assert_books_balance(chain)


@pytest.mark.parametrize("framing", [b"Content-Length: 4", b"Transfer-Encoding: chunked"])
async def test_a_server_is_not_asked_before_a_body_is_here(
    chain: Chain, behind: Behind, framing: bytes
) -> None:
    chunked = b"chunked" in framing
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    head = b"POST /x HTTP/1.1\r\nHost: m\r\nConnection: close\r\n" + framing + b"\r\n\r\n"
    writer.write(head + (b"2\r\nbo\r\n" if chunked else b"bo"))
    for _ in range(5):
        async with chain.session.get(chain.url("/y")) as response:
            assert response.status == 200
    assert {request.path for request in behind.seen} == {"/y"}
    writer.write(b"2\r\ndy\r\n0\r\n\r\n" if chunked else b"dy")
    assert b"body" in await reader.read()
    writer.close()
    assert behind.bodies[-1] == b"body"
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
    before = await settled(chain, Outcome.FAILED)
    async with chain.session.get(chain.url("/x")) as response:
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    await assert_books_balance(chain)
    assert await settled(chain, Outcome.FAILED) == before + 1


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
    before = await settled(chain, Outcome.CANCELLED)
    caller = asyncio.create_task(chain.session.get(chain.url("/x")))
    await began.wait()
    caller.cancel()
    await asyncio.wait_for(left.wait(), 5.0)
    await assert_books_balance(chain)
    assert await settled(chain, Outcome.CANCELLED) == before + 1


async def test_so_many_of_one_address_pass_at_once_and_others_beside_them(
    chain: Chain, behind: Behind
) -> None:
    release = asyncio.Event()

    async def waits(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    async def one(session: aiohttp.ClientSession) -> int:
        async with session.get(chain.url("/x")) as response:
            return response.status

    behind.handle = waits
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.66", 0))
    async with aiohttp.ClientSession(connector=connector) as other:
        callers = [asyncio.create_task(one(chain.session)) for _ in range(140)]
        refused = 0
        async with asyncio.timeout(10.0):
            while refused < 28:  # all that are refused are answered at once
                await asyncio.sleep(0.01)
                refused = sum(caller.done() for caller in callers)
        beside = asyncio.create_task(one(other))
        while len(behind.seen) < 113:
            assert not beside.done()
            await asyncio.sleep(0.01)
        release.set()
        statuses = await asyncio.gather(*callers)
        assert (statuses.count(200), statuses.count(429)) == (112, 28)
        assert await beside == 200
    await assert_books_balance(chain)


async def test_a_drain_waits_for_what_passes_through(drained: Chain, behind: Behind) -> None:
    release = asyncio.Event()

    async def waits(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response(text="done")

    async def one() -> tuple[int, str]:
        async with drained.session.get(drained.url("/x")) as response:
            return response.status, await response.text()

    behind.handle = waits
    caller = asyncio.create_task(one())
    await drained.until("batchedmodel_requests_accepted_total", lambda value: value == 1)
    drain = asyncio.create_task(drained.drain())
    await drained.sidecar.wait_for("INFO draining")
    async with drained.session.get(drained.url("/y")) as response:
        assert response.status == 503
        assert response.headers["x-request-outcome"] == "draining"
    await asyncio.sleep(0.3)
    assert not drain.done()
    release.set()
    assert await drain == (200, "empty\n")
    assert await caller == (200, "done")


async def test_what_is_expected_in_vain_is_refused_and_counted_once(
    chain: Chain, behind: Behind
) -> None:
    offered = "batchedmodel_requests_offered_total"
    rejected = "batchedmodel_requests_rejected_total"
    were_offered = await chain.metric(offered)
    were_rejected = await chain.metric(rejected, reason="invalid")
    headers = {"Expect": "a-miracle"}
    async with chain.session.post(chain.url("/x"), data=b"body", headers=headers) as response:
        assert response.status == 417
        assert response.headers["x-request-outcome"] == "invalid"
    assert not behind.seen
    await assert_books_balance(chain)
    assert await chain.metric(offered) == were_offered + 1
    assert await chain.metric(rejected, reason="invalid") == were_rejected + 1


async def test_what_was_read_when_the_drain_had_ended_does_not_pass_through(
    drained: Chain, behind: Behind
) -> None:
    """A body of another model's form, which the helper reads for longer than the drain lasts."""
    url = drained.url(drained.infer_path)
    large = b'{"inputs": [], "more": "' + b"x" * MEBIBYTE + b'"}'
    async with drained.session.post(url, data=io.BytesIO(large)) as response:
        assert response.status == 200, "the server gets as it is what has no rows"
    assert behind.bodies == [large]
    helper = await helper_of(drained)
    os.kill(helper, signal.SIGSTOP)

    async def sent() -> tuple[int, str]:
        async with drained.session.post(url, data=io.BytesIO(large)) as response:
            return response.status, response.headers["x-request-outcome"]

    async with asyncio.TaskGroup() as group:
        caller = group.create_task(sent())
        await asyncio.sleep(0.5)  # it is read by now, or will be refused unread all the same
        assert await drained.drain() == (200, "empty\n")
        os.kill(helper, signal.SIGCONT)
    assert caller.result() == (503, "draining")
    assert behind.bodies == [large]
    await assert_books_balance(drained)


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
