"""Whatever stands at a pod's address: one question costs a second and a few bytes, and no more."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from batchedmodel_autoscaler.polling.sidecars import Sidecars
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.admin_client import NoAnswer, Whom
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
        asking.close()
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
        with pytest.raises(NoAnswer, match="no answer in time"):
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
        with pytest.raises(NoAnswer, match="no HTTP|more than"):
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
