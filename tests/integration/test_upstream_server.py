"""A v2 server of somebody else's behind the sidecar: rows concatenated, answers split."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from batchedmodel_contract.manifest.batching import BatchSettings
from support.chain import Chain, in_front_of
from support.listening import Listener
from support.row_server import SHARING

pytestmark = pytest.mark.asyncio(loop_scope="module")


class UpstreamServer:
    """Plain v2 in JSON, as any container may speak it: doubles its input."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.status = 200
        self.shape = [-1, -1]
        self.metadata: str | None = None
        self.seconds = 0.02
        self.deaf = False
        self.rows_off = 0
        self.port = 0
        self._runner: web.AppRunner
        self._listener: Listener

    async def __aenter__(self) -> "UpstreamServer":
        application = web.Application()
        application.router.add_get("/v2/models/m/ready", self._ready)
        application.router.add_get("/v2/models/m", self._metadata)
        application.router.add_post("/v2/models/m/infer", self._infer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        self._listener = await Listener.start(self._runner, self.port)
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.stop()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _ready(self, request: web.Request) -> web.Response:
        if self.deaf:
            await asyncio.sleep(60.0)
        return web.Response()

    async def _metadata(self, request: web.Request) -> web.Response:
        if self.metadata is not None:
            return web.Response(text=self.metadata)
        tensor = {"datatype": "INT64", "shape": self.shape}
        inputs, outputs = [{"name": "x", **tensor}], [{"name": "y", **tensor}]
        document = {"name": "m", "platform": "theirs", "inputs": inputs, "outputs": outputs}
        return web.json_response(document)

    async def _infer(self, request: web.Request) -> web.Response:
        if self.status != 200:
            return web.json_response({"error": "theirs"}, status=self.status)
        tensor = (await request.json())["inputs"][0]
        self.batches.append(tensor["shape"])
        await asyncio.sleep(self.seconds)
        shape = [tensor["shape"][0] + self.rows_off, *tensor["shape"][1:]]
        output = {"name": "y", "datatype": "INT64", "shape": shape}
        output["data"] = [2 * value for value in tensor["data"]]
        return web.json_response({"model_name": "m", "outputs": [output]})


@pytest_asyncio.fixture(loop_scope="module")
async def server() -> AsyncIterator[UpstreamServer]:
    """One for a single test, which has it be odd or leave."""
    async with UpstreamServer() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def chain(tmp_path: Path, server: UpstreamServer) -> AsyncIterator[Chain]:
    async with in_front_of(server.url, tmp_path, settings=SHARING) as running:
        await running.ready()
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stays() -> AsyncIterator[UpstreamServer]:
    """One for all tests that leave it as it was."""
    async with UpstreamServer() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, stays: UpstreamServer
) -> AsyncIterator[Chain]:
    async with in_front_of(stays.url, tmp_path_factory.mktemp("stays")) as chain:
        yield chain


@pytest_asyncio.fixture(loop_scope="module")
async def shared(running: Chain, stays: UpstreamServer) -> Chain:
    """The chain that serves, in front of a server that is as it was at first."""
    stays.status, stays.seconds, stays.deaf, stays.rows_off = 200, 0.02, False, 0
    await running.goes_by(SHARING)
    await running.ready()
    assert await doubled(running, 1) == (200, [2])
    stays.batches.clear()
    return running


async def doubled(chain: Chain, *values: int) -> tuple[int, Any]:
    entry = {"name": "x", "datatype": "INT64", "shape": [1, len(values)], "data": list(values)}
    async with chain.session.post(
        chain.url(chain.infer_path), json={"inputs": [entry]}
    ) as response:
        document = await response.json()
        return response.status, document["outputs"][0]["data"] if response.ok else document


async def test_requests_share_batches_and_only_with_their_own_shape(
    shared: Chain, stays: UpstreamServer
) -> None:
    calls = [[i] * (1 + i % 2) for i in range(32)]
    answers = await asyncio.gather(*(doubled(shared, *values) for values in calls))
    assert answers == [(200, [2 * value for value in values]) for values in calls]
    assert len(stays.batches) <= 8
    assert {shape[1] for shape in stays.batches} == {1, 2}


