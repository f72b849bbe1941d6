"""How the load generator reads answers: whole ones, malformed ones, and those cut short."""

import asyncio

import pytest
from aiohttp import web

from load_generator import ClosedLoop, GivenArrivals, Target
from support.load_target import load, serving, serving_bytes


async def test_a_connection_that_the_server_closes_is_opened_again_without_an_error() -> None:
    connections: set[object] = set()

    async def close_after(request: web.Request) -> web.Response:
        connections.add(request.transport)
        response = web.Response(text="bye")
        response.force_close()
        return response

    async with serving(close_after) as port:
        result = await load(Target(port=port), ClosedLoop(connections=4, requests=40))

    assert result.statuses == {200: 40}
    assert result.errors.total == 0
    assert len(connections) == 40


async def test_an_idle_connection_that_was_closed_unannounced_is_opened_again() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    arrivals = GivenArrivals(offsets_microseconds=[0, 200_000, 400_000])

    async with serving_bytes(answer, closes=True) as port:
        result = await load(Target(port=port, method="GET"), arrivals)

    assert result.statuses == {200: 3}
    assert result.errors.total == 0


async def test_chunked_answers_are_read_to_their_end() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for size in (1, 70_000, 500_000):
            await response.write(b"c" * size)
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    async with serving(stream) as port:
        result = await load(Target(port=port), ClosedLoop(connections=4, requests=20))

    assert result.statuses == {200: 20}
    assert result.bytes_received > 20 * 570_001


WHOLE_ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "bare line feeds and odd case": b"HTTP/1.1 200 OK\ncONTENT-lENGTH:5  \n\nhello",
    "no reason phrase": b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
    "chunks with extension and trailer": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\nContent-Length: 1\r\n\r\n"
        b"A;x=y\r\n0123456789\r\n1 \r\nz\r\n0\r\nDigest: abc\r\n\r\n"
    ),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "interim answer first": (
        b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!"
    ),
    "equal lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n!",
    "long foreign header": (
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 4000 + b"\r\nContent-Length: 1\r\n\r\n!"
    ),
}
ANSWERS_ENDED_BY_CLOSING = {
    "no length": b"HTTP/1.1 200 OK\r\n\r\nto the end",
    "old version": b"HTTP/1.0 200 OK\r\n\r\nto the end",
    "coding without chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nto the end",
    "announced": b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 1\r\n\r\n!",
}
MALFORMED_ANSWERS = {
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "wrong version": b"HTTP/2.0 200 OK\r\n\r\n",
    "status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "unequal lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n!!",
    "huge length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "wrong chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "chunk longer than said": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n"
    ),
    "header without colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    "unasked upgrade": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
}
CUT_ANSWERS = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
    "no last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
}


@pytest.mark.parametrize("answer", WHOLE_ANSWERS.values(), ids=WHOLE_ANSWERS)
async def test_a_whole_answer_leaves_the_connection_usable(answer: bytes) -> None:
    async with serving_bytes(answer) as port:
        result = await load(Target(port=port, method="GET"), ClosedLoop(connections=1, requests=3))

    assert result.ok == 3
    assert result.bytes_received == 3 * len(answer)


@pytest.mark.parametrize("answer", ANSWERS_ENDED_BY_CLOSING.values(), ids=ANSWERS_ENDED_BY_CLOSING)
async def test_an_answer_may_end_with_its_connection(answer: bytes) -> None:
    async with serving_bytes(answer, closes=True) as port:
        result = await load(Target(port=port, method="GET"), ClosedLoop(connections=1, requests=3))

    assert result.ok == 3
    assert result.bytes_received == 3 * len(answer)


@pytest.mark.parametrize("answer", MALFORMED_ANSWERS.values(), ids=MALFORMED_ANSWERS)
async def test_a_malformed_answer_is_a_protocol_error(answer: bytes) -> None:
    async with serving_bytes(answer) as port:
        result = await load(Target(port=port, method="GET"), ClosedLoop(connections=1, requests=3))

    assert (result.requests, result.ok, result.errors.protocol) == (3, 0, 3)


@pytest.mark.parametrize("answer", CUT_ANSWERS.values(), ids=CUT_ANSWERS)
async def test_a_connection_closed_before_the_answer_is_whole_is_an_error(answer: bytes) -> None:
    async with serving_bytes(answer, closes=True) as port:
        result = await load(Target(port=port, method="GET"), ClosedLoop(connections=1, requests=3))

    assert (result.requests, result.ok, result.errors.reset) == (3, 0, 3)


async def test_an_answer_before_the_body_was_sent_counts() -> None:
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"

    async with serving_bytes(answer) as port:
        target = Target(port=port, bodies=[b"x" * 30_000_000])
        result = await load(target, ClosedLoop(connections=1, requests=2))

    assert result.statuses == {413: 2}
