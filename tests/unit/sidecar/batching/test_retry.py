"""What becomes of rows whose batch came to nothing."""

import asyncio
import random
from dataclasses import replace

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_sidecar.calls import Call
from batchedmodel_sidecar.errors import Busy, Expired, Lost, Unserved
from batchedmodel_sidecar.lifecycle import DrainEnd, Lifecycle
from batchedmodel_sidecar.model import LinkStatus
from support.sidecar_world import (
    DESCRIPTION,
    FIXED,
    MODEL,
    PER_ROW,
    World,
    answered,
    call_of,
    rows_of,
    world,
)

pytestmark = pytest.mark.looptime

SETTINGS = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=8)
deadlines = pytest.mark.parametrize("policy", list(PolicyName))


def now() -> float:
    return asyncio.get_running_loop().time()


async def heal(w: World, after: float) -> None:
    await asyncio.sleep(after)
    w.server.failure = None


# The server dies


@deadlines
async def test_who_was_in_work_when_the_server_died_is_served_by_the_next_one(
    policy: PolicyName,
) -> None:
    w = world(replace(SETTINGS, policy=policy))
    w.server.failure = Lost("gone")
    tasks = [w.send(bytes([n])) for n in range(5)]
    await asyncio.sleep(0.02)  # longer than a window and a pass
    w.batcher.detach()
    await heal(w, FIXED)
    w.batcher.attach(MODEL)
    assert [rows_of(answer) for answer in await asyncio.gather(*tasks)] == [
        [bytes([n])] for n in range(5)
    ]
    assert w.ledger.rows_returned >= 5
    assert w.server.batches[0] == 5


async def test_what_kills_servers_is_refused_the_second_time_and_takes_nobody_with_it() -> None:
    w = world(SETTINGS)
    w.server.deadly.add(b"poison")
    good = [w.send(bytes([n])) for n in range(7)]
    poison = w.send(b"poison")
    with pytest.raises(Unserved, match="died twice with this in work") as told:
        await poison
    assert (told.value.status, told.value.retry_after) == (502, None)
    assert [rows_of(answer) for answer in await asyncio.gather(*good)] == [
        [bytes([n])] for n in range(7)
    ]
    assert w.server.batches == [8, *[1] * 8], "each by itself, once"
    assert w.server.rows.count(b"poison") == 2


async def test_what_dies_beside_a_request_that_passes_through_is_not_blamed() -> None:
    w = world(SETTINGS)
    w.server.deadly.add(b"poison")
    w.ledger.pass_on()
    with pytest.raises(Lost):
        await w.send(b"poison")


@deadlines
async def test_of_two_that_kill_the_second_one_takes_nobody_with_it_either(
    policy: PolicyName,
) -> None:
    """When the second one is tried, others that the first death took still wait."""
    w = world(replace(SETTINGS, policy=policy, max_wait_seconds=0.0, max_batch_size=32))
    w.server.falls_as_one = True
    w.server.deadly |= {b"1", b"40"}
    rows = [b"%d" % n for n in range(64)]
    told = await asyncio.gather(*(w.send(row) for row in rows), return_exceptions=True)
    blamed = [row for row, one in zip(rows, told, strict=True) if isinstance(one, Unserved)]
    assert blamed == [b"1", b"40"]
    assert all(w.server.rows.count(row) == 2 for row in blamed)


@pytest.mark.slow
@deadlines
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("falls_as_one", [True, False], ids=["all", "one_worker"])
async def test_however_many_kill_each_is_blamed_and_nobody_else(
    policy: PolicyName, workers: int, falls_as_one: bool
) -> None:
    chance = random.Random(workers)
    w = world(replace(SETTINGS, policy=policy, max_batch_size=32, max_concurrent_batches=workers))
    w.server.falls_as_one = falls_as_one
    w.server.side_by_side = workers > 1
    if w.server.side_by_side:
        w.batcher.attach(replace(MODEL, depth=1))
    w.server.deadly.add(b"kill")
    sent = []
    for _ in range(300):
        rows = chance.choices([b"a", b"bb", b"kill"], [20, 20, 1], k=chance.choice([1, 1, 1, 2]))
        sent.append((rows, w.send(*rows)))
        await asyncio.sleep(chance.choice([0.0] * 9 + [0.001]))
    told = await asyncio.gather(*(task for _, task in sent), return_exceptions=True)
    for (rows, _), one in zip(sent, told, strict=True):
        assert isinstance(one, Unserved) == (b"kill" in rows), (rows, one)
        assert not isinstance(one, Unserved) or "died twice" in one.message