async def test_an_error_of_the_server_reaches_its_callers_with_its_status(
    shared: Chain, stays: UpstreamServer
) -> None:
    stays.status = 418
    status, document = await doubled(shared, 1)
    assert status == 418
    assert "theirs" in document["error"]
    stays.status = 200
    assert await doubled(shared, 1) == (200, [2])


async def test_a_wrong_number_of_rows_is_nobodys_answer(
    shared: Chain, stays: UpstreamServer
) -> None:
    stays.rows_off = -1
    status, document = await doubled(shared, 1)
    assert status == 502
    assert "nonsense" in document["error"]


async def test_a_model_without_variable_rows_is_refused_with_the_reason(
    tmp_path: Path, server: UpstreamServer
) -> None:
    server.shape = [4, 4]
    async with in_front_of(server.url, tmp_path) as chain:
        await chain.sidecar.wait_for("its rows cannot be batched")
        assert (await doubled(chain, 1))[0] == 503


async def test_a_server_that_dies_and_returns_is_followed(
    chain: Chain, server: UpstreamServer
) -> None:
    seen = len(chain.sidecar.lines)
    await server.__aexit__()
    await chain.sidecar.wait_for("model not ready", after=seen)
    assert (await doubled(chain, 1))[0] == 503
    async with server:
        await chain.ready(after=seen)
        assert await doubled(chain, 1) == (200, [2])


@pytest.mark.parametrize("at_work", [True, False], ids=["at work", "idle"])
async def test_a_drain_ends_with_a_restart_of_the_server_that_takes_a_moment(
    chain: Chain, server: UpstreamServer, at_work: bool
) -> None:
    """Before such a restart the hook of its container drains the pod."""
    server.seconds = 60.0 if at_work else 0.02
    callers = [asyncio.create_task(doubled(chain, 1)) for _ in range(2 * at_work)]
    if at_work:
        await chain.until("batchedmodel_inflight_requests", lambda value: value == 2)
    seen = len(chain.sidecar.lines)
    hook = asyncio.create_task(chain.drain())
    await chain.sidecar.wait_for("draining", after=seen)
    await server.__aexit__()
    server.seconds = 0.02
    await asyncio.sleep(0.6)
    async with server:
        await chain.sidecar.wait_for("serving again", after=seen)
        assert {(await caller)[0] for caller in callers} <= {503}
        assert (await hook)[0] == 200
        assert await doubled(chain, 1) == (200, [2])


async def test_a_server_whose_metadata_is_no_json_ends_nothing(
    tmp_path: Path, server: UpstreamServer
) -> None:
    server.metadata = "<html>"
    async with in_front_of(server.url, tmp_path) as chain:
        await chain.sidecar.wait_for("metadata: is not that of a v2 model")
        server.metadata = None
        await chain.ready()
        assert await doubled(chain, 1) == (200, [2])


async def test_a_server_that_is_deaf_while_it_computes_is_not_lost(
    shared: Chain, stays: UpstreamServer
) -> None:
    stays.seconds, stays.deaf = 8.0, True
    seen = len(shared.sidecar.lines)
    assert await doubled(shared, 1) == (200, [2])
    assert not any("not ready" in line for line in shared.sidecar.lines[seen:])


async def test_a_batch_that_took_too_long_is_forgiven_when_the_server_answers_again(
    shared: Chain, stays: UpstreamServer
) -> None:
    await shared.goes_by(BatchSettings(request_timeout_seconds=1.0))
    stays.seconds = 60.0
    assert (await doubled(shared, 1))[0] == 504
    stays.seconds = 0.02
    async with asyncio.timeout(30.0):
        while (await doubled(shared, 1))[0] != 200:  # noqa: ASYNC110  # until it is let go
            await asyncio.sleep(0.2)
    assert (await shared.admin("/model/live"))[0] == 200
