"""An upstream server with several workers behind the sidecar: all of them work, and none waits."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_sidecar.backends.upstream.client import Client
from batchedmodel_sidecar.backends.upstream.protocol import BackendRequest
from support.chain import Chain, in_front_of
from support.row_server import RowServer
from support.worker_server import WorkerServer, running, worker_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 0.1
"""Of each batch."""
WORKERS = 5
"""More than are used, so that it is not the server that keeps batches apart."""
ROWS = 4
BATCHING = BatchSettings(policy=PolicyName.GREEDY, max_wait_seconds=0.0, max_batch_size=ROWS)


@asynccontextmanager
async def in_front(
    folder: Path, settings: BatchSettings, workers: int = WORKERS
) -> AsyncIterator[tuple[WorkerServer, Chain]]:
    async with (
        worker_server(folder, workers=workers, seconds=SECONDS) as server,
        in_front_of(
            server.url, folder, upstream_protocol=ServerProtocol.V1, settings=settings
        ) as chain,
    ):
        await chain.ready()
        yield server, chain


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[WorkerServer, Chain]]:
    """One for all tests that need no fresh processes."""
    async with in_front(tmp_path_factory.mktemp("both"), BATCHING) as (server, chain):
        yield server, chain


async def predicted(chain: Chain, value: int, **headers: str) -> list[Any]:
    body, url = {"instances": [value]}, chain.url("/v1/models/m:predict")
    async with chain.session.post(url, json=body, headers=headers) as response:
        document = await response.json()
        assert response.ok, document
        predictions: list[Any] = document["predictions"]
        return predictions


@pytest.mark.parametrize("policy", PolicyName)
@pytest.mark.parametrize("workers", [1, 3])
async def test_as_many_batches_run_at_once_as_are_asked_for_and_never_more(
    both: tuple[WorkerServer, Chain], policy: PolicyName, workers: int
) -> None:
    calls = 20 * ROWS
    settings = replace(BATCHING, policy=policy, max_concurrent_batches=workers)
    server, chain = both
    await chain.goes_by(settings)
    begun = time.monotonic()
    answers = await asyncio.gather(*(predicted(chain, value) for value in range(calls)))
    assert answers == [[value] for value in range(calls)]
    batches = [batch for batch in server.batches() if batch.began > begun]
    assert sum(batch.rows for batch in batches) == calls
    assert max(running(batch.began, batches) for batch in batches) == workers
    # Not those at the beginning and at the end, nor all others where the machine is busy. Of a
    # sidecar that has fewer at the same time it would be none.
    together = [running(batch.middle, batches) for batch in batches]
    assert together.count(workers) > 1
    assert len({batch.worker for batch in batches}) >= workers


async def test_no_process_is_kept_from_work_by_the_question_whether_it_is_ready(
    tmp_path: Path,
) -> None:
    settings = replace(BATCHING, max_concurrent_batches=3)
    async with in_front(tmp_path, settings, workers=3) as (server, chain):
        await asyncio.gather(*(predicted(chain, value) for value in range(20 * ROWS)))
        assert len({batch.worker for batch in server.batches()}) == 3


async def test_no_process_is_kept_from_work_by_a_request_that_has_passed_through(
    tmp_path: Path,
) -> None:
    settings = replace(BATCHING, max_concurrent_batches=3)
    async with in_front(tmp_path, settings, workers=3) as (server, chain):
        assert await predicted(chain, 7, **{"x-batch": "off"}) == [7]
        passed = time.monotonic()
        await asyncio.gather(*(predicted(chain, value) for value in range(20 * ROWS)))
        assert len({batch.worker for batch in server.batches() if batch.began > passed}) == 3


async def test_fewer_and_more_come_into_force_under_load_and_nothing_is_lost(
    both: tuple[WorkerServer, Chain],
) -> None:
    three, one = (replace(BATCHING, max_concurrent_batches=workers) for workers in (3, 1))
    server, chain = both
    await chain.goes_by(three)
    begun = time.monotonic()
    calls = [asyncio.create_task(predicted(chain, value)) for value in range(60 * ROWS)]
    lowered = await _in_force(chain, one)
    await _ended(server, 4, after=lowered)
    raising = time.monotonic()
    raised = await _in_force(chain, three)
    more = [asyncio.create_task(predicted(chain, -value)) for value in range(10 * ROWS)]
    assert await asyncio.gather(*calls) == [[value] for value in range(len(calls))]
    assert await asyncio.gather(*more) == [[-value] for value in range(len(more))]
    batches = [batch for batch in server.batches() if batch.began > begun]
    while_one = [batch for batch in batches if lowered < batch.began < raising]
    assert {running(batch.began, batches) for batch in while_one} == {1}
    after = [running(batch.middle, batches) for batch in batches if batch.began > raised]
    assert max(after) == 3
    assert sum(batch.rows for batch in batches) == len(calls) + len(more)


async def test_a_worker_that_dies_costs_nobody_an_answer(tmp_path: Path) -> None:
    async with in_front(tmp_path, replace(BATCHING, max_concurrent_batches=3)) as (server, chain):
        calls = [asyncio.create_task(predicted(chain, value)) for value in range(10 * ROWS)]
        await _ended(server, 2)
        await _killed_at_work(server)
        assert await asyncio.gather(*calls) == [[value] for value in range(len(calls))]
        assert await chain.metric("batchedmodel_returned_items_total") > 0


async def _killed_at_work(server: WorkerServer) -> None:
    """Kill a worker in the middle of a batch: one that stands still cannot end it meanwhile."""
    async with asyncio.timeout(30.0):
        while True:
            for batch in reversed(server.at_work()):
                os.kill(batch.worker, signal.SIGSTOP)
                if batch in server.at_work():
                    os.kill(batch.worker, signal.SIGKILL)
                    return
                os.kill(batch.worker, signal.SIGCONT)
            await asyncio.sleep(SECONDS / 10)


async def _ended(server: WorkerServer, count: int, *, after: float = 0.0) -> None:
    """Return once so many batches that began after a time have ended."""
    async with asyncio.timeout(30.0):
        while sum(one.began > after for one in server.batches()) < count:  # noqa: ASYNC110
            await asyncio.sleep(SECONDS / 10)


async def _in_force(chain: Chain, settings: BatchSettings) -> float:
    """By when these settings are, on the clock of the machine."""
    seen = len(chain.sidecar.lines)
    chain.configure(settings)
    await chain.sidecar.wait_for(f"settings {settings.digest()} in force", after=seen)
    return time.monotonic()


POSTING = BackendRequest(path="/v1/models/m:predict", headers=(), parts=(b'{"instances": [1]}',))


class _Breaking(RowServer):
    """Refuses what is poisoned at once, and answers others when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    def connections(self) -> int:
        """How many are open."""
        assert self._runner.server is not None
        return len(self._runner.server.connections)

    async def _refusal(self, request: web.Request, rows: int) -> web.Response | None:
        self.rows.append(rows)
        if b"poison" in await request.read():
            return web.Response(status=500, text="broken")
        await self.answers.wait()
        return None


