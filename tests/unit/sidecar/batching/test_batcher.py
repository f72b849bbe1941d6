"""The asyncio shell: every caller gets its own answer, once, on time, whoever leaves in between."""

import asyncio
from dataclasses import replace

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.outcomes import Outcome, Rejection, ReleaseReason
from batchedmodel_sidecar.calls import Row
from batchedmodel_sidecar.errors import Expired, Rejected, Unserved
from batchedmodel_sidecar.protocols.headers import RequestOptions
from support.hostile_tokenizers import Panic
from support.sidecar_world import (
    DESCRIPTION,
    FIXED,
    MODEL,
    PER_ROW,
    answered,
    call_of,
    rows_of,
    world,
)

pytestmark = pytest.mark.looptime

SETTINGS = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=4)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_lone_caller_is_answered_after_one_forward_pass() -> None:
    w = world()
    started = now()
    assert rows_of(await w.send(b"a")) == [b"a"]
    assert now() - started == pytest.approx(FIXED + PER_ROW)
    assert w.ledger.settled[Outcome.COMPLETED] == 1


async def test_a_batch_is_wanted_for_as_long_as_the_most_patient_of_its_callers() -> None:
    w = world(BatchSettings(policy=PolicyName.GREEDY, request_timeout_seconds=5.0))
    tasks = [w.send(b"a", options=RequestOptions(timeout=timeout)) for timeout in (1.0, 3.0)]
    await asyncio.gather(*tasks)
    assert w.server.wanted == [pytest.approx(3.0)]


async def test_callers_that_arrive_in_one_turn_of_the_loop_share_a_batch() -> None:
    w = world()
    answers = await asyncio.gather(*(w.send(bytes([i])) for i in range(4)))
    assert [rows_of(answer) for answer in answers] == [[bytes([i])] for i in range(4)]
    assert w.server.batches == [4]


async def test_rows_of_other_shapes_share_no_batch_where_answers_would_change() -> None:
    w = world()
    calls = [
        MODEL.call_of(call_of([b"a" * (1 + (n + i) % 3) for i in range(5)]).rows) for n in range(8)
    ]
    apart = replace(MODEL, rows_pad=False)
    strict = [apart.call_of(call.rows) for call in calls]
    answers = await asyncio.gather(*(answered(w.batcher, call) for call in strict))
    assert [rows_of(answer) for answer in answers] == [
        [bytes(row.values[0].data) for row in call.rows] for call in calls
    ]
    assert all(len(set(lengths)) == 1 for lengths in w.server.lengths)
    assert max(w.server.batches) == 4
    w.server.lengths.clear()
    await asyncio.gather(*(answered(w.batcher, call) for call in calls))
    assert any(len(set(lengths)) > 1 for lengths in w.server.lengths)


async def test_each_caller_of_many_gets_its_own_rows_in_order() -> None:
    w = world()
    calls = [[bytes([i, j]) for j in range(1 + i % 7)] for i in range(40)]
    answers = await asyncio.gather(*(w.send(*rows) for rows in calls))
    assert [rows_of(answer) for answer in answers] == calls
    assert max(w.server.batches) <= 4


async def test_a_caller_that_leaves_while_it_waits_is_never_sent() -> None:
    w = world()
    first = w.send(b"first")
    await asyncio.sleep(FIXED / 2)
    leaver, stayer = w.send(b"leaver"), w.send(b"stayer")
    await asyncio.sleep(0)
    leaver.cancel()
    assert rows_of(await stayer) == [b"stayer"]
    assert rows_of(await first) == [b"first"]
    assert b"leaver" not in w.server.rows
    assert w.ledger.cancelled_waiting == 1
    assert w.ledger.settled == {Outcome.COMPLETED: 2, Outcome.CANCELLED: 1}


async def test_a_caller_that_leaves_in_flight_harms_no_neighbour() -> None:
    w = world()
    tasks = [w.send(bytes([i])) for i in range(4)]
    await asyncio.sleep(FIXED / 2)
    tasks[1].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [rows_of(a) for a in answers if not isinstance(a, BaseException)] == [
        [b"\x00"], [b"\x02"], [b"\x03"],
    ]  # fmt: skip
    assert w.ledger.cancelled_in_flight == 1


