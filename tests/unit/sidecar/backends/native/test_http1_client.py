"""Requests over a Unix socket, to a server of which the test writes every byte."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from batchedmodel_sidecar.backends.native.http1_client import (
    BrokenOff,
    Garbled,
    Http1Client,
    Unreachable,
)
from support.wire import Wire

HEAD = "POST /x HTTP/1.1\r\nHost: model"
SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Number: 7\r\n\r\nhello"
SECONDS = 10.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request(reader: asyncio.StreamReader) -> bytes:
    """The body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.split(b"Content-Length: ")[1]))


@asynccontextmanager
async def carrier_to(serve: Serve, folder: Path) -> AsyncIterator[tuple[Http1Client, list[int]]]:
    """A carrier, and a list with an element for each connection that was made."""
    made: list[int] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(len(made))
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the carrier hung up
        finally:
            writer.close()

    path = folder / "s"
    server = await asyncio.start_unix_server(connected, path)
    carrier = Http1Client(str(path))
    try:
        yield carrier, made
    finally:
        carrier.close()
        server.close()


def in_pieces(answer: bytes, size: int) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            for start in range(0, len(answer), size):
                writer.write(answer[start : start + size])
                await writer.drain()
                await asyncio.sleep(0)

    return serve


@pytest.mark.parametrize("size", [1, 7, 58, 1000])
async def test_an_answer_may_come_in_any_pieces(tmp_path: Path, size: int) -> None:
    async with carrier_to(in_pieces(SMALL, size), tmp_path) as (carrier, made):
        for _ in range(3):
            answer = await carrier.post(HEAD, [b"ab", b"c"], SECONDS)
            assert (answer.status, answer.headers["x-number"]) == (200, "7")
            assert bytes(answer.body) == b"hello"
        assert len(made) == 1  # one after the other needs no second connection


async def test_large_bodies_go_and_come_whole(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    parts = [bytes([number]) * 700_000 for number in range(5)]
    async with carrier_to(echo, tmp_path) as (carrier, _):
        assert bytes((await carrier.post(HEAD, parts, SECONDS)).body) == b"".join(parts)


async def test_what_goes_at_the_same_time_has_connections_of_its_own(tmp_path: Path) -> None:
    async with carrier_to(in_pieces(SMALL, 9), tmp_path) as (carrier, made):
        await asyncio.gather(*(carrier.post(HEAD, [b""], SECONDS) for _ in range(8)))
        assert len(made) == 8
        await asyncio.gather(*(carrier.post(HEAD, [b""], SECONDS) for _ in range(8)))
        assert len(made) == 12  # four were kept


async def test_an_answer_without_a_body_is_one(tmp_path: Path) -> None:
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    async with carrier_to(in_pieces(busy, 99), tmp_path) as (carrier, _):
        answer = await carrier.post(HEAD, [b"abc"], SECONDS)
        assert (answer.status, bytes(answer.body)) == (503, b"")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\nhello",
        b"nonsense\r\n\r\n",
        b"x" * 100_000,
        SMALL + SMALL,
    ],
    ids=["no length", "chunks", "too long", "negative", "no HTTP", "endless head", "two answers"],
)
async def test_what_our_server_never_sends_is_refused(tmp_path: Path, answer: bytes) -> None:
    async with carrier_to(in_pieces(answer, 1 << 20), tmp_path) as (carrier, made):
        for number in (1, 2):
            with pytest.raises(Garbled):
                await carrier.post(HEAD, [b"abc"], SECONDS)
            assert len(made) == number  # such a connection is not used again


async def test_no_answer_in_time_is_told_as_such_and_the_connection_is_given_up(
    tmp_path: Path,
) -> None:
    hung_up = asyncio.Event()

    async def first_says_nothing(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await request(reader)
        if len(made) > 1:
            writer.write(SMALL)
        with pytest.raises(asyncio.IncompleteReadError):
            await request(reader)
        hung_up.set()

    async with carrier_to(first_says_nothing, tmp_path) as (carrier, made):
        with pytest.raises(TimeoutError):
            await carrier.post(HEAD, [b"abc"], 0.05)
        await asyncio.wait_for(hung_up.wait(), SECONDS)
        assert (await carrier.post(HEAD, [b"abc"], SECONDS)).status == 200


@pytest.mark.looptime
async def test_the_time_to_connect_is_a_part_of_the_time_for_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()

    async def slow(make: Callable[[], asyncio.Protocol], path: str) -> tuple[Wire, object]:
        await asyncio.sleep(6.0)
        protocol = make()
        return Wire(protocol), protocol

    monkeypatch.setattr(loop, "create_unix_connection", slow)
    for seconds in (4.0, 10.0):
        began = loop.time()
        with pytest.raises(TimeoutError):
            await Http1Client("unused").post(HEAD, [b"abc"], seconds)
        assert loop.time() - began == pytest.approx(seconds)


async def test_an_end_in_the_middle_is_told_as_such(tmp_path: Path) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(SMALL[:-1])

    async with carrier_to(half, tmp_path) as (carrier, _):
        with pytest.raises(BrokenOff):
            await carrier.post(HEAD, [b"abc"], SECONDS)


async def test_a_connection_that_ends_idle_is_replaced(tmp_path: Path) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(SMALL)

    async with carrier_to(once, tmp_path) as (carrier, made):
        for number in (1, 2, 3):
            assert bytes((await carrier.post(HEAD, [b"abc"], SECONDS)).body) == b"hello"
            assert len(made) == number
            await asyncio.sleep(0.05)  # for the news of the end


async def test_a_server_that_says_so_is_left_alone_behind_its_answer(tmp_path: Path) -> None:
    last = SMALL.replace(b"X-Number: 7", b"Connection: close")
    async with carrier_to(in_pieces(last, 1000), tmp_path) as (carrier, made):
        for number in (1, 2):
            await carrier.post(HEAD, [b"abc"], SECONDS)
            assert len(made) == number


async def test_who_gives_up_hangs_up(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        assert await reader.read() == b""
        ended.set()

    async with carrier_to(slow, tmp_path) as (carrier, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await carrier.post(HEAD, [b"abc"], SECONDS)
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_request_that_is_closed_while_it_waits_leaves_no_error_behind(
    tmp_path: Path,
) -> None:
    """A batch that needs no task is closed where it waits, and hung up on by its connection."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told))
    async with carrier_to(in_pieces(SMALL, 9), tmp_path) as (carrier, _):
        await carrier.post(HEAD, [b""], SECONDS)
        asking = carrier.post(HEAD, [b"abc"], SECONDS)
        asking.send(None)
        asking.close()
        await asyncio.sleep(0.05)
    gc.collect()
    assert errors == []


async def test_nobody_there_is_not_a_loss(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        await Http1Client(str(tmp_path / "nothing")).post(HEAD, [b"abc"], SECONDS)
