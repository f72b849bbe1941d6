"""Both processes for real over real sockets, with the simulated device behind."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.description import RAGGED
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.link.model_frames import State
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from support.books import assert_all_are_settled, assert_books_balance
from support.chain import Chain, running_chain
from support.echo_server import EchoServer, echo_chain, echoing
from support.private_hop import Nonsense, PretendModel, serving
from support.sidecar_world import PROFILE

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEVICE = {"fixedSeconds": "0.005", "rowSeconds": "0.0001"}
SLOW_DEVICE = {"fixedSeconds": "0.3", "rowSeconds": "0"}
ECHO = echoing(x=(Datatype.INT64, (RAGGED,)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One for all tests after which it serves as before."""
    folder = tmp_path_factory.mktemp("quick")
    async with running_chain(folder, handler="simulated", parameters=DEVICE) as chain:
        yield chain


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain) -> Chain:
    await running.goes_by(BatchSettings())
    return running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """Another, whose batches take a while."""
    folder = tmp_path_factory.mktemp("slow")
    async with running_chain(folder, handler="simulated", parameters=SLOW_DEVICE) as chain:
        yield chain


def body(*values: int) -> dict[str, Any]:
    entry = {"name": "x", "datatype": "INT64", "shape": [1, len(values)], "data": list(values)}
    return {"inputs": [entry]}


async def infer(chain: Chain, *values: int) -> tuple[int, Any]:
    async with chain.session.post(chain.url(chain.infer_path), json=body(*values)) as response:
        return response.status, await response.json()


async def echoed(chain: Chain, *values: int) -> bool:
    status, answer = await infer(chain, *values)
    assert status == 200, answer
    return bool(answer["outputs"][0]["data"] == list(values))


async def test_a_request_is_answered_over_every_public_path(chain: Chain) -> None:
    assert await echoed(chain, 1, 2, 2**60 + 1)
    async with chain.session.get(chain.url("/v2/models/m")) as response:
        assert (await response.json())["inputs"][0]["name"] == "x"
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v1/models"):
        async with chain.session.get(chain.url(path)) as response:
            assert response.status == 200, path


async def test_64_concurrent_requests_leave_at_most_4_batches(chain: Chain) -> None:
    await chain.goes_by(BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=0.2))
    before = await chain.metric("batchedmodel_batch_size_count")
    assert all(await asyncio.gather(*(echoed(chain, i, i + 1) for i in range(64))))
    assert await chain.metric("batchedmodel_batch_size_count") <= before + 4


async def test_rows_of_different_lengths_and_many_rows_come_back_to_their_callers(
    chain: Chain,
) -> None:
    async def many(rows: int, width: int) -> bool:
        data = [[row * width + column for column in range(width)] for row in range(rows)]
        entry = {"name": "x", "datatype": "INT64", "shape": [rows, width], "data": data}
        url = chain.url(chain.infer_path)
        async with chain.session.post(url, json={"inputs": [entry]}) as response:
            answer = (await response.json())["outputs"][0]
            return bool(
                answer["data"] == list(itertools.chain(*data)) and answer["shape"] == [rows, width]
            )

    sizes = [(1 + i * 7 % 40, 1 + i % 9) for i in range(40)]
    assert all(await asyncio.gather(*(many(rows, width) for rows, width in sizes)))


async def test_a_model_killed_in_mid_batch_costs_nobody_his_answer_and_service_resumes(
    slow: Chain,
) -> None:
    returned = await slow.metric("batchedmodel_returned_items_total")
    callers = [asyncio.create_task(infer(slow, i)) for i in range(48)]
    await slow.until("batchedmodel_inflight_batches", lambda value: value >= 1)
    seen = len(slow.sidecar.lines)
    slow.model.send(signal.SIGKILL)
    await slow.model.ended()
    await slow.sidecar.wait_for("model not ready", after=seen)
    assert (await slow.admin("/ready"))[0] == 503
    assert (await infer(slow, 1))[0] == 503
    await slow.model.start()
    statuses = Counter(status for status, _ in await asyncio.gather(*callers))
    assert statuses == {200: 48}
    assert await slow.metric("batchedmodel_returned_items_total") >= returned + 1
    await slow.ready(after=seen)
    assert await echoed(slow, 5)
    await assert_all_are_settled(slow)


