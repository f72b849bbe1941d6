"""What any pod of the cluster may take of the autoscaler's ports, over real sockets.

Each of these made it grow, 0.2 to 2 MB for a connection, until its container's memory was over.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from aiohttp import web

from batchedmodel_autoscaler.metrics_api.certificates import make_identity, server_context
from batchedmodel_contract.processes.listening import EVERY_ADDRESS
from batchedmodel_http.ports.listener import Bounds, Listener

HASTY = Bounds(head_seconds=0.4, idle_seconds=1.5)
QUESTION = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
PLAIN, TLS = "plain", "TLS"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_callers: list[asyncio.StreamWriter] = []
"""Of the present test, to be ended with it."""


async def _live(request: web.Request) -> web.Response:
    return web.Response(text="live\n")


async def _fail(request: web.Request) -> web.Response:
    raise RuntimeError("a bug of ours")


async def _read(request: web.Request) -> web.Response:
    await request.read()
    await asyncio.sleep(1.0)
    return web.Response(text="live\n")


async def _large(request: web.Request) -> web.Response:
    return web.Response(body=b"x" * 30_000_000)


@asynccontextmanager
async def listening(
    kind: str = PLAIN, bounds: Bounds | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    application = web.Application()
    application.router.add_get("/livez", _live)
    application.router.add_get("/fail", _fail)
    application.router.add_get("/large", _large)
    application.router.add_post("/read", _read)
    listener = Listener(application, host, 0, bounds)
    identity = make_identity(["a.b.svc"], datetime.now(tz=UTC))
    await listener.use(server_context(identity, "") if kind == TLS else None)
    try:
        yield listener.port
    finally:
        await listener.close()
        for writer in _callers:
            writer.transport.abort()
        _callers.clear()
        await asyncio.sleep(0)


async def connected(port: int, kind: str = PLAIN, *, of: str = "127.0.66.1") -> Streams:
    context = None
    if kind == TLS:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    streams = await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=(of, 0))
    _callers.append(streams[1])
    return streams


async def has_ended(streams: Streams, within: float = 0.2) -> bool:
    try:
        return await asyncio.wait_for(streams[0].read(1), within) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


async def rest_of(streams: Streams) -> bytes:
    read = bytearray()
    with suppress(OSError):
        while part := await asyncio.wait_for(streams[0].read(1_000_000), 5):
            read += part
    return bytes(read)


async def answer(streams: Streams, question: bytes = QUESTION) -> bytes:
    streams[1].write(question)
    head = await asyncio.wait_for(streams[0].readuntil(b"\r\n\r\n"), 10)
    if b"Content-Length: 5\r\n" in head:
        await streams[0].readexactly(5)
    return head.partition(b"\r\n")[0]


async def open_ones(crowd: list[Streams]) -> int:
    return (await asyncio.gather(*map(has_ended, crowd))).count(False)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_callers_of_both_address_families_are_answered(address: str) -> None:
    async with listening(host=EVERY_ADDRESS) as port:
        streams = await asyncio.open_connection(address, port)
        _callers.append(streams[1])
        assert await answer(streams) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("kind", [PLAIN, TLS])
async def test_a_crowd_of_connections_is_bounded_and_others_get_in(kind: str) -> None:
    async with listening(kind) as port:
        crowd = []
        for number in range(150):
            of = f"127.0.66.{1 + number % 3}"
            # Without a word, TLS' own included: who waits for that costs most.
            crowd.append(await connected(port, of=of))
            await asyncio.sleep(0)
        assert await open_ones(crowd) == Bounds().connections
        # Who comes anew is answered, from the crowd's own addresses too.
        for of in ("127.0.66.9", "127.0.66.1"):
            assert await answer(await connected(port, kind, of=of)) == b"HTTP/1.1 200 OK"


async def test_of_one_address_half_are_open_at_most() -> None:
    async with listening() as port:
        crowd = [await connected(port) for _ in range(100)]
        await asyncio.sleep(0.1)
        assert await open_ones(crowd) == Bounds().of_address


async def test_what_is_being_answered_is_not_idle_and_its_body_is_no_new_head() -> None:
    """Who waited for the end of a drain was cut off after the time of an idle connection."""
    async with listening(bounds=replace(HASTY, idle_seconds=0.5)) as port:
        streams = await connected(port)
        streams[1].write(b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n")
        await asyncio.sleep(0.1)
        assert await answer(streams, b"body") == b"HTTP/1.1 200 OK"
        assert await has_ended(streams, within=5.0)


async def test_who_has_asked_least_lately_gives_way() -> None:
    async with listening(bounds=replace(Bounds(), of_address=3)) as port:
        asking, silent = await connected(port), await connected(port)
        await answer(asking)
        await connected(port)
        await connected(port)
        assert await has_ended(silent)
        assert await answer(asking) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("kind", [PLAIN, TLS])
@pytest.mark.parametrize("said", [b"", QUESTION[:-2], b"\r\n\r\n\r\n"])
async def test_a_head_that_does_not_come_is_not_waited_for(kind: str, said: bytes) -> None:
    async with listening(kind, HASTY) as port:
        streams = await connected(port, kind)
        streams[1].write(said)
        assert not await has_ended(streams, 0.1)
        assert await has_ended(streams, 5)


async def test_tls_that_does_not_come_is_not_waited_for() -> None:
    async with listening(TLS, HASTY) as port:
        streams = await connected(port)
        assert not await has_ended(streams, 0.1)
        assert await has_ended(streams, 5)


async def test_a_head_that_comes_byte_by_byte_has_the_same_time() -> None:
    async with listening(bounds=HASTY) as port:
        streams = await connected(port)
        ended = asyncio.create_task(has_ended(streams, 60))
        begun = time.monotonic()
        streams[1].write(b"GET /livez HTTP/1.1\r\nX: ")
        while not ended.done():
            streams[1].write(b"a")
            await asyncio.sleep(0.02)
        assert ended.result()
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("kind", [PLAIN, TLS])
@pytest.mark.parametrize("first", [True, False])
async def test_a_head_is_bounded_in_all(kind: str, first: bool) -> None:
    async with listening(kind) as port:
        streams = await connected(port, kind)
        if not first:
            await answer(streams)
        fields = b"".join(b"X%d: %s\r\n" % (number, b"a" * 4000) for number in range(5))
        streams[1].write(QUESTION[:-2] + fields)
        assert await has_ended(streams, 3)


async def test_a_head_within_the_bounds_is_answered() -> None:
    async with listening() as port:
        fields = b"".join(b"X%d: %s\r\n" % (number, b"a" * 4000) for number in range(4))
        streams = await connected(port)
        assert (
            await answer(streams, QUESTION[:-2] + fields[:-2] + b"\r\n\r\n") == b"HTTP/1.1 200 OK"
        )


@pytest.mark.parametrize("kind", [PLAIN, TLS])
async def test_who_has_asked_may_be_idle_for_longer(kind: str) -> None:
    async with listening(kind, HASTY) as port:
        streams = await connected(port, kind)
        for _ in range(3):
            assert await answer(streams) == b"HTTP/1.1 200 OK"
            await asyncio.sleep(0.6)
        assert await has_ended(streams, 5)


async def test_a_second_head_has_no_more_time_than_the_first() -> None:
    async with listening(bounds=replace(HASTY, idle_seconds=60)) as port:
        streams = await connected(port)
        await answer(streams)
        streams[1].write(b"GET ")
        assert await has_ended(streams, 5)


async def test_who_does_not_read_an_answer_is_not_waited_for() -> None:
    async with listening(bounds=replace(HASTY, idle_seconds=0.3)) as port:
        streams = await connected(port)
        streams[1].write(QUESTION.replace(b"livez", b"large"))
        await asyncio.sleep(4)
        assert len(await rest_of(streams)) < 30_000_000


@pytest.mark.parametrize("kind", [PLAIN, TLS])
async def test_nobody_writes_the_log_from_outside(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with listening(kind) as port:
        connect = partial(connected, port, kind)
        for said in (
            b"GET nonsense\r\n\r\n",
            b"\x16\x03\x01\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /\x00 HTTP/1.1\r\n\r\n",
            b"GET http://[::1 HTTP/1.1\r\n\r\n",
            b"GET http://a:b/ HTTP/1.1\r\n\r\n",
            b"CONNECT x HTTP/1.1\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nHost: [\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nExpect: much\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nCookie: \xff=;=\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
            b"POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
            b"GET /livez HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n",
        ):
            streams = await connect()
            streams[1].write(said)
            await asyncio.sleep(0.05)
        if kind == TLS:
            plain = await connected(port)
            plain[1].write(QUESTION)
            assert await has_ended(plain, 5)
        await asyncio.sleep(0.1)
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_bug_of_ours_is_written_down(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as port:
        await answer(await connected(port), QUESTION.replace(b"livez", b"fail"))
    assert "a bug of ours" in caplog.text
