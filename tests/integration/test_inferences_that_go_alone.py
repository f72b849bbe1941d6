"""Inferences that no batch takes, before a server of one's own: in turns, which nobody holds."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from support.behind import Behind, in_front
from support.books import assert_books_balance
from support.chain import Chain

pytestmark = pytest.mark.asyncio(loop_scope="module")

INFER = "/v2/models/m/infer"
ALONE = {"x-batch": "off"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, stands_behind: Behind
) -> AsyncIterator[Chain]:
    """One for all, which must keep its books through all of it."""
    async with in_front(stands_behind, tmp_path_factory.mktemp("alone")) as chain:
        yield chain
        await assert_books_balance(chain)


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain, behind: Behind) -> Chain:
    await assert_books_balance(running)
    return running


@pytest.fixture
def behind(stands_behind: Behind) -> Behind:
    stands_behind.forget()
    return stands_behind


@pytest_asyncio.fixture(loop_scope="module")
async def other(chain: Chain) -> AsyncIterator[aiohttp.ClientSession]:
    """A caller at another address."""
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.66", 0))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def asked(
    session: aiohttp.ClientSession, chain: Chain, path: str = INFER, **headers: str
) -> int:
    async with session.post(chain.url(path), data=b"{}", headers=ALONE | headers) as response:
        await response.read()
        return response.status


@pytest.mark.parametrize("path", [INFER, "/v2/models/other/infer"])
async def test_they_are_as_few_at_a_time_as_batches_in_turns_of_callers(
    chain: Chain, behind: Behind, other: aiohttp.ClientSession, path: str
) -> None:
    """One caller's would otherwise be before everybody's batches, a hundred at a time."""
    running, most, order = 0, 0, list[str]()

    async def works(request: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order.append(request.headers["x-of"])
        await asyncio.sleep(0.02)
        running -= 1
        return web.Response()

    behind.handle = works
    many, few = {"x-of": "many"}, {"x-of": "few"}
    first = [asyncio.create_task(asked(chain.session, chain, path, **many)) for _ in range(20)]
    await asyncio.sleep(0.1)
    then = [asyncio.create_task(asked(other, chain, path, **few)) for _ in range(3)]
    assert await asyncio.gather(*first, *then) == [200] * 23
    assert most == 1
    last = len(order) - 1 - order[::-1].index("few")
    assert order[:last].count("many") <= 15


async def test_who_leaves_while_it_waits_or_is_served_takes_nobodys_turn(
    chain: Chain, behind: Behind, other: aiohttp.ClientSession
) -> None:
    began = asyncio.Event()

    async def works(request: web.Request) -> web.StreamResponse:
        began.set()
        await asyncio.sleep(60.0 if request.headers["x-of"] == "long" else 0.0)
        return web.Response()

    behind.handle = works
    leaving = [
        asyncio.create_task(asked(chain.session, chain, **{"x-of": "long"})) for _ in range(3)
    ]
    await began.wait()
    for one in leaving[::-1]:
        one.cancel()
    async with asyncio.timeout(5.0):
        assert await asked(other, chain, **{"x-of": "short"}) == 200


async def test_a_body_that_comes_slowly_holds_nobodys_turn(
    chain: Chain, behind: Behind, other: aiohttp.ClientSession
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    head = f"POST {INFER} HTTP/1.1\r\nHost: m\r\nx-batch: off\r\nContent-Length: 1000\r\n\r\n{{"
    writer.write(head.encode())
    await asyncio.sleep(0.2)
    async with asyncio.timeout(5.0):
        assert await asked(other, chain) == 200
    writer.close()


async def test_the_server_is_rid_of_an_answer_that_is_not_read(
    chain: Chain, behind: Behind, other: aiohttp.ClientSession
) -> None:
    rid = asyncio.Event()

    async def answers(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(48):
            await response.write(bytes(1_000_000))
        await response.write_eof()
        rid.set()
        return response

    behind.handle = answers
    _, writer = await asyncio.open_connection("127.0.0.1", chain.port, limit=1024)
    head = f"POST {INFER} HTTP/1.1\r\nHost: m\r\nx-batch: off\r\nContent-Length: 2\r\n\r\n{{}}"
    writer.write(head.encode())
    async with asyncio.timeout(5.0):
        await rid.wait()
    writer.close()


async def test_an_answer_that_is_not_read_holds_nobodys_turn(
    chain: Chain, behind: Behind, other: aiohttp.ClientSession
) -> None:
    async def answers(request: web.Request) -> web.StreamResponse:
        return web.Response(body=bytes(32_000_000 if "x-large" in request.headers else 1))

    behind.handle = answers
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port, limit=1024)
    fields = "Host: m\r\nx-batch: off\r\nx-large: 1\r\nContent-Length: 2"
    writer.write(f"POST {INFER} HTTP/1.1\r\n{fields}\r\n\r\n{{}}".encode())
    await reader.readuntil(b"\r\n")
    await asyncio.sleep(0.2)
    async with asyncio.timeout(5.0):
        assert await asked(other, chain) == 200
    writer.close()


async def test_one_that_the_server_breaks_off_is_told_so(chain: Chain, behind: Behind) -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    behind.handle = breaks
    assert await asked(chain.session, chain) == 502
    await assert_books_balance(chain)


async def test_who_leaves_within_its_answer_takes_nobodys_turn(
    chain: Chain, behind: Behind, other: aiohttp.ClientSession
) -> None:
    began = asyncio.Event()

    async def works(request: web.Request) -> web.StreamResponse:
        if request.headers["x-of"] == "short":
            return web.Response()
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"the beginning")
        began.set()
        await asyncio.sleep(60.0)
        return response

    behind.handle = works
    leaving = asyncio.create_task(asked(chain.session, chain, **{"x-of": "long"}))
    await began.wait()
    await asyncio.sleep(0.2)  # the beginning has come
    leaving.cancel()
    async with asyncio.timeout(5.0):
        assert await asked(other, chain, **{"x-of": "short"}) == 200
