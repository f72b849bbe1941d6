"""The client towards an upstream server, whose connections end when that likes."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from batchedmodel_sidecar.backends.upstream.client import Client
from batchedmodel_sidecar.backends.upstream.protocol import BackendRequest, NotReady
from batchedmodel_sidecar.errors import Lost, Unserved
from batchedmodel_sidecar.helper import shared_memory

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def client_of(serve: Serve) -> AsyncIterator[Client]:
    writers: list[asyncio.StreamWriter] = []

    async def serving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    async with await asyncio.start_server(serving, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = Client(f"http://127.0.0.1:{port}", keeps=lambda: True)
        try:
            yield client
        finally:
            await client.close()
            for writer in writers:
                writer.close()
                await writer.wait_closed()


async def serve_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ends a kept connection when the next request is on its way."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK)
    await reader.read(1)
    writer.close()


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
async def test_a_request_on_a_kept_connection_that_ends_goes_again_if_it_is_idempotent(
    method: str,
) -> None:
    async with client_of(serve_once) as client:
        first = await client.send("GET", "/x", (), None)
        assert await first.read() == b"ok"
        body = None if method == "GET" else (b"body",)
        if method == "POST":
            with pytest.raises(Lost):
                await client.send(method, "/x", (), body)
        else:
            again = await client.send(method, "/x", (), body)
            assert await again.read() == b"ok"


@pytest.mark.parametrize("location", ["http://[bad", "mailto:x"])
async def test_a_question_that_is_sent_nowhere_has_no_answer(location: str) -> None:
    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())
        writer.close()

    async with client_of(redirect) as client:
        with pytest.raises(NotReady):
            await client.ask("/x")


async def test_memory_of_an_answer_that_breaks_off_ends_before_the_error_does() -> None:
    """It stayed as long as the error, which a search keeps while it tries other rows."""

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\nno chunk\r\n" % (1_000_000, bytes(1_000_000)))
        await writer.drain()

    async with client_of(break_off) as client:
        before = shared_memory._closer.files
        request = BackendRequest(path="/x", parts=(b"{}",), headers=())
        with pytest.raises(Unserved, match="no HTTP") as error:
            await client.post(request, 60.0)
        async with asyncio.timeout(10.0):
            while shared_memory._closer.files > before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        del error


@pytest.mark.parametrize("size", [1000, 100_000_000])
async def test_a_refusal_that_is_compressed_is_bounded_as_it_is_read(size: int) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = gzip.compress(bytes(size))
        head = f"HTTP/1.1 400 x\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    async with client_of(refuse) as client:
        request = BackendRequest(path="/x", parts=(b"{}",), headers=())
        if size == 1000:
            assert len((await client.post(request, 60.0)).body) == size
        else:
            with pytest.raises(Unserved, match="longer than the 262144 bytes"):
                await client.post(request, 60.0)
