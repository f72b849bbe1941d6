"""How an answer of a sidecar is read, in whatever parts it comes."""

import asyncio

import pytest

from batchedmodel_kube.admin_client import LARGEST_HEAD, Connection

LARGEST_BODY = 16_384
BODY = b'{"instance": "first"}'
HEAD = f"HTTP/1.1 200 OK\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


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
    connection, transport = Connection(LARGEST_BODY), Transport()
    connection.connection_made(transport)
    asking = asyncio.create_task(connection.ask(b"?"))
    await asyncio.sleep(0)
    for part in parts:
        connection.data_received(part)
    if ends:
        connection.connection_lost(None)
    answer = await asyncio.wait_for(asking, 5)
    assert connection.is_open == (not ends)
    return answer.status, answer.body


@pytest.mark.parametrize("size", [1, 2, 7, 60, 10_000])
async def test_an_answer_is_read_in_whatever_parts_it_comes(size: int) -> None:
    text = HEAD + BODY
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    assert await answered(*parts) == (200, BODY)


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
        pytest.param(HEAD + BODY + b" ", id="more than it says"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (LARGEST_BODY + 1), id="a body without end"
        ),
    ],
)
async def test_what_is_no_answer_of_a_sidecar_ends_the_connection(text: bytes) -> None:
    with pytest.raises(ValueError, match="no HTTP|more than"):
        await answered(text)