async def test_a_waiting_call_expires_on_time_while_the_model_is_busy() -> None:
    w = world(replace(SETTINGS, max_batch_size=32, request_timeout_seconds=1.0))
    w.server.free_at = now() + 100.0  # a device that is stuck
    started = now()
    with pytest.raises(Expired) as caught:
        await w.send(b"a")
    assert now() - started == pytest.approx(1.0)
    assert caught.value.status == 504
    assert w.ledger.settled[Outcome.EXPIRED] == 1


async def test_a_call_that_waits_for_a_server_expires_on_time() -> None:
    w = world(replace(SETTINGS, request_timeout_seconds=2.0), attached=False)
    started = now()
    with pytest.raises(Expired):
        await w.send(b"a")
    assert now() - started == pytest.approx(2.0)


async def test_what_waits_is_served_once_a_server_is_there() -> None:
    w = world(attached=False)
    waiting = w.send(b"a")
    await asyncio.sleep(1.0)
    w.batcher.attach(MODEL)
    assert rows_of(await waiting) == [b"a"]


async def test_a_full_queue_refuses_the_whole_call_and_says_when_to_return() -> None:
    w = world(replace(SETTINGS, max_queue_size=4), attached=False)
    waiting = w.send(b"a", b"b", b"c")
    await asyncio.sleep(0)
    with pytest.raises(Rejected) as caught:
        await w.send(b"d", b"e")
    assert caught.value.reason is Rejection.QUEUE_FULL
    assert caught.value.retry_after is not None
    assert w.ledger.rows_waiting == 3
    w.batcher.attach(MODEL)
    assert rows_of(await waiting) == [b"a", b"b", b"c"]


async def test_a_call_larger_than_the_queue_can_never_be_taken() -> None:
    w = world(replace(SETTINGS, max_queue_size=4))
    with pytest.raises(Rejected) as caught:
        await w.send(*[b"x"] * 5)
    assert caught.value.reason is Rejection.TOO_LARGE
    assert caught.value.status == 413


async def test_a_failed_batch_answers_each_of_its_members() -> None:
    w = world()
    w.server.failure = Unserved("gone", status=503)
    results = await asyncio.gather(*(w.send(bytes([i])) for i in range(3)), return_exceptions=True)
    assert [r.status for r in results if isinstance(r, Unserved)] == [503, 503, 503]
    w.server.failure = None
    assert rows_of(await w.send(b"again")) == [b"again"]


async def test_a_row_that_fails_alone_harms_no_neighbour() -> None:
    w = world()
    w.server.statuses[b"bad"] = 400
    good, bad, mixed = w.send(b"good"), w.send(b"bad"), w.send(b"fine", b"bad")
    assert rows_of(await good) == [b"good"]
    with pytest.raises(Unserved, match="^refused$") as caught:
        await bad
    assert caught.value.status == 400
    with pytest.raises(Unserved, match="^row 1: refused$"):
        await mixed


async def test_a_batch_that_cannot_be_made_fails_and_the_next_one_leaves() -> None:
    w = world()
    # Of no value that the model's description has a place for: our bug, wherever it was made.
    broken = call_of([b"a"]).with_rows((Row(values=(), length=1),))
    failing, other = asyncio.ensure_future(answered(w.batcher, broken)), w.send(b"b")
    results = await asyncio.gather(failing, other, return_exceptions=True)
    assert [r.status for r in results if isinstance(r, Unserved)] == [500, 500]
    assert w.ledger.settled == {Outcome.FAILED: 2}
    assert rows_of(await w.send(b"c")) == [b"c"]
    assert w.server.rows == [b"c"]
    await w.batcher.idle()


async def test_a_reply_of_too_few_rows_is_an_error_for_all_and_shifts_nobody() -> None:
    w = world()
    w.server.drop_a_row = True
    results = await asyncio.gather(*(w.send(bytes([i])) for i in range(3)), return_exceptions=True)
    assert [r.status for r in results if isinstance(r, Unserved)] == [502, 502, 502]


async def test_the_second_batch_arrives_as_the_first_ends() -> None:
    w = world(replace(SETTINGS, max_batch_size=32))
    w.server.hand_off = 0.001
    started = now()
    first = w.send(b"first")
    await asyncio.sleep(FIXED / 2)
    later = [w.send(bytes([i])) for i in range(8)]
    await asyncio.gather(first, *later)
    assert w.server.batches == [1, 8]
    device_never_idle = 0.001 + (FIXED + PER_ROW) + (FIXED + 8 * PER_ROW)
    assert now() - started == pytest.approx(device_never_idle, abs=1e-5)
    assert w.ledger.batches[ReleaseReason.JUST_IN_TIME] == 1