async def test_an_error_in_one_place_breaks_nothing_off_in_another(tmp_path: Path) -> None:
    """Servers may hang up after an error, so its connection is not used again; others are."""
    two = replace(BATCHING, max_batch_size=1, max_concurrent_batches=2)
    async with (
        _Breaking() as server,
        in_front_of(
            server.url, tmp_path, upstream_protocol=ServerProtocol.V1, settings=two
        ) as chain,
    ):
        await chain.ready()
        slow = asyncio.create_task(predicted(chain, 1))
        await chain.until("batchedmodel_inflight_batches", lambda value: value == 1)
        url, body = chain.url("/v1/models/m:predict"), {"instances": ["poison"]}
        async with chain.session.post(url, json=body) as refused:
            assert refused.status == 500
        server.answers.set()
        assert len(await slow) == 1
        assert len(server.rows) == 2, "nothing was lost, so nothing was sent again"


class _Counting(RowServer):
    """Keeps connections, and knows which one each batch came over."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: list[int] = []
        self.ends: list[str | None] = []
        """What the head of each says of its connection."""

    async def _refusal(self, request: web.Request, rows: int) -> web.Response | None:
        assert request.transport is not None
        self.ports.append(request.transport.get_extra_info("peername")[1])
        self.ends.append(request.headers.get("Connection"))
        await asyncio.sleep(SECONDS / 10)
        return None


@pytest.mark.parametrize(("workers", "connections"), [(1, 1), (3, 12)])
async def test_no_process_of_several_keeps_a_connection_by_which_it_gets_the_next_batch(
    tmp_path: Path, workers: int, connections: int
) -> None:
    settings = replace(BATCHING, max_batch_size=1, max_concurrent_batches=workers)
    async with (
        _Counting() as server,
        in_front_of(
            server.url, tmp_path, upstream_protocol=ServerProtocol.V1, settings=settings
        ) as chain,
    ):
        await chain.ready()
        await asyncio.gather(*(predicted(chain, value) for value in range(12)))
        assert len(server.ports) == 12
        assert len(set(server.ports)) == connections
        # The server ends it, or else ours would be the port that is taken for a minute.
        assert set(server.ends) == {"close" if workers > 1 else None}


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_batch_that_ends_when_its_client_is_closed_leaves_no_connection_behind(
    keeps: bool,
) -> None:
    async with _Breaking() as server:
        client = Client(server.url, keeps=lambda: keeps)
        batch = asyncio.create_task(client.post(POSTING, 5.0))
        await _at_work(server, 1)
        await client.close()
        server.answers.set()
        assert (await batch).status == 200
        del client, batch
        gc.collect()  # what is still open would warn, and warnings are errors


async def test_of_many_connections_no_more_than_one_is_kept_when_one_batch_is_enough() -> None:
    keeps = False
    async with _Breaking() as server:
        client = Client(server.url, keeps=lambda: keeps)
        batches = [asyncio.create_task(client.post(POSTING, 5.0)) for _ in range(5)]
        await _at_work(server, 5)
        keeps = True
        batches += [asyncio.create_task(client.post(POSTING, 5.0)) for _ in range(3)]
        await _at_work(server, 8)
        server.answers.set()
        assert {(await batch).status for batch in batches} == {200}
        async with asyncio.timeout(5.0):
            while server.connections() != 1:  # noqa: ASYNC110
                await asyncio.sleep(SECONDS / 10)
        # From then on that one would bind a process as well.
        keeps = False
        await client.post(POSTING, 5.0)
        async with asyncio.timeout(1.0):
            while server.connections():  # noqa: ASYNC110
                await asyncio.sleep(SECONDS / 10)
        await client.close()


async def test_a_name_is_looked_up_once_for_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = 0
    loop = asyncio.get_running_loop()
    looked_up = loop.getaddrinfo

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal lookups
        lookups += args[0] == "localhost"
        return await looked_up(*args, **kwargs)

    monkeypatch.setattr(loop, "getaddrinfo", counted)
    async with _Breaking() as server:
        server.answers.set()
        client = Client(server.url.replace("127.0.0.1", "localhost"), keeps=lambda: False)
        for _ in range(10):
            await client.post(POSTING, 5.0)
        await client.close()
    assert lookups == 1


async def _at_work(server: RowServer, batches: int) -> None:
    async with asyncio.timeout(5.0):
        while len(server.rows) < batches:  # noqa: ASYNC110
            await asyncio.sleep(SECONDS / 10)