async def test_sigterm_under_load_loses_no_accepted_request(tmp_path: Path) -> None:
    device = {"fixedSeconds": "0.05", "rowSeconds": "0"}
    async with running_chain(tmp_path, handler="simulated", parameters=device) as chain:
        results: Counter[str] = Counter()
        stops = asyncio.Event()

        async def caller(number: int) -> None:
            while True:
                late = stops.is_set()
                try:
                    status, _ = await infer(chain, number)
                except aiohttp.ClientConnectorError:
                    return  # the port is closed: nothing was accepted
                except aiohttp.ClientError:
                    # A kept connection may end just as it is asked on: nothing was accepted.
                    if not late:
                        results["lost"] += 1
                    return
                results[str(status)] += 1
                if status == 503:
                    return

        callers = [asyncio.create_task(caller(i)) for i in range(200)]
        async with asyncio.timeout(30.0):
            while results["200"] <= 200:  # noqa: ASYNC110  # a busy machine takes its time
                await asyncio.sleep(0.01)
        stops.set()
        for _ in range(10):
            await asyncio.sleep(0)  # what was asked before is sent
        chain.sidecar.send(signal.SIGTERM)
        assert await chain.sidecar.ended() == 0
        await asyncio.gather(*callers)
        assert results.keys() <= {"200", "503"}


async def test_of_a_thousand_callers_half_leave_and_the_others_are_right(chain: Chain) -> None:
    chance = random.Random(7)
    callers = [asyncio.create_task(echoed(chain, i, i * 3)) for i in range(1000)]
    leavers = chance.sample(range(1000), 500)
    for leaver in leavers:
        await asyncio.sleep(chance.random() * 0.002)
        callers[leaver].cancel()
    results = await asyncio.gather(*callers, return_exceptions=True)
    stayers = [results[i] for i in range(1000) if i not in set(leavers)]
    assert stayers == [True] * 500
    await assert_books_balance(chain)


async def test_a_call_expires_on_time_while_the_model_is_busy(tmp_path: Path) -> None:
    # A policy that does not foresee the end, or the calls would be refused at once.
    settings = BatchSettings(
        policy=PolicyName.GREEDY, max_batch_size=1, request_timeout_seconds=1.0
    )
    async with (
        serving(tmp_path / "model.sock", PretendModel(ECHO, PROFILE)),
        running_chain(tmp_path, handler="none", start_model=False, settings=settings) as chain,
    ):
        await chain.ready()
        async with asyncio.timeout(15.0):  # the model is busy for ever
            results = await asyncio.gather(*(infer(chain, i) for i in range(4)))
        assert [status for status, _ in results] == [504] * 4
        assert "not answered within 1 s" in results[0][1]["error"]


async def test_settings_change_without_restart_and_their_hash_is_reported(chain: Chain) -> None:
    settings = replace(BatchSettings(), max_batch_size=3)
    seen = len(chain.sidecar.lines)
    chain.configure(settings)
    await chain.sidecar.wait_for(f"settings {settings.digest()} in force", after=seen)
    told = json.loads((await chain.admin("/settings"))[1])
    assert (told["hash"], told["link_version"]) == (settings.digest(), 1)
    assert (told["startup"], told["adapters"]) == ("ready", [])
    assert await chain.metric("batchedmodel_settings_info", hash=settings.digest()) == 1
    before = await chain.metric("batchedmodel_batch_size_bucket", le="4.0")
    assert all(await asyncio.gather(*(echoed(chain, i) for i in range(30))))
    assert await chain.metric("batchedmodel_batch_size_bucket", le="4.0") >= before + 10


async def test_the_drain_hook_needs_its_token_empties_the_queue_and_is_taken_back(
    slow: Chain,
) -> None:
    url = f"http://127.0.0.1:{slow.admin_port}/drain"
    async with slow.session.post(url) as response:
        assert response.status == 403
    accepted = "batchedmodel_requests_accepted_total"
    before = await slow.metric(accepted)
    callers = [asyncio.create_task(infer(slow, i)) for i in range(8)]
    await slow.until(accepted, lambda value: value >= before + 8)
    assert await slow.drain() == (200, "empty\n")
    assert [status for status, _ in await asyncio.gather(*callers)] == [200] * 8
    assert (await slow.admin("/ready"))[0] == 503
    status, answer = await infer(slow, 1)
    assert status == 503
    assert "stopping" in answer["error"]
    seen = len(slow.sidecar.lines)
    slow.model.send(signal.SIGTERM)
    await slow.model.ended()
    await slow.model.start()
    await slow.ready(after=seen)
    assert await echoed(slow, 5)


