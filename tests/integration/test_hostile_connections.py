"""What callers that break off, trickle or do not read cost others, over real sockets."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from process_cpu import cpu_seconds
from support.books import assert_books_balance
from support.chain import Chain, running_chain
from support.confined_sidecar import DESCRIPTORS
from support.process_memory import resident_bytes
from support.raw_caller import RawCaller, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

INFER: Final = "/v2/models/m/infer"
MEBIBYTE: Final = 1 << 20
BUDGET: Final = 64 * MEBIBYTE
CUT_WITHIN: Final = 10.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One for all, whose books must balance and whose log must be clean at the end."""
    async with running_chain(
        tmp_path_factory.mktemp("hostile"),
        handler="simulated",
        parameters={"fixedSeconds": "0.001", "rowSeconds": "0"},
        settings=BatchSettings(policy=PolicyName.GREEDY),
        max_body_bytes=16 * MEBIBYTE,
        max_queue_bytes=BUDGET,
    ) as running:
        yield running
        await assert_books_balance(running)
        assert not [line for line in running.sidecar.lines if " ERROR " in line]


def row(length: int) -> bytes:
    entry = {"name": "x", "datatype": "INT64", "shape": [1, length], "data": [1234567] * length}
    return json.dumps({"inputs": [entry]}).encode()


def binary_row(length: int) -> tuple[bytes, str]:
    """A body whose numbers are binary, as those of its answer are, and how long its head is.

    Neither is made into values, which would take more memory than there is.
    """
    parameters = {"binary_data_size": 8 * length}
    entry = {"name": "x", "datatype": "INT64", "shape": [1, length], "parameters": parameters}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return head + bytes(8 * length), f"Inference-Header-Content-Length: {len(head)}"


async def answered(chain: Chain, within: float = 10.0) -> bool:
    async with asyncio.timeout(within), RawCaller.calling(chain.port) as caller:
        caller.sends(request(INFER, row(4)))
        return (await caller.answer())[0] == 200


BROKEN: Final = {
    "no chunk": [request("/nowhere", b"aa", chunks=1).removesuffix(b"0\r\n\r\n"), b"two\r\n"],
    "a large head": [b"POST /nowhere HTTP/1.1\r\nx: ", *[b"y" * 60_000] * 5],
    "a head that stops": [b"POST /nowhere HT"],
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
async def test_callers_that_broke_off_cost_nothing_when_they_have_left(
    chain: Chain, sent: list[bytes]
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        callers = [
            await stack.enter_async_context(RawCaller.calling(chain.port)) for _ in range(20)
        ]
        for piece in sent:
            for caller in callers:
                caller.sends(piece)
            await asyncio.sleep(0.1)
        await asyncio.sleep(3.0)
    assert await answered(chain)
    await asyncio.sleep(2.0)
    before = cpu_seconds(chain.sidecar.pid)
    await asyncio.sleep(3.0)
    assert cpu_seconds(chain.sidecar.pid) - before < 0.01 * 3.0


async def test_answers_that_nobody_reads_are_bounded_and_their_callers_cut_off(
    chain: Chain,
) -> None:
    before = resident_bytes(chain.sidecar.pid)
    large = request(INFER, *binary_row(MEBIBYTE))
    async with contextlib.AsyncExitStack() as stack:
        callers = []
        for _ in range(10):
            caller = await stack.enter_async_context(of_small_buffers(chain.port))
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it can
            with contextlib.suppress(ConnectionError):
                caller.sends(large)
                await caller.writer.drain()
            callers.append(caller)
            await asyncio.sleep(1.0)  # its body has gone, its answer is there
            assert await answered(chain)
        await asyncio.sleep(1.0)
        assert resident_bytes(chain.sidecar.pid) < before + BUDGET + 64 * MEBIBYTE
        await asyncio.sleep(CUT_WITHIN)
        for caller in callers:
            caller.writer.transport.resume_reading()  # type: ignore[attr-defined]  # it can
        ends = await asyncio.gather(*map(whole, callers))
    assert not all(ends), "nobody was cut off"
    assert await answered(chain)


@contextlib.asynccontextmanager
async def of_small_buffers(port: int) -> AsyncIterator[RawCaller]:
    """A caller for whom the kernel keeps little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock)
    try:
        yield RawCaller(reader, writer)
    finally:
        writer.transport.abort()


async def whole(caller: RawCaller) -> bool:
    """Whether a whole answer came, of whatever status."""
    try:
        async with asyncio.timeout(10.0):
            await caller.answer()
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


async def test_large_bodies_take_no_descriptors_of_connections(tmp_path: Path) -> None:
    """Neither those that never end nor those whose rows wait."""
    spaces = b" " * 300_000
    async with running_chain(
        tmp_path,
        handler="simulated",
        parameters={"fixedSeconds": "0.2", "rowSeconds": "0"},
        settings=BatchSettings(policy=PolicyName.GREEDY, max_batch_size=1),
        sidecar_module="support.confined_sidecar",
    ) as chain:
        async with contextlib.AsyncExitStack() as stack:

            async def comes(sent: bytes, count: int) -> list[RawCaller]:
                callers = []
                for _ in range(count):
                    caller = await stack.enter_async_context(RawCaller.calling(chain.port))
                    caller.sends(sent)
                    callers.append(caller)
                    await asyncio.sleep(0.005)
                return callers

            waiting = await comes(request(INFER, row(4) + spaces), 100)
            await comes(request(INFER, spaces)[:-1], 350)
            await asyncio.sleep(0.5)
            files = len(os.listdir(f"/proc/{chain.sidecar.pid}/fd"))
            assert files < 450 + DESCRIPTORS // 8 + 100
            # A hundred rows of 0.2 s each may wait before it.
            assert await answered(chain, within=60.0)
            told = [await asyncio.wait_for(caller.answer(), 60.0) for caller in waiting]
            assert {status for status, _ in told} <= {200, 429}
            assert len({body for status, body in told if status == 200}) == 1
            # Where files are scarce, large bodies lie elsewhere.
            async with RawCaller.calling(chain.port) as caller:
                caller.sends(request(INFER, row(4) + spaces))
                assert (await caller.answer())[0] == 200
        assert not [line for line in chain.sidecar.lines if " ERROR " in line]


async def test_a_head_has_ten_seconds(chain: Chain) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(20.0), RawCaller.calling(chain.port) as caller:
        caller.sends(b"POST /v2 HTTP/1.1\r\nHost: ")
        head = await caller.permission()
        assert head.startswith(b"HTTP/1.1 408 ")
        await caller.rest()
    assert 10.0 <= loop.time() - began < 15.0
