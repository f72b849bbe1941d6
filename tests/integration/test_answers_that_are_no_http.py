"""An upstream server whose bytes are no HTTP is not taken for one that died: it is asked once.

And what it says unasked is not taken for an answer.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes import sidecar_api
from support.blunt_server import BluntServer
from support.books import assert_books_balance
from support.chain import Chain
from support.row_server import in_front

pytestmark = pytest.mark.asyncio(loop_scope="module")

BATCHED: Final = "/v1/models/m:predict"
ALONE: Final = "/v1/models/other:predict"
PASSED_ON: Final = "/v1/models/other/metadata"
BODY: Final = b'{"predictions":[1]}'
SOUND: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n" + BODY
CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ROOM: Final = 2**22
ENDLESS: Final = b'{"predictions":["' + b"x" * 2 * ROOM + b'"]}'
PACKED: Final = gzip.compress(ENDLESS)
SECONDS: Final = 20.0
"""Less than the time that a request has."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[BluntServer]:
    """One for all: each test has it answer otherwise."""
    async with BluntServer().serving() as blunt:
        yield blunt


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, server: BluntServer
) -> AsyncIterator[Chain]:
    url = f"http://127.0.0.1:{server.port}"
    folder = tmp_path_factory.mktemp("garbled")
    async with in_front(url, folder, ServerProtocol.V1, max_queue_bytes=ROOM) as chain:
        yield chain


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain, server: BluntServer) -> Chain:
    """The one that all share, for which it is no matter how the last batches failed."""
    server.answer, server.later = SOUND, b""
    server.goes_on.clear()
    assert (await told(running))[0] == 200
    server.asked = 0
    return running


async def told(chain: Chain, path: str = BATCHED) -> tuple[int, str]:
    """Status and body of an answer to one row."""
    async with (
        asyncio.timeout(SECONDS),
        chain.session.post(chain.url(path), json={"instances": [1]}) as response,
    ):
        return response.status, await response.text()


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\nContent-Length: 19\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\nContent-Length: 18\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\nContent-Length: 19\r\n\r\n" + BODY,
        CHUNKED + b"zz\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 19\r\n\r\n" + BODY,
    ],
    ids=["no head", "no header", "two lengths", "no length", "long", "no chunk", "no gzip"],
)
async def test_an_answer_that_cannot_be_read_is_nonsense_and_asked_for_once(
    chain: Chain, server: BluntServer, answer: bytes
) -> None:
    server.answer = answer
    status, text = await told(chain)
    assert status == 502
    assert "nonsense" in text
    assert server.asked == 1
    await assert_books_balance(chain)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(ENDLESS) + ENDLESS,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(PACKED)
        + PACKED,
        CHUNKED + b"%x\r\n" % len(ENDLESS) + ENDLESS,
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % 10**15,
        b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 9\r\nContent-Length: %d\r\n\r\n"
        % 10**15,
    ],
    ids=["declared", "bomb", "chunks", "said to be long", "said to be long and binary"],
)
async def test_an_answer_that_is_larger_than_all_callers_memory_is_not_taken(
    chain: Chain, server: BluntServer, answer: bytes
) -> None:
    server.answer = answer
    status, text = await told(chain)
    assert status == 502
    assert f"longer than the {ROOM // 4} bytes taken here" in text
    assert server.asked == 1
    await assert_books_balance(chain)


@pytest.mark.parametrize("path", [BATCHED, ALONE])
@pytest.mark.parametrize("seconds", [0.0, 0.05], ids=["at once", "later"])
async def test_bytes_that_are_no_chunk_keep_nobody_waiting_in_the_middle_of_an_answer(
    chain: Chain, server: BluntServer, path: str, seconds: float
) -> None:
    server.answer, server.later = CHUNKED + b"3\r\n{  \r\n", b"zz\r\n"
    async with asyncio.TaskGroup() as group:
        call = group.create_task(told(chain, path))
        while not server.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        await asyncio.sleep(seconds)
        server.goes_on.set()
    assert call.result()[0] == 502
    await assert_books_balance(chain)


async def test_bytes_that_are_no_chunk_break_off_what_passes_through(
    chain: Chain, server: BluntServer
) -> None:
    server.answer, server.later = CHUNKED + b"3\r\n{  \r\n", b"zz\r\n"
    async with chain.session.get(chain.url(PASSED_ON)) as response:
        server.goes_on.set()
        async with asyncio.timeout(SECONDS):
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
    await assert_books_balance(chain)


@pytest.mark.parametrize("path", [BATCHED, ALONE])
async def test_what_a_server_says_unasked_is_nobodys_answer(
    chain: Chain, server: BluntServer, path: str
) -> None:
    another = BODY.replace(b"1", b"2")
    server.later = SOUND.replace(BODY, another)
    assert await told(chain, path) == (200, BODY.decode())
    server.goes_on.set()
    while server.later:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    # It is in the sidecar's kernel now, and read before whatever comes later.
    assert (await chain.admin(sidecar_api.LIVE))[0] == 200
    assert await told(chain, path) == (200, BODY.decode())
    assert server.asked == 2
