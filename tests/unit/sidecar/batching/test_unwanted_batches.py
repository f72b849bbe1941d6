"""What becomes of batches whose callers leave, or run out of time."""

import asyncio
from dataclasses import replace

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_sidecar.errors import Expired
from support.sidecar_world import FIXED, MODEL, rows_of, world

pytestmark = pytest.mark.looptime

SETTINGS = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=8)


async def test_the_log_says_of_a_caller_who_left_that_it_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    w = world(SETTINGS)
    with caplog.at_level("DEBUG"):
        leaver = w.send(b"a")
        await asyncio.sleep(FIXED / 2)
        leaver.cancel()
        await asyncio.sleep(0)
    assert "1 rows cancelled: the caller left" in caplog.text


async def test_a_batch_is_on_its_way_when_the_turn_ends_in_which_it_is_released() -> None:
    w = world(SETTINGS)
    answer = w.send(b"a")
    await asyncio.sleep(0)  # it is offered
    await asyncio.sleep(0)  # it is released
    assert w.server.batches == [1]
    assert rows_of(await answer) == [b"a"]


@pytest.mark.interpreted
async def test_the_server_is_hung_up_on_by_a_batch_that_is_unwanted_in_the_turn_in_which_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w, ended = world(SETTINGS), list[str]()

    async def infer(request: object, seconds: float) -> object:
        try:
            return await asyncio.Event().wait()
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    monkeypatch.setattr(w.batcher, "_infer", infer)
    leaver = w.send(b"a")
    await asyncio.sleep(0)
    w.batcher._decisions.make()
    leaver.cancel()
    await asyncio.sleep(FIXED)
    assert ended == ["CancelledError"]
    assert w.ledger.batches_in_flight == 0


async def test_a_batch_whose_callers_leave_as_it_sets_out_keeps_no_place_at_the_server() -> None:
    w = world(SETTINGS)
    for _ in range(MODEL.depth):
        leaver = w.send(b"a")
        await asyncio.sleep(0)
        # It has been sent in a batch before it knows of this.
        leaver.cancel()
        await asyncio.sleep(FIXED / 100)
    assert w.ledger.settled == {Outcome.CANCELLED: MODEL.depth}
    assert w.ledger.cancelled_in_flight == MODEL.depth
    assert w.ledger.batches_in_flight == 0
    assert rows_of(await w.send(b"b")) == [b"b"]


async def test_a_batch_whose_callers_have_all_left_is_dropped() -> None:
    w = world(SETTINGS)
    tasks = [w.send(bytes([n])) for n in range(3)]
    await asyncio.sleep(FIXED / 2)
    for task in tasks[:2]:
        task.cancel()
    await asyncio.sleep(0)
    assert w.server.dropped == 0
    tasks[2].cancel()
    await asyncio.sleep(FIXED / 100)
    assert w.server.dropped == 1
    assert w.ledger.batches_in_flight == 0
    assert w.ledger.settled == {Outcome.CANCELLED: 3}


async def test_a_batch_whose_callers_ran_out_of_time_is_awaited_lest_a_hung_server_look_well() -> (
    None
):
    w = world(replace(SETTINGS, request_timeout_seconds=1.0))
    w.server.free_at = asyncio.get_running_loop().time() + 100.0
    with pytest.raises(Expired):
        await w.send(b"a")
    assert w.server.dropped == 0
    await asyncio.sleep(4.9)
    assert w.ledger.batches_in_flight == 1
