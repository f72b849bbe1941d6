"""What callers see of a model that fails, with both processes for real."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.processes.environment import EXIT_DEVICE_LOST
from support.chain import Chain, running_chain
from support.tender_handlers import DEADLY, HEAVY, STICKY

pytestmark = pytest.mark.asyncio(loop_scope="module")

HANDLERS = "support.tender_handlers"
COUNT, BUCKET = "batchedmodel_batch_size_count", "batchedmodel_batch_size_bucket"
# A window in which all that is sent at once comes together.
TOGETHER = BatchSettings(policy=PolicyName.WINDOW, max_batch_size=32, max_wait_seconds=0.5)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_host(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One without torch, whose sidecar outlives all that is done to the model."""
    folder = tmp_path_factory.mktemp("host")
    handler = f"{HANDLERS}:TenderOnHost"
    async with running_chain(folder, handler=handler, settings=TOGETHER) as chain:
        yield chain


async def doubled(chain: Chain, *numbers: float) -> int:
    """The status of a call of one row; if it is 200 the answer was right."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(numbers)], "data": numbers}
    url = chain.url(chain.infer_path)
    async with chain.session.post(url, data=json.dumps({"inputs": [tensor]})) as response:
        document = await response.json()
        if response.status == 200:
            assert document["outputs"][0]["data"] == [2 * number for number in numbers]
        return response.status


async def test_the_sidecar_builds_no_batch_that_the_server_has_found_too_large(
    on_host: Chain,
) -> None:
    assert await send_32(on_host) == (1, 0), "one batch of 32"
    # Sixteen did not fit either, and three quarters of that is what is believed.
    batches, small = await send_32(on_host)
    assert batches == small >= 3


async def send_32(chain: Chain) -> tuple[float, float]:
    """Batches that 32 rows at once made, and how many of these had 16 rows or less."""
    before = [await chain.metric(COUNT), await chain.metric(BUCKET, le="16.0")]
    statuses = await asyncio.gather(*(doubled(chain, HEAVY, HEAVY) for _ in range(32)))
    assert statuses == [200] * 32
    after = [await chain.metric(COUNT), await chain.metric(BUCKET, le="16.0")]
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.torch
async def test_an_item_over_which_devices_are_lost_is_found_and_takes_nobody_with_it(
    tmp_path: Path,
) -> None:
    """The test is the kubelet: it starts the model server anew when it has ended."""
    async with running_chain(tmp_path, handler=f"{HANDLERS}:Tender", settings=TOGETHER) as chain:

        async def restarted_twice() -> list[int]:
            ends = []
            for _ in range(2):
                ends.append(await chain.model.ended())
                await chain.model.start()
            return ends

        kubelet = asyncio.create_task(restarted_twice())
        good = [asyncio.create_task(doubled(chain, float(n))) for n in range(100, 107)]
        deadly = asyncio.create_task(doubled(chain, DEADLY))
        assert await asyncio.gather(*good) == [200] * 7
        assert await deadly == 502
        assert await kubelet == [EXIT_DEVICE_LOST] * 2
        await chain.until("batchedmodel_model_ready", lambda value: value == 1)
        assert await doubled(chain, 1.0) == 200


async def test_a_pass_that_hangs_fails_the_models_liveness_and_a_restart_heals_it(
    on_host: Chain,
) -> None:
    chain = on_host
    callers = [asyncio.create_task(doubled(chain, STICKY)) for _ in range(3)]
    assert (await chain.admin("/model/live"))[0] == 200
    await chain.sidecar.wait_for("model not ready: the model is HUNG: a forward pass has run")
    assert (await chain.admin("/model/live"))[0] == 503
    status, reason = await chain.admin("/ready")
    assert status == 503
    assert "HUNG" in str(reason)
    assert await doubled(chain, 1.0) == 503
    began = time.monotonic()
    chain.model.send(signal.SIGTERM)
    assert await chain.model.ended() == 128 + signal.SIGTERM, "it was cut off"
    assert time.monotonic() - began < 10, "what hangs is not waited for"
    seen = len(chain.sidecar.lines)
    await chain.model.start()
    await chain.ready(after=seen)
    assert (await chain.admin("/model/live"))[0] == 200
    # Each is tried again by itself, and alone it does no harm.
    assert await asyncio.gather(*callers) == [200] * 3