async def test_a_model_that_is_not_there_yet_is_named_and_found_later(tmp_path: Path) -> None:
    async with running_chain(
        tmp_path, handler="simulated", parameters=DEVICE, start_model=False
    ) as chain:
        status, answer = await infer(chain, 1)
        assert status == 503
        assert answer["error"]
        assert (await chain.admin("/ready"))[0] == 503
        assert (await chain.admin("/live"))[0] == 200
        await chain.model.start()
        await chain.ready()
        assert await echoed(chain, 1)


class Warming(EchoServer):
    """A model server that warms up until it is told that this is over."""

    def __init__(self) -> None:
        super().__init__(ECHO)
        self.warm = asyncio.Event()
        self.batches = 0

    async def states(self) -> AsyncIterator[State]:
        yield State(ModelState.WARMING, "")
        await self.warm.wait()
        async for event in super().states():
            yield event

    async def answer(self, batch: BatchRequest) -> BatchReply | Nonsense:
        self.batches += 1
        return await super().answer(batch)


async def test_while_the_model_warms_up_nobody_is_sent_to_it(tmp_path: Path) -> None:
    server = Warming()
    async with (
        server.serving(tmp_path / "model.sock"),
        running_chain(tmp_path, handler="none", start_model=False) as chain,
    ):
        await chain.sidecar.wait_for("model not ready: the model is WARMING")
        status, answer = await infer(chain, 1)
        assert status == 503
        assert "the model is WARMING" in answer["error"]
        assert (await chain.admin("/ready"))[0] == 503
        assert not server.batches
        server.warm.set()
        await chain.ready()
        assert (await chain.admin("/ready"))[0] == 200
        assert await echoed(chain, 1)


@pytest.mark.parametrize("order", ["sidecar model", "model sidecar", "sidecar", "model"])
async def test_both_ends_of_the_socket_may_restart_in_any_order(chain: Chain, order: str) -> None:
    ends = {"sidecar": chain.sidecar, "model": chain.model}
    seen = len(chain.sidecar.lines)
    for name in order.split():
        ends[name].send(signal.SIGKILL)
        await ends[name].ended()
    for name in order.split():
        await ends[name].start()
    if "sidecar" in order:
        pattern = r"listening: data port (\d+), admin port (\d+)"
        listening = await chain.sidecar.wait_for(pattern, after=seen)
        chain.port, chain.admin_port = int(listening[1]), int(listening[2])
    await chain.ready(after=seen)
    assert await echoed(chain, 1, 2)


async def test_connections_have_a_bounded_age(tmp_path: Path) -> None:
    async with echo_chain(tmp_path, ECHO, connection_age_seconds=1.0) as chain:
        started = time.monotonic()
        connection = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connection) as one:
            closed = 0
            for _ in range(15):
                async with one.post(chain.url(chain.infer_path), json=body(1)) as response:
                    closed += response.headers.get("Connection") == "close"
                await asyncio.sleep(0.1)
        assert 1 <= closed <= 1 + (time.monotonic() - started)


async def test_ten_thousand_idle_connections_harm_nobody(chain: Chain) -> None:
    idle: list[socket.socket] = []
    try:
        # Two addresses: one client address has too few ports to its name on some machines.
        for number in range(10_000):
            one = socket.socket()
            one.setblocking(False)
            one.bind((f"127.0.0.{2 + number % 4}", 0))
            with contextlib.suppress(BlockingIOError):
                one.connect(("127.0.0.1", chain.port))
            idle.append(one)
            if number % 500 == 0:
                await asyncio.sleep(0.02)
        assert all(await asyncio.gather(*(echoed(chain, i) for i in range(64))))
    finally:
        for one in idle:
            one.close()
    assert await echoed(chain, 1)


async def test_an_idle_sidecar_uses_less_than_one_percent_of_a_core(chain: Chain) -> None:
    assert await echoed(chain, 1)
    before = _cpu_seconds(chain.sidecar.pid)
    await asyncio.sleep(3.0)
    assert _cpu_seconds(chain.sidecar.pid) - before < 0.03


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
