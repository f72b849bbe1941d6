"""Large bodies in front of real processes: nobody else waits, nothing hangs, nothing is kept."""

import asyncio
import contextlib
import gzip
import io
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from batchedmodel_contract.inference.description import RAGGED
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_sidecar.codec.codec import MOST_BODIES
from support.chain import Chain, running_chain
from support.echo_server import echo_chain, echoing
from support.large_bodies import (
    LARGEST,
    MEBIBYTE,
    children_of,
    helper_of,
    numbers,
    posting,
    v2_body,
)
from support.process_memory import peak_bytes, resident_bytes, shared_bytes, shared_files
from support.raw_caller import RawCaller, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

LATE_SECONDS: Final = 0.05
"""Parsing one of the large bodies in the loop takes three times as long, and a busy machine that
has other things to do is late by less."""
DEVICE: Final = {"fixedSeconds": "0.002", "rowSeconds": "0"}
LONG_SECONDS: Final = 20.0
SUM: Final = "support.model_server_handlers:Sum"
SMALL: Final = v2_body([1, 2, 3, 4])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One for all tests that harm nobody."""
    folder = tmp_path_factory.mktemp("echoing")
    async with running_chain(folder, handler="simulated", parameters=DEVICE) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adding(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One whose answers are short."""
    async with running_chain(tmp_path_factory.mktemp("adding"), handler=SUM) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def summing(adding: Chain) -> Chain:
    """The same, without the helper of another test."""
    for child in children_of(adding.sidecar.pid):
        os.kill(child, signal.SIGKILL)
    return adding


async def asked(chain: Chain, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    url = chain.url(chain.infer_path)
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    async with chain.session.post(url, data=data, headers=headers) as response:
        return response.status, json.loads(await response.read())


async def answer_of(chain: Chain, body: bytes) -> tuple[int, Mapping[str, str]]:
    url = chain.url(chain.infer_path)
    async with chain.session.post(url, data=io.BytesIO(body)) as response:
        return response.status, response.headers


async def outputs(chain: Chain, body: Any, **headers: str) -> list[int]:
    status, answer = await asked(chain, body, **headers)
    assert status == 200, answer
    data: list[int] = answer["outputs"][0]["data"]
    return data


def descriptors_of(pid: int) -> list[str]:
    """What the process has open, but for what it closes meanwhile."""
    names = list[str]()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(entry))
    return names


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def late_answers(chain: Chain, seconds: float) -> float:
    """The share of answers to a trifle that came late: how often the loop was busy for long."""
    loop = asyncio.get_running_loop()
    end, taken = loop.time() + seconds, []
    while loop.time() < end:
        asked_at = loop.time()
        async with chain.session.get(chain.url("/v2/health/live")) as response:
            await response.read()
        taken.append(loop.time() - asked_at)
        await asyncio.sleep(0.002)
    assert len(taken) > 300
    return sum(one > LATE_SECONDS for one in taken) / len(taken)


async def test_large_and_small_bodies_are_answered_alike(chain: Chain) -> None:
    large = numbers(40_000)
    assert await outputs(chain, v2_body(large, id="7")) == large
    packed = gzip.compress(v2_body(large))
    assert await outputs(chain, packed, **{"Content-Encoding": "gzip"}) == large
    assert await outputs(chain, in_chunks(v2_body(large))) == large
    assert await outputs(chain, SMALL) == [1, 2, 3, 4]
    for count in (10, 100_000):
        wrong = v2_body(numbers(count)).replace(b"100000000003", b'"no number"')
        status, answer = await asked(chain, wrong)
        assert (status, answer["error"]) == (
            400,
            "inputs[0].data: has a value that is not a INT64",
        )


async def in_chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 100_000):
        yield body[start : start + 100_000]


@pytest.mark.alone
async def test_bodies_of_thirteen_mebibytes_hold_up_nobody(chain: Chain, tmp_path: Path) -> None:
    # The answers are as large, and are made in the helper as well.
    body = v2_body(numbers(LARGEST))
    assert len(body) > 13 * MEBIBYTE
    (tmp_path / "body").write_bytes(body)
    calm = await late_answers(chain, 3.0)
    async with posting(chain, chain.infer_path, tmp_path / "body"):
        loaded = await late_answers(chain, 8.0)
    # What the machine is late by itself, with other things to do, is not the bodies' doing.
    assert loaded <= 0.01 + 3 * calm


async def test_a_helper_that_is_killed_is_replaced_and_nobody_notices(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler=SUM) as chain:
        body, expected = v2_body(numbers(LARGEST)), [sum(numbers(LARGEST))]
        callers = [asyncio.create_task(outputs(chain, body)) for _ in range(3)]
        os.kill(await helper_of(chain), signal.SIGKILL)
        seen = len(chain.sidecar.lines)
        assert await asyncio.gather(*callers) == [expected] * 3
        assert not any("Traceback" in line for line in chain.sidecar.lines[seen:])