async def test_who_is_tried_again_comes_before_those_who_never_were() -> None:
    w = world(SETTINGS)
    w.server.deadly.add(b"poison")
    poison, beside = w.send(b"poison"), w.send(b"beside")
    await asyncio.sleep(FIXED / 2)
    later = [w.send(b"later") for _ in range(30)]
    await asyncio.gather(poison, beside, *later, return_exceptions=True)
    assert w.server.rows.index(b"beside", 2) < w.server.rows.index(b"later", 2 + 8)


async def test_who_leaves_before_it_is_tried_again_is_not_sent() -> None:
    w = world(SETTINGS)
    w.server.deadly.add(b"poison")
    poison, leaver = w.send(b"poison"), w.send(b"leaver")
    await asyncio.sleep(2 * (FIXED + PER_ROW))
    assert w.ledger.rows_waiting == 2
    leaver.cancel()
    with pytest.raises(Unserved, match="died twice"):
        await poison
    assert w.server.rows.count(b"leaver") == 1
    assert w.ledger.rows_waiting == 0


async def test_what_must_not_be_sent_twice_fails_at_once() -> None:
    w = world(SETTINGS, idempotent=False)
    w.server.failure = Lost("gone")
    with pytest.raises(Lost):
        await w.send(b"a")
    assert w.server.batches == [1]


async def test_what_the_model_says_must_not_be_sent_twice_fails_at_once_as_well() -> None:
    w = world(SETTINGS)
    w.batcher.attach(replace(MODEL, description=replace(DESCRIPTION, idempotent=False)))
    w.server.failure = Lost("gone")
    served = replace(DESCRIPTION, idempotent=False)
    whole = call_of([b"a"])
    call = Call(whole.rows, served, whole.key)
    with pytest.raises(Lost):
        await answered(w.batcher, call)
    assert w.server.batches == [1]


async def test_a_row_that_expires_while_it_waits_for_another_try_is_told_in_time() -> None:
    w = world(replace(SETTINGS, request_timeout_seconds=1.0))
    w.server.failure = Lost("gone")
    task = w.send(b"a")
    await asyncio.sleep(FIXED / 2)
    w.batcher.detach()
    with pytest.raises(Expired):
        await task
    assert now() == pytest.approx(1.0)


async def test_of_a_call_only_the_rows_that_were_in_work_are_sent_again() -> None:
    w = world(replace(SETTINGS, max_batch_size=2))
    w.server.deadly.add(b"c")
    task = w.send(b"a", b"b", b"c", b"d")
    with pytest.raises(Unserved, match="died twice"):
        await task
    assert w.server.rows.count(b"a") == 1


async def test_a_server_that_stops_answers_what_it_has_while_the_pod_drains() -> None:
    w = world(SETTINGS)
    task = w.send(b"a")
    await asyncio.sleep(FIXED / 2)
    waits = w.send(b"b")
    await asyncio.sleep(0)
    w.batcher.flush(True)
    w.batcher.detach()
    w.batcher.give_up("the model is gone", in_flight=False)
    with pytest.raises(Unserved, match="gone"):
        await waits
    assert rows_of(await task) == [b"a"]


async def test_in_a_drain_without_a_server_nothing_waits_for_another_try() -> None:
    w = world(SETTINGS)
    w.server.failure = Lost("gone")
    task = w.send(b"a")
    await asyncio.sleep(FIXED / 2)
    w.batcher.flush(True)
    w.batcher.detach()
    with pytest.raises(Lost):
        await task


