"""Answers that do not stream: what is begun is whole in its time, in front of either engine.

Before, a request was let go whenever a place was free: with three times as many callers as places
most answers were cut at their deadlines, and three quarters of all tokens thrown away.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes import sidecar_metrics as names
from support.books import assert_books_balance
from support.chain import Chain, in_front_of, running_chain
from support.engine import EngineSettings
from support.engine_server import EngineServer
from support.whole_answers import COMPLETIONS, WholeLoad, ask_whole

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLACES: Final = 4
STEP_SECONDS: Final = 0.05
TOKENS: Final = 20
LOAD: Final = WholeLoad(
    callers=3 * PLACES, seconds=6.0, allowed_seconds=1.6, tokens=lambda chance: TOKENS
)
ANSWERS: Final = LOAD.seconds / (TOKENS * STEP_SECONDS) * PLACES
"""What the places do in that time."""
Running = tuple[Chain, Callable[[], Awaitable[float]]]
"""What is asked, and how many tokens its engine has made."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    parameters = {"generates": "true", "stepSeconds": str(STEP_SECONDS)}
    async with running_chain(
        tmp_path_factory.mktemp("ours"),
        handler="simulated",
        parameters=parameters,
        settings=BatchSettings(max_sequences=PLACES),
    ) as chain:
        yield chain, lambda: chain.metric(names.OUTPUT_TOKENS)
        await assert_books_balance(chain)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def another(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    settings = EngineSettings(max_num_seqs=PLACES, step_seconds=STEP_SECONDS)
    async with (
        EngineServer(settings=settings) as engine,
        in_front_of(
            engine.url,
            tmp_path_factory.mktemp("another"),
            upstream_protocol=ServerProtocol.OPENAI,
            settings=BatchSettings(max_concurrent_requests=PLACES),
        ) as chain,
    ):
        await chain.ready()

        async def made() -> float:
            return engine.counts()["generated_tokens"]

        yield chain, made
        await assert_books_balance(chain)


async def test_what_our_engine_begins_is_whole_in_its_time(ours: Running) -> None:
    await _assert_most_are_whole(ours)


async def test_what_another_server_begins_is_whole_in_its_time(another: Running) -> None:
    await _assert_most_are_whole(another)


async def test_what_is_too_long_for_certain_is_refused_at_once_and_streams_all_the_same(
    ours: Running,
) -> None:
    """An idle engine began with it, and ended it at its deadline."""
    chain, made = ours
    before, body = await made(), {"model": "m", "prompt": "a", "max_tokens": 500}
    for streams in (False, True):
        asked = {**body, "ignore_eos": True, "stream": streams}
        headers = {"x-request-timeout-ms": "6000"}
        async with chain.session.post(chain.url(COMPLETIONS), json=asked, headers=headers) as told:
            if streams:
                assert told.status == 200
                assert await told.content.readuntil(b"\n\n")
            else:
                assert (told.status, told.headers["x-request-outcome"]) == (429, "predicted_late")
                assert float(told.headers["retry-after-ms"]) >= 1000
                assert "6 s" in await told.text()
                assert await made() == before


async def _assert_most_are_whole(running: Running) -> None:
    chain, made = running
    before = await made()
    seen = await ask_whole(chain, LOAD)
    thrown_away = 1 - seen.tokens / (await made() - before)
    assert thrown_away <= 0.2
    assert seen.in_time >= 0.6 * ANSWERS