async def test_a_body_that_ends_two_helpers_is_refused_and_others_are_served(
    tmp_path: Path,
) -> None:
    async with running_chain(tmp_path, handler=SUM) as chain:
        body = v2_body(numbers(LARGEST))
        caller = asyncio.create_task(asked(chain, body))
        seen = 0
        for _ in range(2):
            helper = await helper_of(chain, after=seen)
            seen = len(chain.sidecar.lines)
            os.kill(helper, signal.SIGKILL)
        status, answer = await caller
        assert (status, answer["error"]) == (503, "the process that works on large bodies ended")
        assert await outputs(chain, v2_body(numbers(50_000))) == [sum(numbers(50_000))]
        assert len(children_of(chain.sidecar.pid)) == 1, "the dead ones are gone"


async def test_a_stopped_helper_costs_its_caller_a_wait_and_is_replaced(summing: Chain) -> None:
    seen = len(summing.sidecar.lines)
    body = v2_body(numbers(40_000))
    await outputs(summing, body)
    os.kill(await helper_of(summing, after=seen), signal.SIGSTOP)
    status, answer = await asked(summing, body)
    assert (status, answer["error"]) == (503, "the process that works on large bodies is stuck")
    assert await outputs(summing, body) == [sum(numbers(40_000))]


async def test_the_line_is_bounded_and_those_who_leave_make_room(summing: Chain) -> None:
    seen = len(summing.sidecar.lines)
    body = v2_body(numbers(40_000))
    await outputs(summing, body)
    helper = await helper_of(summing, after=seen)
    rejected = "batchedmodel_requests_rejected_total"
    left = await summing.metric(rejected, reason="abandoned")
    os.kill(helper, signal.SIGSTOP)
    # One address alone has all places but the eighth that is kept for others.
    places = MOST_BODIES - MOST_BODIES // 8
    callers = {asyncio.create_task(answer_of(summing, body)) for _ in range(places + 1)}
    done, waiting = await asyncio.wait(callers, return_when=asyncio.FIRST_COMPLETED)
    status, headers = done.pop().result()
    assert status == 429
    assert int(headers["Retry-After"]) >= 1
    assert (await asked(summing, SMALL))[0] == 200, "small bodies do not wait there"
    stays = waiting.pop()
    for caller in waiting:
        caller.cancel()
    await summing.until(rejected, lambda gone: gone == left + places - 1, reason="abandoned")
    os.kill(helper, signal.SIGCONT)
    assert (await stays)[0] == 200
    assert await outputs(summing, body) == [sum(numbers(40_000))]