@pytest.mark.parametrize("stuck", [True, False], ids=["hung", "gone"])
async def test_a_drain_does_not_wait_for_a_server_that_hangs(stuck: bool) -> None:
    w = world(SETTINGS)
    w.server.free_at = now() + 10.0
    task = w.send(b"a")
    await asyncio.sleep(0.1)
    w.batcher.detach()
    status = LinkStatus(model=None, reason="the model is HUNG", stuck=stuck)
    lifecycle = Lifecycle(
        w.batcher, model=lambda: status, watch=lambda closely: None, delay=0.0, limit=60.0
    )
    assert await lifecycle.begin_drain() is DrainEnd.EMPTY
    if stuck:
        assert now() == pytest.approx(0.1)
        with pytest.raises(Unserved, match="gone") as told:
            await task
        assert (told.value.status, told.value.retry_after) == (503, 1.0)
    else:
        assert rows_of(await task) == [b"a"]


# The server asks for rest


async def test_a_server_that_asks_for_rest_is_left_alone_and_then_asked_again() -> None:
    w = world(SETTINGS)
    w.server.failure = Busy("later", retry_after=0.5)
    task = w.send(b"a")
    await heal(w, 0.2)
    assert w.server.batches == [1]
    assert rows_of(await task) == [b"a"]
    assert now() == pytest.approx(FIXED + PER_ROW + 0.5 + FIXED + PER_ROW)


async def test_after_three_rests_the_caller_is_told_what_the_server_says() -> None:
    w = world(SETTINGS)
    w.server.failure = Busy("later", status=429, retry_after=0.1)
    with pytest.raises(Busy, match="later") as told:
        await w.send(b"a")
    assert told.value.status == 429
    assert len(w.server.batches) == 4


async def test_rest_is_waited_out_by_those_that_may_not_be_sent_twice_as_well() -> None:
    w = world(SETTINGS, idempotent=False)
    w.server.failure = Busy("later", retry_after=0.1)
    task = w.send(b"a")
    await heal(w, 0.05)
    assert rows_of(await task) == [b"a"]


# The server fails


async def test_a_server_that_keeps_failing_gets_one_batch_now_and_then_until_it_succeeds() -> None:
    w = world(replace(SETTINGS, max_batch_size=1, request_timeout_seconds=30.0))
    w.server.failure = Unserved("broken", status=500)
    tasks = [w.send(bytes([n])) for n in range(7)]
    await asyncio.wait(tasks[:5])
    assert w.batcher.closed is not None
    assert len(w.server.batches) <= 6, "one more may have been on its way"
    await asyncio.sleep(0.9)
    sent = len(w.server.batches)
    w.server.failure = None
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(answer, Unserved) for answer in answers) == sent
    assert w.batcher.closed is None


async def test_behind_a_pause_callers_come_again_though_nobody_waits() -> None:
    w = world(replace(SETTINGS, max_batch_size=1))
    w.server.failure = Unserved("broken", status=500)
    await asyncio.gather(*(w.send(b"a") for _ in range(5)), return_exceptions=True)
    assert w.batcher.closed is not None
    w.server.failure = None
    await asyncio.sleep(1.1)
    assert w.batcher.closed is None
    assert rows_of(await w.send(b"b")) == [b"b"]


@pytest.mark.interpreted
async def test_a_failed_decision_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    w = world(SETTINGS)
    poll = w.batcher.policy.poll
    monkeypatch.setattr(w.batcher.policy, "poll", lambda *_: 1 / 0)
    task = w.send(b"a")
    await asyncio.sleep(0.5)
    assert "a decision failed" in caplog.text
    assert w.batcher.ailment() is None
    await asyncio.sleep(2.0)
    assert "decisions failed" in (w.batcher.ailment() or "")
    monkeypatch.setattr(w.batcher.policy, "poll", poll)
    assert rows_of(await task) == [b"a"]
    assert w.batcher.ailment() is None
