"""What a model server answers as a real process on a real Unix socket, without torch."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from batchedmodel_contract.inference.batch import (
    BatchRequest,
    Ragged,
    ragged,
)
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.link.model_state import ModelState
from support.model_server_handlers import arrays_of
from support.model_server_process import NAME, ModelServerProcess, model_server, token_batch
from support.private_hop import HopError, connected

HANDLERS = "support.model_server_handlers"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def simulated(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ModelServerProcess]:
    """One for all tests that leave it as it was."""
    async with model_server(tmp_path_factory.mktemp("simulated")) as server:
        assert (await server.settled()).state is ModelState.READY
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def failing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelServerProcess]:
    """One that echoes, in several outputs, and fails at certain numbers."""
    folder = tmp_path_factory.mktemp("failing")
    async with model_server(folder, f"{HANDLERS}:Failing") as server:
        assert (await server.settled()).state is ModelState.READY
        yield server


async def test_a_batch_is_answered_item_by_item(simulated: ModelServerProcess) -> None:
    reply = await simulated.hop.infer(token_batch("x", [[1, 2, 3], [4], [5, 6]]))
    assert reply.statuses == (200, 200, 200)
    assert [a.tolist() for a in arrays_of(reply.outputs[0])] == [[1, 2, 3], [4], [5, 6]]
    assert reply.queue_seconds + reply.compute_seconds >= 0.00529
    assert reply.tokens == 6


async def test_the_documents_can_be_read_by_the_proxy(simulated: ModelServerProcess) -> None:
    description = await simulated.hop.description()
    assert description.name == NAME
    assert description.cost_rule is CostRule.ROWS
    assert (await simulated.hop.profile()).points[0].rows == 1
    assert await simulated.hop.tokenizer() == b""


async def test_a_version_that_is_not_known_is_not_found(simulated: ModelServerProcess) -> None:
    with pytest.raises(HopError) as refusal:
        await simulated.hop.infer(replace(token_batch("x", [[1]]), version="9"))
    assert refusal.value.status == 404


async def test_the_simulated_device_is_never_faster_than_its_formula(
    simulated: ModelServerProcess,
) -> None:
    batch = token_batch("x", [[1]] * 32)
    each = 0.005 + 32 * 0.0001

    async def caller(count: int) -> None:
        for _ in range(count):
            await simulated.hop.infer(batch)

    began = time.monotonic()
    await asyncio.gather(caller(10), caller(10))
    took = time.monotonic() - began
    # How little slower it is depends on the machine, so a benchmark says that.
    assert took >= 20 * each


async def test_a_caller_that_leaves_disturbs_nobody(simulated: ModelServerProcess) -> None:
    callers = [
        asyncio.create_task(simulated.hop.infer(token_batch("x", [[number]])))
        for number in range(20)
    ]
    await asyncio.sleep(0.01)
    for caller in callers[::2]:
        caller.cancel()
    await asyncio.wait(callers)
    for number, caller in enumerate(callers):
        if number % 2:
            assert arrays_of(caller.result().outputs[0])[0].tolist() == [number]


async def test_batches_beyond_the_bound_are_refused_at_once(simulated: ModelServerProcess) -> None:
    async def ask() -> int:
        try:
            await simulated.hop.infer(token_batch("x", [[1]]))
        except HopError as refusal:
            return refusal.status
        return 200

    statuses = await asyncio.gather(*(ask() for _ in range(300)))
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 64


async def test_a_bad_item_and_a_failed_pass_are_answered_per_item(
    failing: ModelServerProcess,
) -> None:
    reply = await failing.hop.infer(token_batch("x", [[1], [99], [2, 3]]))
    assert reply.statuses == (200, 400, 200)
    assert reply.errors[1] == "x: 99 is not served here"
    reply = await failing.hop.infer(token_batch("x", [[1], [99], [13]]))
    assert reply.statuses == (200, 400, 500)
    assert "13 brings bad luck" in reply.errors[2]
    # The failure is over with its batch.
    assert (await failing.hop.infer(token_batch("x", [[1]]))).statuses == (200,)


async def test_a_large_batch_is_answered(simulated: ModelServerProcess) -> None:
    items = [((300_000,), bytes(8 * 300_000)), ((1,), bytes(8))]
    reply = await simulated.hop.infer(BatchRequest(inputs=(ragged("x", Datatype.INT64, items),)))
    assert len(reply.statuses) == 2


async def test_a_caller_that_leaves_ends_its_batch_before_it_is_begun(tmp_path: Path) -> None:
    batch = token_batch("x", [[1]])
    parameters = {"fixedSeconds": "0.5", "rowSeconds": "0"}
    async with model_server(tmp_path, parameters=parameters) as slow:
        assert (await slow.settled()).state is ModelState.READY
        began = asyncio.get_running_loop().time()
        stays = asyncio.create_task(slow.hop.infer(batch))
        await asyncio.sleep(0.05)
        for _ in range(8):
            async with connected(slow.socket) as leaves:
                leaving = asyncio.create_task(leaves.infer(batch))
                await asyncio.sleep(0.02)
                leaving.cancel()
                await asyncio.wait([leaving])
        assert (await stays).statuses == (200,)
        assert (await slow.hop.infer(batch)).statuses == (200,)
        # Of the eight at most one was on its way to the device already: three passes, and not ten.
        assert asyncio.get_running_loop().time() - began < 3.5


async def test_hundred_thousand_items_that_hold_nothing_are_refused_unjudged(
    simulated: ModelServerProcess,
) -> None:
    with pytest.raises(HopError) as refusal:
        await simulated.hop.infer(empty_items(100_000))
    assert refusal.value.status == 400
    assert "holds 100000 items; a batch has at most 4096" in refusal.value.message
    # As many as a batch may have are judged one by one, and each has its own verdict.
    assert (await simulated.hop.infer(empty_items(4096))).statuses == (400,) * 4096


def empty_items(count: int) -> BatchRequest:
    """A batch of items of length 0."""
    items = Ragged(name="x", datatype=Datatype.INT64, shapes=((0,),) * count, parts=(b"",))
    return BatchRequest(inputs=(items,))