async def test_memory_and_descriptors_are_given_back(chain: Chain) -> None:
    body = v2_body(numbers(LARGEST // 2))
    for _ in range(3):
        expected = await outputs(chain, body)
    assert expected == numbers(LARGEST // 2)
    (helper,) = children_of(chain.sidecar.pid)
    pids = (chain.sidecar.pid, helper)
    before = [(resident_bytes(pid), len(descriptors_of(pid))) for pid in pids]
    for _ in range(12):
        assert await outputs(chain, body) == expected
    after = [(resident_bytes(pid), len(descriptors_of(pid))) for pid in pids]
    for (memory, descriptors), (later, more) in zip(before, after, strict=True):
        assert later < memory + 2 * len(body), "twelve bodies are not kept"
        assert more <= descriptors + 4


def may_have_huge_pages(pid: int) -> bool:
    return "\nTHP_enabled:\t0\n" not in Path(f"/proc/{pid}/status").read_text()


async def test_no_memory_lies_in_huge_pages_whose_first_byte_stops_the_loop(chain: Chain) -> None:
    assert not may_have_huge_pages(chain.sidecar.pid)


async def test_nothing_is_kept_of_large_bodies_whose_callers_left_in_the_middle(
    chain: Chain,
) -> None:
    said = b'{"a": "' + b"x" * LARGEST
    kept = shared_bytes(chain.sidecar.pid)  # for answers, which the model server sees as well
    for _ in range(8):
        async with RawCaller.calling(chain.port) as caller:
            head = request(chain.infer_path).replace(b"Length: 0", b"Length: %d" % (2 * LARGEST))
            caller.sends(head + said)
            await caller.writer.drain()
            async with asyncio.timeout(LONG_SECONDS):
                while shared_bytes(chain.sidecar.pid) <= kept:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    async with asyncio.timeout(LONG_SECONDS):
        while shared_bytes(chain.sidecar.pid) > kept:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_values_that_would_take_more_memory_than_there_is_are_not_made(
    summing: Chain,
) -> None:
    """Each of seven bytes takes forty."""
    seen = len(summing.sidecar.lines)
    objects = b'{"inputs":[' + b'{"":0},' * (3 * MEBIBYTE) + b"0]}"
    status, answer = await asked(summing, objects)
    assert (status, "bytes while they are read" in answer["error"]) == (413, True)
    helper = await helper_of(summing, after=seen)
    before = resident_bytes(helper)
    assert (await asked(summing, objects))[0] == 413
    assert peak_bytes(helper) < before + 2 * len(objects)
    # What fits is lent to whoever asks, and given back.
    many = numbers(LARGEST)
    for _ in range(3):
        assert await outputs(summing, v2_body(many)) == [sum(many)]


async def test_nothing_is_kept_of_large_bodies_that_are_refused(chain: Chain) -> None:
    bomb = gzip.compress(bytes(MEBIBYTE * 65), 9), {"Content-Encoding": "gzip"}, 413
    nonsense: tuple[bytes, dict[str, str], int] = b"[" * LARGEST, {}, 400
    held, files = [], len(shared_files(chain.sidecar.pid))
    for body, headers, status in (bomb, nonsense) * 6:
        url = chain.url(chain.infer_path)
        async with chain.session.post(url, data=body, headers=headers) as response:
            assert response.status == status
        held.append(resident_bytes(chain.sidecar.pid))
    assert held[-1] < held[0] + 100 * MEBIBYTE, "each was inflated to 64"
    async with asyncio.timeout(LONG_SECONDS):
        # A thread closes them.
        while len(shared_files(chain.sidecar.pid)) > files + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_helper_outlives_the_signals_of_a_drain_and_ends_with_the_sidecar(
    tmp_path: Path,
) -> None:
    async with running_chain(
        tmp_path,
        handler="simulated",
        parameters={"fixedSeconds": "1"},
        settings=BatchSettings(max_batch_size=1),
    ) as chain:
        large = numbers(40_000)
        accepted = asyncio.create_task(outputs(chain, v2_body(large)))
        helper = await helper_of(chain)
        await chain.until("batchedmodel_inflight_requests", lambda value: value == 1)
        assert os.getpgid(helper) != os.getpgid(chain.sidecar.pid)
        os.kill(helper, signal.SIGTERM)
        os.kill(helper, signal.SIGINT)
        chain.sidecar.send(signal.SIGTERM)
        assert await accepted == large, "its answer was made while the pod drained"
        assert await chain.sidecar.ended() == 0
        assert not is_there(helper)


async def test_the_helper_has_no_socket_of_the_sidecars(chain: Chain) -> None:
    await outputs(chain, v2_body(numbers(40_000)))
    theirs = descriptors_of(await helper_of(chain))
    ours = descriptors_of(chain.sidecar.pid)
    assert not {name for name in theirs if "socket" in name}.intersection(ours)


async def test_a_sidecar_that_is_killed_takes_its_helper_with_it(tmp_path: Path) -> None:
    async with echo_chain(tmp_path, echoing(x=(Datatype.INT64, (RAGGED,)))) as chain:
        await outputs(chain, v2_body(numbers(40_000)))
        helper = os.pidfd_open(await helper_of(chain))
        chain.sidecar.send(signal.SIGKILL)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(helper, ended.set)
        await asyncio.wait_for(ended.wait(), 15.0)
        asyncio.get_running_loop().remove_reader(helper)
        os.close(helper)


async def test_no_helper_is_started_for_small_bodies_and_binary_ones(summing: Chain) -> None:
    seen = len(summing.sidecar.lines)
    size = 4 * MEBIBYTE
    entry = {
        "name": "x",
        "datatype": "INT64",
        "shape": [1, size // 8],
        "parameters": {"binary_data_size": size},
    }
    head = json.dumps({"inputs": [entry]}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    assert await outputs(summing, SMALL) == [10]
    assert await outputs(summing, head + bytes(size), **length) == [0]
    assert await outputs(summing, in_chunks(head + bytes(size)), **length) == [0]
    assert not any("started a helper" in line for line in summing.sidecar.lines[seen:])


@pytest.mark.parametrize("declared", [True, False])
async def test_a_binary_body_is_held_once(tmp_path: Path, declared: bool) -> None:
    """The sidecar's own high-water mark: what it holds beyond one copy is less than a half."""
    async with running_chain(tmp_path, handler="support.model_server_handlers:Sum") as chain:
        size = 8 * LARGEST
        entry = {
            "name": "x",
            "datatype": "INT64",
            "shape": [4, size // 8],
            "parameters": {"binary_data_size": 4 * size},
        }
        head = json.dumps({"inputs": [entry]}).encode()
        length = {"Inference-Header-Content-Length": str(len(head))}
        assert await outputs(chain, SMALL) == [10]
        before = peak_bytes(chain.sidecar.pid)
        body = head + bytes(4 * size)
        assert await outputs(chain, body if declared else in_chunks(body), **length) == [0] * 4
        assert peak_bytes(chain.sidecar.pid) - before < 1.5 * len(body)
