"""Texts share the device with batches and with prompts of others: none holds up another."""

import asyncio
import signal
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

import aiohttp
import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings
from support.beside_texts import asked_rows, rows_asked, texts_running, token_times
from support.chain import Chain, running_chain

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

LONG_ROWS: Final = "batchedmodel_long_rows_beside_texts_total"
ROWS: Final = 32
STEP: Final = 0.02
BATCH: Final = 0.4
"""Seconds of a step of a text, and of a batch of all rows."""
TARGET: Final = 0.05
SETTINGS: Final = BatchSettings(max_batch_size=ROWS, target_token_seconds=TARGET)
PARAMETERS: Final = {
    "generates": "true",
    "stepSeconds": str(STEP),
    "fixedSeconds": "0.004",
    "rowSeconds": str((BATCH - 0.004) / ROWS),
    "prefillTokenSeconds": "0.001",
    "blocks": "1024",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("beside")
    async with running_chain(
        folder, handler="simulated", parameters=PARAMETERS, settings=SETTINGS
    ) as chain:
        yield chain
        chain.sidecar.send(signal.SIGTERM)
        # A sidecar that waited for texts which its batcher never had ended by the drain's limit.
        assert await chain.sidecar.ended() == 0


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain) -> Chain:
    await running.goes_by(SETTINGS)
    return running


def gaps(times: list[float]) -> list[float]:
    return [later - one for one, later in pairwise(times)]


async def test_batches_do_not_come_whole_between_two_tokens(chain: Chain) -> None:
    """Would have caught batches of 400 ms that took turns with steps of 20 ms one by one."""
    async with rows_asked(chain, ROWS, callers=2) as answered:
        await asyncio.sleep(BATCH)
        before, began = answered.count, time.monotonic()
        times = await token_times(chain, tokens=60)
        took, rows = time.monotonic() - began, answered.count - before
    assert statistics.median(gaps(times)) < BATCH / 3
    assert statistics.mean(gaps(times)) < BATCH / 3
    assert rows / took > 0.2 * ROWS / BATCH, "texts do not hold up batches either"


async def test_rows_that_cannot_be_cut_are_answered_beside_texts_and_counted(
    chain: Chain,
) -> None:
    """Would catch a device that waits for time that no row ever finds."""
    await chain.goes_by(replace(SETTINGS, target_token_seconds=STEP + 0.001))
    before = await chain.metric(LONG_ROWS)
    text = asyncio.create_task(token_times(chain, tokens=40))
    await asyncio.sleep(5 * STEP)
    await asked_rows(chain, 4)
    await text
    assert await chain.metric(LONG_ROWS) > before


@pytest.mark.parametrize("target", [None, TARGET])
async def test_a_long_prompt_does_not_come_between_two_tokens_of_others(
    chain: Chain, target: float | None
) -> None:
    """Would have caught prompts that were read by 512 tokens whatever that took: half a second."""
    await chain.goes_by(replace(SETTINGS, target_token_seconds=target))
    async with texts_running(chain, 1, tokens=400) as (times,):
        began = time.monotonic()
        (first,) = await token_times(chain, tokens=1, prompt=f"{target} " + "long " * 300)
    beside = gaps([at for at in times if began <= at <= first])
    assert len(beside) > 5
    assert statistics.median(beside) < 0.3


async def short_prompts(chain: Chain, mark: str) -> float:
    """The median first token of ten, one every 0.2 s."""

    async def one(number: int) -> float:
        began = time.monotonic()
        return (await token_times(chain, tokens=2, prompt=f"{mark}{number}"))[0] - began

    async with asyncio.TaskGroup() as group:
        tasks = list[asyncio.Task[float]]()
        for number in range(10):
            tasks.append(group.create_task(one(number)))
            await asyncio.sleep(0.2)
    return statistics.median(task.result() for task in tasks)


async def test_short_prompts_do_not_wait_for_another_tenants_long_ones(chain: Chain) -> None:
    """Would have caught steps that read 512 tokens, for half a second, where nobody got a token."""
    await chain.goes_by(replace(SETTINGS, target_token_seconds=None))
    alone = await short_prompts(chain, "alone")
    connector = aiohttp.TCPConnector(limit=0, local_addr=("127.0.0.2", 0))
    async with (
        aiohttp.ClientSession(connector=connector) as elsewhere,
        asyncio.TaskGroup() as group,
    ):

        async def long_prompts(number: int) -> None:
            document = {"model": chain.name, "prompt": f"{number} " + "long " * 500}
            while True:
                async with elsewhere.post(chain.url("/v1/completions"), json=document) as response:
                    await response.read()

        flood = [group.create_task(long_prompts(number)) for number in range(16)]
        await asyncio.sleep(1.0)
        beside = await short_prompts(chain, "beside")
        for task in flood:
            task.cancel()
    # Twice is what a benchmark holds it to; here other tests run beside.
    assert beside < 3 * alone


async def test_a_batch_is_answered_before_a_text_ends_that_is_longer(chain: Chain) -> None:
    """Would catch a rule that lets steps go first whenever there are some."""
    text = asyncio.create_task(token_times(chain, tokens=100))
    await asyncio.sleep(5 * STEP)
    await asked_rows(chain, ROWS)
    assert not text.done()
    await text
