"""What callers with kept connections meet when the model goes away: at most one refusal on each.

Other pods have the model still, and only a new connection goes to one of them.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from batchedmodel_contract.processes.sidecar_api import READY
from support.chain import START_SECONDS, Chain, running_chain
from support.raw_caller import RawCaller, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = "Content-Type: application/json"
BODY = b'{"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}'
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
LONG = json.dumps(CHAT | {"max_tokens": 2000}).encode()
LARGE = BODY + b" " * 100_000
ENDS_WITHIN = 10.0
"""Seconds; a connection that is only idle would stay for 75."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("away")
    parameters = {"generates": "true", "stepSeconds": "0.01"}
    async with running_chain(folder, handler="simulated", parameters=parameters) as running:
        yield running


async def answered(chain: Chain, caller: RawCaller) -> None:
    caller.sends(request(chain.infer_path, BODY, JSON))
    assert (await caller.answer())[0] == 200


@asynccontextmanager
async def without_model(chain: Chain) -> AsyncIterator[None]:
    """From when the sidecar knows that the model server was killed; then it is started again."""
    await chain.model.kill()
    try:
        async with asyncio.timeout(START_SECONDS):
            while (await chain.admin(READY))[0] == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield
    finally:
        after = len(chain.sidecar.lines)
        await chain.model.start()
        await chain.ready(after=after)


async def rest(caller: RawCaller) -> bytes:
    """All that comes until the sidecar hangs up."""
    async with asyncio.timeout(ENDS_WITHIN):
        return await caller.rest()


@pytest.mark.parametrize(
    "wire",
    [
        request("/v2/models/m/infer", BODY, JSON),
        # Three at once: a caller that sends ahead is told once as well.
        request("/v2/models/m/infer", BODY, JSON) * 3,
        request("/v2/models/m/infer", BODY, JSON, chunks=10) * 3,
        request("/v2/models/m/infer", LARGE, JSON),
        request("/v1/embeddings", b"{}", JSON),
        request("/v1/chat/completions", LONG, JSON) * 3,
        request("/v1/chat/completions", LONG, JSON, chunks=10),
    ],
    ids=["small", "three", "three in chunks", "large", "embeddings", "chat", "chat in chunks"],
)
async def test_a_refusal_for_want_of_the_model_ends_its_connection(
    chain: Chain, wire: bytes
) -> None:
    """It was kept, and its caller was refused on it for the whole restart."""
    async with RawCaller.calling(chain.port) as kept:
        await answered(chain, kept)
        # A part of a head, or a slow test would find its connection closed as idle.
        kept.sends(wire[:8])
        async with without_model(chain):
            kept.sends(wire[8:])
            told = await rest(kept)
    assert told.startswith(b"HTTP/1.1 503 ")
    assert told.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in told.lower()
    assert b"\r\nretry-after:" in told.lower()


async def test_idle_connections_end_when_the_model_goes_away_and_stay_when_it_is_back(
    chain: Chain,
) -> None:
    """On each of them a caller would have been refused, however much later."""
    async with AsyncExitStack() as stack:
        used, unused = [
            await stack.enter_async_context(RawCaller.calling(chain.port)) for _ in range(2)
        ]
        await answered(chain, used)
        async with without_model(chain):
            later = await stack.enter_async_context(RawCaller.calling(chain.port))
            assert [await rest(caller) for caller in (used, unused, later)] == [b""] * 3
        kept = await stack.enter_async_context(RawCaller.calling(chain.port))
        await answered(chain, kept)
        await asyncio.sleep(2.0)
        await answered(chain, kept)


@pytest.mark.parametrize("model_first", [False, True], ids=["sidecar first", "model first"])
async def test_texts_whose_model_dies_under_a_sidecar_that_ends_are_told_at_once(
    tmp_path: Path, model_first: bool
) -> None:
    """They waited for another engine until their time was over, and the drain for them."""
    parameters = {"generates": "true", "stepSeconds": "0.05"}
    async with running_chain(tmp_path, handler="simulated", parameters=parameters) as ending:
        url, streams = ending.url("/v1/completions"), {"prompt": "a", "max_tokens": 2000}
        body = {"model": "m", "ignore_eos": True, "stream": True, **streams}
        async with ending.session.post(url, json=body) as streamed:
            assert await streamed.content.readline()
            if model_first:
                # As by the hook of a container: the model may return from such a drain.
                await ending.begin_drain()
                await ending.model.kill()
                await ending.sidecar.wait_for("the model server cannot be reached")
            ending.sidecar.send(signal.SIGTERM)
            await ending.sidecar.wait_for("draining")
            if not model_first:
                await ending.model.kill()
            async with asyncio.timeout(ENDS_WITHIN):
                told = await streamed.content.read()
        assert b"the model is gone" in told
        assert await ending.sidecar.ended() == 0
