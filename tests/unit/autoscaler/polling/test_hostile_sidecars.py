"""Whatever stands at a pod's address: one question costs a second and a few bytes, and no more."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from batchedmodel_autoscaler.errors import SidecarSilent
from batchedmodel_autoscaler.polling.sidecars import LARGEST_ANSWER, Connection, Sidecars
from batchedmodel_contract.kubernetes.names import ADMIN_PORT
from batchedmodel_contract.processes.admin_answer import LARGEST_HEAD
from batchedmodel_contract.processes.sidecar_api import Whom
from support.autoscaler_world import busy

ADDRESS = "127.0.69.1"
WHOM = Whom(model="minilm", pod="uid-1")
STATS = json.dumps(busy(1.0).to_mapping()).encode()
HEAD = f"HTTP/1.1 200 OK\r\nContent-Length: {len(STATS)}\r\n\r\n".encode()

Say = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Sidecar:
    """Says what it likes to each question."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await self._say(writer)
            await reader.read()
        except OSError:
            pass
        finally:
            self.ended.set()
            writer.close()


@asynccontextmanager
async def sidecar(say: Say) -> AsyncIterator[tuple[Sidecar, Sidecars]]:
    there, asking = Sidecar(say), Sidecars(10)
    server = await asyncio.start_server(there.serve, ADDRESS, ADMIN_PORT)
    try:
        yield there, asking
    finally:
        await asking.close()
        server.close()
        await there.ended.wait()


async def drop(writer: asyncio.StreamWriter, text: bytes) -> None:
    for byte in text:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def pour(writer: asyncio.StreamWriter, text: bytes) -> None:
    much = text * (65_536 // len(text) + 1)
    while True:
        writer.write(much)
        await writer.drain()


async def promise(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")


def drops(text: bytes) -> Say:
    return lambda writer: drop(writer, text)


def pours(first: bytes, text: bytes) -> Say:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        await pour(writer, text)

    return say


@pytest.mark.slow
@pytest.mark.parametrize(
    "say",
    [
        pytest.param(drops(HEAD), id="a head byte by byte"),
        pytest.param(drops(HEAD[:1]), id="one byte"),
        pytest.param(promise, id="a body that never comes"),
    ],
)
async def test_a_slow_answer_is_given_up_a_second_after_the_question(say: Say) -> None:
    async with sidecar(say) as (there, asking):
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(SidecarSilent, match="TimeoutError"):
            await asking.stats(ADDRESS, WHOM)
        assert 0.9 < loop.time() - began < 10  # a busy machine takes its time
        await asyncio.wait_for(there.ended.wait(), 10)


@pytest.mark.parametrize(
    "say",
    [
        pytest.param(pours(b"HTTP/1.1 200 OK\r\n", b"x: " + b"a" * 4000 + b"\r\n"), id="headers"),
        pytest.param(pours(b"HTTP/1.1 200 OK\r\nx: ", b"a" * 65_536), id="a header"),
        pytest.param(pours(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="other heads"),
        pytest.param(pours(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65_536), id="a body"),
        pytest.param(
            pours(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
            id="chunks",
        ),
        pytest.param(
            pours(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n", b" " * 65_536),
            id="a body that is as long as it says",
        ),
        pytest.param(pours(b"", HEAD + STATS), id="answers"),
    ],
)
async def test_an_answer_without_end_ends_its_connection(say: Say) -> None:
    async with sidecar(say) as (there, asking):
        with pytest.raises(SidecarSilent, match="nonsense"):
            await asking.stats(ADDRESS, WHOM)
        await asyncio.wait_for(there.ended.wait(), 10)


async def test_what_is_said_unasked_ends_the_connection_that_was_kept() -> None:
    """It would lie in memory until the next question, as much as the pod likes to send."""

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + STATS)
        await writer.drain()
        await heard.wait()
        await pour(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 65000\r\n\r\n" + b" " * 65_000)

    heard = asyncio.Event()
    async with sidecar(say) as (there, asking):
        assert (await asking.stats(ADDRESS, WHOM)).instance == "first"
        heard.set()
        await asyncio.wait_for(there.ended.wait(), 10)


class Transport(asyncio.Transport):
    """Takes all and does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data == b"?"

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


async def answered(*parts: bytes, ends: bool = False) -> tuple[int, bytes]:
    """Status and body of an answer that comes in these parts."""
    connection, transport = Connection(), Transport()
    connection.connection_made(transport)
    asking = asyncio.create_task(connection.ask(b"?"))
    await asyncio.sleep(0)
    for part in parts:
        connection.data_received(part)
    if ends:
        connection.connection_lost(None)
    head, body = await asyncio.wait_for(asking, 5)
    assert connection.is_open == (not ends)
    return head.status, body


@pytest.mark.parametrize("size", [1, 2, 7, 60, 10_000])
async def test_an_answer_is_read_in_whatever_parts_it_comes(size: int) -> None:
    text = HEAD + STATS
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    assert await answered(*parts) == (200, STATS)


async def test_an_answer_without_a_length_is_as_long_as_its_connection() -> None:
    text = b"HTTP/1.0 503 Service Unavailable\r\nServer: x\r\n\r\nnot yet"
    assert await answered(text, ends=True) == (503, b"not yet")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"HTTP/2 200 OK\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 2000 OK\r\n\r\n", id="no status"),
        pytest.param(b"\r\n\r\n", id="no head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="less than nothing"),
        pytest.param("HTTP/1.1 200 OK\r\nContent-Length: ²\r\n\r\n".encode(), id="no digits"),
        pytest.param(b"x" * LARGEST_HEAD, id="a head without end"),
        pytest.param(HEAD + STATS + b" ", id="more than it says"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (LARGEST_ANSWER + 1), id="a body without end"
        ),
    ],
)
async def test_what_is_no_answer_of_a_sidecar_ends_the_connection(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"sidecar's|more than"):
        await answered(text)
