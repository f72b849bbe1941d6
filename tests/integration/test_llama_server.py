"""llama.cpp's server behind the sidecar: it is compiled once, runs two requests, and says so."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.books import assert_books_balance
from support.chain import Chain, in_front_of, sample
from support.generated import CHAT, TEXT, ask, request
from support.language_model_servers import llama_server
from support.ports import unused_port

pytestmark = [
    # The first run compiles it.
    pytest.mark.timeout(2400),
    # What it says is pinned, and servers of the tests' own say the same by day.
    pytest.mark.nightly,
    pytest.mark.asyncio(loop_scope="module"),
]

LIMIT: Final = "batchedmodel_max_concurrent_requests"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with llama_server(tmp_path_factory.mktemp("llama"), parallel=2) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="module")
async def chain(server: str, tmp_path: Path) -> AsyncIterator[Chain]:
    async with in_front_of(server, tmp_path, upstream_protocol=ServerProtocol.OPENAI) as chain:
        await chain.ready()
        yield chain
        await assert_books_balance(chain)


async def gauge(chain: Chain, server: str, name: str) -> float:
    async with chain.session.get(f"{server}/metrics", headers={"Connection": "close"}) as answer:
        return sample(await answer.text(), f"llamacpp:{name}")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_answers_are_those_that_the_server_gives_straight(
    chain: Chain, server: str, path: str, stream: bool
) -> None:
    # More would share a pass, whose sums differ in their last digits.
    await chain.goes_by(BatchSettings(max_concurrent_requests=1))
    asked = [request("m", path, f"words {i}", 8 + i, stream=stream) for i in range(8)]
    through = await asyncio.gather(*(ask(chain.session, chain.url(""), path, one) for one in asked))
    straight = [await ask(chain.session, server, path, one) for one in asked]
    assert through == straight
    assert {one.status for one in through} == {200}
    assert not stream or all(one.events[-1] == b"data: [DONE]" for one in through)


async def test_its_refusals_come_as_they_are(chain: Chain, server: str) -> None:
    for asked in ({"model": "m"}, request("m", CHAT, "too long " * 9000)):
        through = await ask(chain.session, chain.url(""), CHAT, asked)
        assert through == await ask(chain.session, server, CHAT, asked)
        assert through.status == 400


async def test_a_caller_that_leaves_frees_the_servers_slot(chain: Chain, server: str) -> None:
    long = request("m", CHAT, "hello", 8000, stream=True, ignore_eos=True)
    async with chain.session.post(chain.url(CHAT), json=long) as response:
        await response.content.readany()
        assert await gauge(chain, server, "requests_processing") == 1
        response.close()
    async with asyncio.timeout(2.0):
        while await gauge(chain, server, "requests_processing"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_its_gauges_teach_how_many_it_runs(chain: Chain, server: str) -> None:
    """No number is given. What it defers shows that more than its two slots are of no use."""
    await chain.goes_by(BatchSettings(request_timeout_seconds=120.0))
    learnt = asyncio.Event()

    async def callers(name: str) -> None:
        while not learnt.is_set():
            asked = request("m", CHAT, name, 200, stream=True, ignore_eos=True)
            said = await ask(chain.session, chain.url(""), CHAT, asked)
            assert (said.status, said.events[-1]) == (200, b"data: [DONE]")
            assert said.events[-2]["choices"][0]["finish_reason"] == "length"

    async with asyncio.timeout(60.0), asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(callers(f"w{number}"))
        before, deferred = await chain.metric(LIMIT), 0.0
        while await chain.metric(LIMIT) >= min(before, 4):
            deferred = max(deferred, await gauge(chain, server, "requests_deferred"))
            await asyncio.sleep(0.05)
        learnt.set()
    assert deferred >= 1


async def test_what_waits_goes_on_once_a_killed_server_is_back(tmp_path: Path) -> None:
    port, folder = unused_port(), tmp_path / "llama"
    folder.mkdir()
    one = BatchSettings(max_concurrent_requests=1)
    settings = {"upstream_protocol": ServerProtocol.OPENAI, "settings": one}
    long = request("m", CHAT, "hello", 8000, stream=True, ignore_eos=True)
    short = request("m", CHAT, "hello", stream=True)
    async with in_front_of(f"http://127.0.0.1:{port}", tmp_path, **settings) as chain:
        async with llama_server(folder, parallel=2, port=port):
            await chain.ready()
            streaming = asyncio.create_task(ask(chain.session, chain.url(""), CHAT, long))
            await chain.until("batchedmodel_num_requests_running", lambda found: found == 1)
            waiting = asyncio.create_task(ask(chain.session, chain.url(""), CHAT, short))
            await chain.until("batchedmodel_num_requests_waiting", lambda found: found == 1)
            await asyncio.sleep(0.5)
        assert (await streaming).events[-1]["error"]["code"] == 503
        await chain.sidecar.wait_for("model not ready: ")
        async with llama_server(folder, parallel=2, port=port), asyncio.timeout(25.0):
            said = await waiting
        assert (said.status, said.events[-1]) == (200, b"data: [DONE]")
        await assert_books_balance(chain)