async def test_other_settings_hold_from_the_next_batch_on() -> None:
    w = world(replace(SETTINGS, policy=PolicyName.WINDOW, max_wait_seconds=10.0))
    started = now()
    waiting = w.send(b"a")
    await asyncio.sleep(1.0)
    w.batcher.configure(replace(SETTINGS, policy=PolicyName.GREEDY))
    await waiting
    assert now() - started == pytest.approx(1.0 + FIXED + PER_ROW)


async def test_a_smaller_queue_rejects_nothing_that_was_accepted() -> None:
    w = world(replace(SETTINGS, max_queue_size=8), attached=False)
    waiting = [w.send(bytes([i])) for i in range(8)]
    await asyncio.sleep(0)
    w.batcher.configure(replace(SETTINGS, max_queue_size=4))
    w.batcher.attach(MODEL)
    assert [rows_of(a) for a in await asyncio.gather(*waiting)] == [[bytes([i])] for i in range(8)]


async def test_a_flush_waits_for_no_window() -> None:
    w = world(replace(SETTINGS, policy=PolicyName.WINDOW, max_wait_seconds=10.0))
    started = now()
    waiting = w.send(b"a")
    await asyncio.sleep(0)
    w.batcher.flush(True)
    await waiting
    assert now() - started == pytest.approx(FIXED + PER_ROW)


async def test_idle_comes_when_the_last_call_is_settled() -> None:
    w = world()
    task = w.send(b"a")
    await asyncio.sleep(0)
    await w.batcher.idle()
    assert task.done() or w.ledger.rows_live == 0


async def test_a_model_that_takes_other_rows_gets_none_of_the_old_ones() -> None:
    w = world(attached=False)
    waiting = w.send(b"a")
    await asyncio.sleep(0)
    other = replace(DESCRIPTION, inputs=(*DESCRIPTION.inputs, DESCRIPTION.inputs[0]))
    w.batcher.attach(replace(MODEL, description=other))
    with pytest.raises(Unserved, match="replaced by one that takes other inputs"):
        await waiting
    with pytest.raises(Rejected, match="replaced by one that takes other inputs"):
        await w.send(b"parsed before, submitted after")
    assert w.server.batches == []


async def test_a_caller_that_leaves_as_its_answer_comes_is_counted_once() -> None:
    w = world()
    task = w.send(b"a")
    await asyncio.sleep(FIXED + PER_ROW)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    left = w.ledger.cancelled_waiting + w.ledger.cancelled_in_flight
    assert left == w.ledger.settled[Outcome.CANCELLED]
    assert w.ledger.settled.total() == 1


async def test_a_time_out_counts_from_the_arrival_of_the_request() -> None:
    w = world(replace(SETTINGS, request_timeout_seconds=2.0), attached=False)
    started = now()
    with pytest.raises(Expired):
        await answered(w.batcher, call_of([b"a"]), started - 1.5)
    assert now() - started == pytest.approx(0.5)


async def test_nothing_happens_after_the_end() -> None:
    w = world()
    task = w.send(b"a")
    await asyncio.sleep(FIXED / 2)
    await w.batcher.close()
    with pytest.raises(Unserved, match="stopping"):
        await task
    assert w.ledger.batches_in_flight == 0


@pytest.mark.interpreted  # methods of what is compiled cannot be replaced
async def test_what_fails_where_a_call_is_settled_holds_up_no_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call was still counted, so a drain waited for its limit."""
    w = world()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(w.recorder, "settled", broken)
    assert rows_of(await w.send(b"a")) == [b"a"]
    async with asyncio.timeout(5.0):
        await w.batcher.idle()


async def test_giving_up_answers_everybody() -> None:
    w = world(attached=False)
    waiting = [w.send(bytes([i])) for i in range(3)]
    await asyncio.sleep(0)
    w.batcher.give_up("over")
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(r, Unserved) and r.status == 503 for r in results)
    await w.batcher.idle()


async def test_whatever_a_link_raises_its_batch_fails_and_the_next_one_is_served() -> None:
    w = world()
    w.server.failure = Panic("of a library")  # type: ignore[assignment]
    with pytest.raises(Unserved, match="error in the sidecar: Panic") as failed:
        async with asyncio.timeout(5.0):
            await w.send(b"a")
    assert failed.value.status == 500
    w.server.failure = None
    assert rows_of(await w.send(b"b")) == [b"b"]
