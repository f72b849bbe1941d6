"""An upstream server's answers that have no body reach callers without one, and without a length.

What stood behind such a head would be taken for the next answer of the connection.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.blunt_server import ABOUT, READY, BluntServer
from support.books import assert_books_balance
from support.chain import Chain
from support.raw_caller import RawCaller, request
from support.row_server import in_front

pytestmark = pytest.mark.asyncio(loop_scope="module")

BATCHED: Final = "/v1/models/m:predict"
ALONE: Final = "/v1/models/other:predict"
ASKED: Final = b'{"instances": [1]}'
SECONDS: Final = 20.0


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
    async with in_front(url, tmp_path_factory.mktemp("blunt"), ServerProtocol.V1) as chain:
        yield chain


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain, server: BluntServer) -> Chain:
    """The one that all share, for which it is no matter how the last batches failed."""
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n" + b'{"predictions":[1]}'
    async with running.session.post(running.url(BATCHED), data=ASKED) as response:
        assert response.status == 200
    return running


async def told(chain: Chain, path: str) -> bytes:
    """The head that answers, once the next answer of the same connection was seen to be whole."""
    async with asyncio.timeout(SECONDS), RawCaller.calling(chain.port) as caller:
        caller.sends(request(path, ASKED))
        head = await caller.permission()
        if length := re.search(rb"(?i)\r\nContent-Length: (\d+)", head):
            await caller.body(int(length[1]))
        caller.sends(request(ABOUT, method="GET"))
        assert await caller.answer() == (200, READY)
    return head


# Behind the heads of the others there is no body, whatever they say.
@pytest.mark.parametrize(("status", "body"), [(204, b""), (205, b""), (205, b"hello"), (304, b"")])
async def test_what_passes_as_it_is_has_no_body_and_no_length_that_says_so(
    chain: Chain, server: BluntServer, status: int, body: bytes
) -> None:
    server.answer = b"HTTP/1.1 %d X\r\nx-about: a\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )
    head = await told(chain, ALONE)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"x-about: a" in head
    lengths = re.findall(rb"(?i)content-length: .*|transfer-encoding: .*", head)
    assert lengths == ([b"Content-Length: 0\r"] if status == 205 else [])
    await assert_books_balance(chain)


async def test_a_batch_that_is_told_of_no_change_passes_that_on_as_a_head_alone(
    chain: Chain, server: BluntServer
) -> None:
    server.answer = b"HTTP/1.1 304 X\r\nx-about: a\r\nContent-Length: 7\r\n\r\n"
    head = await told(chain, BATCHED)
    assert head.startswith(b"HTTP/1.1 304 ")
    assert b"content-" not in head.lower()
    await assert_books_balance(chain)


@pytest.mark.parametrize("status", [204, 205])
async def test_a_batch_without_an_answer_is_nobodys_answer(
    chain: Chain, server: BluntServer, status: int
) -> None:
    server.answer = b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status
    assert (await told(chain, BATCHED)).startswith(b"HTTP/1.1 502 ")
    await assert_books_balance(chain)


@pytest.mark.parametrize("path", [ALONE, BATCHED])
async def test_nobody_is_told_of_a_change_of_protocol_that_it_did_not_ask_for(
    chain: Chain, server: BluntServer, path: str
) -> None:
    server.answer = b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    assert (await told(chain, path)).startswith(b"HTTP/1.1 502 ")
    await assert_books_balance(chain)
