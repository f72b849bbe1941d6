"""Large rows in memory that sidecar and model server share: right, bounded, gone with either."""

import asyncio
import os
import random
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import orjson
import pytest
import pytest_asyncio

from batchedmodel_contract.inference.tensors import HEADER_LENGTH
from compile_modules import compiled_modules
from load_generator import cache_folder
from support.chain import Chain, running_chain
from support.fetching import until
from support.process_memory import resident_shared_bytes
from support.raw_caller import RawCaller, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

ELEMENTS: Final = 150_000
SIZE: Final = 4 * ELEMENTS
ECHO: Final = {
    "fixedSeconds": "0.002",
    "rowSeconds": "0",
    "datatype": "FP32",
    "elements": str(ELEMENTS),
}
SHORT: Final = {**ECHO, "floats": "4"}
USED: Final = "large rows lie in memory that the model server sees"
MEBIBYTE: Final = 1 << 20


def pixels(seed: int) -> bytes:
    """Small numbers, all of them finite."""
    data = random.Random(seed).randbytes(SIZE // 2)
    return b"".join(data[at : at + 2] + b"\x80\x3f" for at in range(0, len(data), 2))


def image(data: bytes) -> tuple[bytes, dict[str, str]]:
    """A request of one row, which wants its answer in binary."""
    x = {"name": "x", "shape": [1, ELEMENTS], "datatype": "FP32"}
    sized = x | {"parameters": {"binary_data_size": len(data)}}
    head = orjson.dumps({"inputs": [sized], "parameters": {"binary_data_output": True}})
    return head + data, {HEADER_LENGTH: str(len(head))}


async def echoed(chain: Chain, data: bytes) -> bytes:
    body, headers = image(data)
    async with chain.session.post(chain.url(chain.infer_path), data=body, headers=headers) as got:
        answer = await got.read()
        assert got.status == 200, answer
        return answer[int(got.headers[HEADER_LENGTH]) :]


def read_bytes(pid: int) -> int:
    """Bytes that the process has read from files and sockets."""
    return _transferred(pid, "rchar")


def _transferred(pid: int, counter: str) -> int:
    found = re.search(rf"^{counter}: (\d+)$", Path(f"/proc/{pid}/io").read_text(), re.M)
    assert found
    return int(found[1])


def regions(pid: int) -> int:
    """How many regions the process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:batchedmodel-rows")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("echoing")
    compiled = compiled_modules(cache_folder(os.environ))  # as in the image
    async with running_chain(
        folder, handler="simulated", parameters=ECHO, compiled=compiled
    ) as running:
        await running.sidecar.wait_for(USED)
        yield running


async def test_rows_do_not_travel_to_the_model_server_and_answers_are_right(chain: Chain) -> None:
    sent = [pixels(seed) for seed in range(12)]
    before = read_bytes(chain.model.pid)
    assert await asyncio.gather(*(echoed(chain, data) for data in sent)) == sent
    assert read_bytes(chain.model.pid) - before < SIZE


async def test_answers_that_are_read_slowly_are_nobody_elses(chain: Chain) -> None:
    """What a slow reader has not read yet stays where it lies, whoever asks meanwhile."""
    mine = [pixels(seed) for seed in range(40, 60)]
    async with RawCaller.calling(chain.port) as caller:
        for data in mine:  # 12 MB, of which a connection takes a third
            body, headers = image(data)
            lines = [f"{name}: {value}" for name, value in headers.items()]
            caller.sends(request(chain.infer_path, body, *lines))
        await asyncio.sleep(0.5)
        for seed in range(30):
            assert await echoed(chain, pixels(seed)) == pixels(seed)
        for data in mine:
            status, answer = await caller.answer()
            assert (status, answer[-SIZE:] == data) == (200, True)


async def test_rows_of_large_and_small_bodies_share_a_batch(chain: Chain) -> None:
    large = [pixels(seed) for seed in range(4)]
    ones = b"\x00\x00\x80\x3f" * ELEMENTS
    text = {"name": "x", "shape": [1, ELEMENTS], "datatype": "FP32", "data": [1] * ELEMENTS}
    wanted = {"inputs": [text], "parameters": {"binary_data_output": True}}

    async def as_json() -> bytes:
        url = chain.url(chain.infer_path)
        async with chain.session.post(url, data=orjson.dumps(wanted)) as got:
            return (await got.read())[int(got.headers[HEADER_LENGTH]) :]

    for _ in range(3):
        work = [*(echoed(chain, data) for data in large), as_json(), as_json()]
        assert await asyncio.gather(*work) == [*large, ones, ones]


async def test_a_body_in_small_pieces_and_its_neighbours_arrive_whole(chain: Chain) -> None:
    first, second = pixels(1), pixels(2)
    body, headers = image(first)
    lines = [f"{name}: {value}" for name, value in headers.items()]
    sent = request(chain.infer_path, body, *lines)
    behind, _ = image(second)
    async with RawCaller.calling(chain.port) as caller:
        for start in range(0, len(sent), 90_001):
            caller.sends(sent[start : start + 90_001])
            await asyncio.sleep(0.002)
        caller.sends(request(chain.infer_path, behind, *lines) + sent)
        for data in (first, second, first):
            status, answer = await caller.answer()
            assert (status, answer[-SIZE:] == data) == (200, True)


async def test_callers_who_leave_in_any_phase_spoil_nobodys_row(chain: Chain) -> None:
    data = pixels(3)
    body, headers = image(pixels(4))
    sent = request(chain.infer_path, body, *(f"{name}: {one}" for name, one in headers.items()))

    async def leaves(size: int, seconds: float) -> None:
        async with RawCaller.calling(chain.port) as caller:
            caller.sends(sent[:size])
            await asyncio.sleep(seconds)

    chance = random.Random(5)
    for _ in range(5):
        leaving = [
            leaves(chance.randrange(1, len(sent) + 1), chance.uniform(0, 0.02)) for _ in range(20)
        ]
        found = await asyncio.gather(*(echoed(chain, data) for _ in range(5)), *leaving)
        assert found[:5] == [data] * 5


async def test_a_server_that_is_killed_and_started_again_shares_memory_anew(chain: Chain) -> None:
    data = pixels(6)
    for _ in range(2):
        asking = [asyncio.create_task(echoed(chain, data)) for _ in range(8)]
        await asyncio.sleep(0.02)
        after = len(chain.sidecar.lines)
        chain.model.send(signal.SIGKILL)
        await chain.model.ended()
        await chain.model.start()
        await chain.sidecar.wait_for(USED, after=after)
        await chain.ready(after=after)
        found = await asyncio.gather(*asking, return_exceptions=True)
        # Who came after its end was refused.
        assert all(one == data or "cannot be reached" in str(one) for one in found)
        assert await echoed(chain, data) == data
    assert regions(chain.model.pid) == 1
    assert regions(chain.sidecar.pid) == 1


async def test_a_sidecar_that_is_killed_leaves_nothing_with_the_server(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler="simulated", parameters=SHORT) as chain:
        await chain.sidecar.wait_for(USED)
        files = len(os.listdir(f"/proc/{chain.model.pid}/fd"))
        for _ in range(3):
            await echoed(chain, pixels(0))
            after = len(chain.sidecar.lines)
            chain.sidecar.send(signal.SIGKILL)
            await chain.sidecar.ended()
            await chain.sidecar.start()
            await chain.listening(after=after)
            await chain.sidecar.wait_for(USED, after=after)
        await echoed(chain, pixels(0))
        assert regions(chain.model.pid) == 1
        assert len(os.listdir(f"/proc/{chain.model.pid}/fd")) <= files + 1  # a batch's connection


async def test_what_is_kept_of_the_memory_is_bounded(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler="simulated", parameters=SHORT) as chain:
        await chain.sidecar.wait_for(USED)
        data = pixels(0)
        for _ in range(3):
            await asyncio.gather(*(echoed(chain, data) for _ in range(150)))  # of 90 MB together
        # The last body is let go just behind its answer.
        await until(lambda: resident_shared_bytes(chain.sidecar.pid) <= 64 * MEBIBYTE)
