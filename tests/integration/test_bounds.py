"""Bounds of memory, time and connections, and the ends of a drain, with both processes for real."""

import asyncio
import gzip
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.description import RAGGED
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_http.streaming import STREAMED
from batchedmodel_operator.render.resources import sidecar_resources
from support.chain import Chain, Process, running_chain
from support.echo_server import EchoServer, echo_chain, echoing
from support.hanging_handler import HANGS
from support.private_hop import Nonsense
from support.process_memory import resident_bytes, shared_bytes
from support.raw_caller import RawCaller, request
from support.rendered import read_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEVICE = {"fixedSeconds": "0.005"}
GOOD: dict[str, Any] = {
    "inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]
}
MEBIBYTE = 1_048_576
IMPATIENT = BatchSettings(request_timeout_seconds=1.0)
ECHO = echoing(x=(Datatype.INT64, (RAGGED,)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One for all tests after which it serves as before."""
    async with running_chain(
        tmp_path_factory.mktemp("bounds"),
        handler="simulated",
        parameters=DEVICE,
        max_body_bytes=4 * MEBIBYTE,
        max_queue_bytes=4 * MEBIBYTE,
    ) as chain:
        yield chain


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain) -> Chain:
    await running.goes_by(BatchSettings())
    return running


class Held(EchoServer):
    """A model server that answers no batch before it is told to."""

    def __init__(self) -> None:
        super().__init__(ECHO)
        self.go_on = asyncio.Event()

    async def answer(self, batch: BatchRequest) -> BatchReply | Nonsense:
        await self.go_on.wait()
        return await super().answer(batch)


async def status_of(chain: Chain, body: Any = None, **headers: str) -> int:
    data = json.dumps(GOOD).encode() if body is None else body
    async with chain.session.post(
        chain.url(chain.infer_path), data=data, headers=headers
    ) as response:
        await response.read()
        return response.status


async def raw(chain: Chain, text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", chain.port)
    writer.write(text)
    await writer.drain()
    return reader, writer


async def test_chunked_bodies_share_the_bound_of_memory(chain: Chain) -> None:
    sent, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> Any:
        for _ in range(3):
            yield b" " * MEBIBYTE
        sent.set()
        await go_on.wait()
        yield b"{}"

    first = asyncio.create_task(status_of(chain, slowly()))
    await sent.wait()
    await asyncio.sleep(0.3)  # the last of it is on its way yet
    assert await status_of(chain, _pieces(3 * MEBIBYTE)) == 429
    assert await status_of(chain) == 200, "a small one still fits"
    go_on.set()
    assert await first == 400


async def killed(process: Process) -> None:
    process.send(signal.SIGKILL)
    await process.ended()


async def _pieces(size: int) -> Any:
    for _ in range(size // 65_536):
        yield b" " * 65_536


async def test_a_caller_that_declares_much_and_sends_nothing_holds_nothing(chain: Chain) -> None:
    await chain.goes_by(IMPATIENT)
    head = f"POST {chain.infer_path} HTTP/1.1\r\nHost: m\r\nContent-Length: 3000000\r\n\r\n"
    silent = [await raw(chain, head.encode()) for _ in range(4)]
    assert await status_of(chain) == 200
    started = time.monotonic()
    answers = [(await reader.readline()).split()[1] for reader, _ in silent]
    assert answers == [b"408"] * 4, "a body that does not come is not awaited for ever"
    assert time.monotonic() - started < 10.0, "many times what they may take"
    for _, writer in silent:
        writer.close()


async def test_a_request_that_streams_counts_before_any_of_its_body_is_here(chain: Chain) -> None:
    head = f"POST {chain.infer_path} HTTP/1.1\r\nHost: m\r\nTransfer-Encoding: chunked\r\n\r\n"
    fit = 4 * MEBIBYTE // STREAMED
    silent = [await raw(chain, head.encode()) for _ in range(fit)]
    try:
        async with asyncio.timeout(10.0):  # until all of them were seen
            while await status_of(chain, _pieces(65_536)) != 429:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        body = json.dumps(GOOD).encode()
        async with RawCaller.calling(chain.port) as caller:
            caller.sends(request(chain.infer_path, body))
            assert (await caller.answer())[0] == 200, "a small whole one needs none of it"
    finally:
        for _, writer in silent:
            writer.close()
    await chain.until(
        "batchedmodel_requests_rejected_total", lambda gone: gone >= fit // 4, reason="abandoned"
    )
    assert await status_of(chain, _pieces(65_536)) == 400


async def test_a_queue_full_of_rows_refuses_before_a_body_is_sent(tmp_path: Path) -> None:
    full = BatchSettings(
        policy=PolicyName.GREEDY, max_batch_size=1, max_queue_size=4, request_timeout_seconds=60.0
    )
    server = Held()
    async with (
        server.serving(tmp_path / "model.sock"),
        running_chain(tmp_path, handler="none", start_model=False, settings=full) as chain,
    ):
        await chain.ready()
        rows = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [3, 1], "data": [1, 2, 3]}]}
        crowd = [asyncio.create_task(status_of(chain, json.dumps(rows).encode()))]
        await chain.until("batchedmodel_requests_accepted_total", lambda value: value == 1)
        crowd += [asyncio.create_task(status_of(chain)) for _ in range(6)]
        await chain.until("batchedmodel_queue_length", lambda value: value == 4)
        refused = "batchedmodel_requests_rejected_total"
        before = await chain.metric(refused, reason="queue_full")

        head = f"POST {chain.infer_path} HTTP/1.1\r\nHost: m\r\n"
        unsent = (
            "Content-Length: 500\r\nExpect: 100-continue\r\n\r\n",
            "Content-Length: 500\r\n\r\n",
            "Content-Length: 500\r\n\r\n{",
            "Transfer-Encoding: chunked\r\n\r\n",
        )
        for body in unsent:
            async with asyncio.timeout(10.0), RawCaller.calling(chain.port) as caller:
                caller.sends((head + body).encode())
                # Nobody was told to go on before.
                status, text = await caller.answer()
                assert status == 429, body
                assert "full" in json.loads(text)["error"]
        assert await chain.metric(refused, reason="queue_full") == before + len(unsent)
        for one in crowd:
            one.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)


async def test_a_full_queue_of_small_requests_stays_within_what_pods_ask_for(
    tmp_path: Path,
) -> None:
    settings = BatchSettings(policy=PolicyName.GREEDY, request_timeout_seconds=120.0)
    rows = settings.max_queue_size
    server = Held()
    async with (
        server.serving(tmp_path / "model.sock"),
        running_chain(tmp_path, handler="none", start_model=False, settings=settings) as chain,
        AsyncExitStack() as callers,
    ):
        await chain.ready()
        body = json.dumps(GOOD).encode()
        for _ in range(rows):
            caller = await callers.enter_async_context(RawCaller.calling(chain.port))
            caller.sends(request(chain.infer_path, body))
        # One address may not take all of it.
        await chain.until("batchedmodel_queue_length", lambda value: value > 0.8 * rows)
        _, spec = read_model({"model": {"handler": "simulated"}})
        asked = sidecar_resources(spec, rows)["requests"]["memory"]
        assert asked == "112Mi"
        assert resident_bytes(chain.sidecar.pid) < 112 * MEBIBYTE


async def test_what_is_remembered_beside_the_rows_of_a_body_is_within_the_bound(
    tmp_path: Path,
) -> None:
    """An id comes back with the answer, and may be as long as a body."""
    server, budget = Held(), 8 * MEBIBYTE
    async with (
        server.serving(tmp_path / "model.sock"),
        running_chain(tmp_path, handler="none", start_model=False, max_queue_bytes=budget) as chain,
    ):
        await chain.ready()
        named = json.dumps(GOOD | {"id": "x" * 1_000_000}).encode()
        crowd = set[asyncio.Task[int]]()
        for _ in range(12):
            crowd.add(asyncio.create_task(status_of(chain, named)))
            await asyncio.sleep(0.2)
        assert shared_bytes(chain.sidecar.pid) <= budget
        server.go_on.set()
        statuses = [await one for one in crowd]
        assert statuses.count(429) >= 4
        assert statuses.count(200) >= 4
        assert set(statuses) == {200, 429}


async def test_a_caller_that_waits_for_permission_gets_it(chain: Chain) -> None:
    body = json.dumps(GOOD).encode()
    head = (
        f"POST {chain.infer_path} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n"
        f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await raw(chain, head.encode())
    assert (await asyncio.wait_for(reader.readline(), 10.0)).startswith(b"HTTP/1.1 100")
    await reader.readline()
    writer.write(body)
    assert (await asyncio.wait_for(reader.readline(), 10.0)).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_connections_that_never_ask_end_at_their_age(tmp_path: Path) -> None:
    async with running_chain(
        tmp_path, handler="none", start_model=False, connection_age_seconds=1.0
    ) as chain:
        opened = [await raw(chain, text) for text in (b"", b"POST /v2/mod")]
        for reader, writer in opened:
            assert await asyncio.wait_for(reader.read(), 10.0) == b""
            writer.close()


async def test_compressed_bodies_are_read_and_broken_ones_named(chain: Chain) -> None:
    packed = gzip.compress(json.dumps(GOOD).encode())
    encoding = {"Content-Encoding": "gzip"}
    rejected = "batchedmodel_requests_rejected_total"
    before = await chain.metric(rejected, reason="invalid")
    assert await status_of(chain, packed, **encoding) == 200
    assert await status_of(chain, b"no gzip at all", **encoding) == 400
    assert await chain.metric(rejected, reason="invalid") == before + 1


async def test_at_the_limit_of_a_drain_callers_are_told_so(tmp_path: Path) -> None:
    async with running_chain(
        tmp_path, handler="simulated", parameters=DEVICE, drain_timeout_seconds=1.0
    ) as chain:
        chain.model.send(signal.SIGSTOP)
        callers = [asyncio.create_task(status_of(chain)) for _ in range(3)]
        await chain.until("batchedmodel_requests_accepted_total", lambda value: value >= 3)
        chain.sidecar.send(signal.SIGTERM)
        assert await asyncio.gather(*callers) == [503] * 3
        assert await chain.sidecar.ended() == 1, "not everything accepted was served"
        assert not any("Traceback" in line for line in chain.sidecar.lines)


async def test_a_drain_that_is_taken_back_answers_its_hook(tmp_path: Path) -> None:
    async with running_chain(
        tmp_path, handler="simulated", parameters=DEVICE, drain_delay_seconds=30.0
    ) as chain:
        hook = asyncio.create_task(chain.drain())
        await chain.sidecar.wait_for("draining")
        seen = len(chain.sidecar.lines)
        chain.model.send(signal.SIGTERM)
        await chain.model.ended()
        await chain.model.start()
        await chain.ready(after=seen)
        assert await asyncio.wait_for(hook, 15.0) == (200, "taken back\n")
        assert await status_of(chain) == 200
        await killed(chain.sidecar)  # it would delay its own end as well


async def test_a_token_of_any_bytes_is_compared(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler="none", start_model=False) as chain:
        url = f"http://127.0.0.1:{chain.admin_port}/drain"
        async with chain.session.post(url, headers={"X-Admin-Token": "tök"}) as response:
            assert response.status == 403
        async with chain.session.post(url, headers=chain.token) as response:
            assert response.status == 202


async def test_a_model_that_answers_nothing_is_not_ready(chain: Chain) -> None:
    await chain.goes_by(IMPATIENT)
    seen = len(chain.sidecar.lines)
    chain.model.send(signal.SIGSTOP)
    assert await status_of(chain) == 504
    await chain.sidecar.wait_for("model not ready: the model server does not answer", after=seen)
    assert (await chain.admin("/model/live"))[0] == 503
    seen = len(chain.sidecar.lines)
    chain.model.send(signal.SIGCONT)
    await chain.ready(after=seen)
    assert (await chain.admin("/model/live"))[0] == 200
    assert await status_of(chain) == 200


async def test_a_pass_that_hangs_is_not_forgotten_for_a_new_handshake(tmp_path: Path) -> None:
    """The server's own loop goes on saying that it is ready, so that only a restart helps."""
    settings = BatchSettings(policy=PolicyName.GREEDY, request_timeout_seconds=1.0)
    hangs = {"inputs": [{**GOOD["inputs"][0], "data": [HANGS, 2]}]}
    handler = "support.hanging_handler:Hanging"
    async with running_chain(tmp_path, handler=handler, settings=settings) as chain:
        for turn in range(2):
            assert (await chain.admin("/model/live"))[0] == 200, turn
            seen = len(chain.sidecar.lines)
            assert await status_of(chain, json.dumps(hangs).encode()) == 504
            await chain.sidecar.wait_for("model not ready: .* does not answer", after=seen)
            await chain.ready(after=seen)
        assert (await chain.admin("/model/live"))[0] == 503
        await killed(chain.model)  # it would end its pass first


async def test_a_slow_server_under_overload_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    """All that leaves is near its deadline then; what a pass takes is known from the warm-up."""
    settings = BatchSettings(
        policy=PolicyName.GREEDY, max_batch_size=1, request_timeout_seconds=8.0
    )
    async with running_chain(
        tmp_path, handler="simulated", parameters={"fixedSeconds": "7"}, settings=settings
    ) as chain:
        calls = []
        for _ in range(14):
            calls.append(asyncio.create_task(status_of(chain)))
            await asyncio.sleep(2.0)
            assert (await chain.admin("/model/live"))[0] == 200
        statuses = await asyncio.gather(*calls)
        assert (await chain.admin("/model/live"))[0] == 200
        assert {200, 504} == set(statuses), "it was overloaded, and served what it could"
        assert not any("does not answer" in line for line in chain.sidecar.lines)
        await killed(chain.model)  # it would end its pass first


async def test_a_settings_folder_that_goes_is_reported(tmp_path: Path) -> None:
    async with echo_chain(tmp_path, ECHO) as chain:
        (tmp_path / "settings" / "batching.json").unlink()
        (tmp_path / "settings").rmdir()
        await chain.sidecar.wait_for("is gone: edits of the settings go unseen")
        assert await status_of(chain) == 200


async def test_many_answers_of_one_connection_come_in_order(chain: Chain) -> None:
    """Pipelining: three requests in one write."""
    texts = []
    for number in range(3):
        body = json.dumps(GOOD | {"id": str(number)}).encode()
        head = f"POST {chain.infer_path} HTTP/1.1\r\nHost: m\r\nContent-Length: {len(body)}\r\n"
        texts.append(head.encode() + b"\r\n" + body)
    reader, writer = await raw(chain, b"".join(texts))
    seen = b""
    async with asyncio.timeout(10.0):
        while seen.count(b'"id":"2"') == 0:
            seen += await reader.read(65_536)
    assert [seen.index(f'"id":"{number}"'.encode()) for number in range(3)] == sorted(
        seen.index(f'"id":"{number}"'.encode()) for number in range(3)
    )
    writer.close()


async def test_a_head_request_has_the_status_and_no_body(chain: Chain) -> None:
    async with chain.session.head(chain.url("/v2/health/ready")) as response:
        assert response.status == 200
    async with chain.session.get(chain.url(chain.infer_path)) as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
