"""Tenants beside each other: what one of them sends cannot make another wait."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from statistics import median, quantiles

import looptime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchedmodel_contract.manifest.batching import Lateness, PolicyName
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.errors import CallError, Rejected
from batchedmodel_sidecar.protocols.headers import RequestOptions
from batchedmodel_sidecar.telemetry.ledger import TenantCount
from support.examples import examples
from support.sidecar_world import World, rows_of, world
from support.tenants import BATCH, LIMIT, POLICIES, SETTINGS, now

pytestmark = pytest.mark.looptime


def poisson(rate: float, seconds: float) -> list[float]:
    rng, at, times = random.Random(7), 0.0, list[float]()
    while (at := at + rng.expovariate(rate)) < seconds:
        times.append(at)
    return times


async def steady(w: World, times: list[float], began: float) -> list[float]:
    """Latencies of single rows of the interactive tenant; raises if one is not answered."""

    async def one(at: float) -> float:
        await asyncio.sleep(began + at - now())
        sent = now()
        assert rows_of(await w.send(b"mine", tenant="interactive")) == [b"mine"]
        return now() - sent

    return await asyncio.gather(*(one(at) for at in times))


async def flood(
    w: World, rate: float, seconds: float, options: RequestOptions | None = None
) -> list[str]:
    """Rows of one other tenant, ten a time; how each ended."""

    async def one() -> str:
        try:
            await w.send(b"flood", options=options or RequestOptions(), tenant="flood")
        except Rejected as refused:
            return refused.reason
        except CallError as error:
            return type(error).__name__
        return "answered"

    tasks, ends = [], now() + seconds
    while now() < ends:
        tasks += [asyncio.create_task(one()) for _ in range(10)]
        await asyncio.sleep(10 / rate)
    return await asyncio.gather(*tasks)


def first_of_all(times: list[float]) -> Iterator[float]:
    """Latencies where the same batches run and these rows go first in each.

    A batch is sent when the one before it begins: the server holds one behind the one that runs.
    """
    start, waiting = 0.0, list(times)
    while waiting:
        members = [at for at in waiting[:8] if at <= start - BATCH]
        waiting = waiting[len(members) :]
        start += BATCH
        yield from (start - at for at in members)


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_flood_of_another_tenant_moves_the_tail_by_less_than_half(
    policy: PolicyName,
) -> None:
    w = world(replace(SETTINGS, policy=policy))
    seconds = 8.0
    times = poisson(LIMIT / 5, seconds)
    flooding = asyncio.create_task(flood(w, 10 * LIMIT, seconds + 1))
    await asyncio.sleep(1)
    latencies = await steady(w, times, now())
    ends = await flooding
    tail, ideal = quantiles(latencies, n=100)[98], quantiles(first_of_all(times), n=100)[98]
    assert tail / ideal <= 1.5, f"p99 {tail:.4f} s, first of all {ideal:.4f} s"
    assert set(ends) == {"answered", Rejection.OVER_SHARE, Rejection.QUEUE_FULL}
    assert w.server.batches[10:-1].count(8) / len(w.server.batches[10:-1]) > 0.97


@pytest.mark.parametrize(
    ("target", "lateness"),
    [(2.2 * BATCH, Lateness.SERVE), (4 * BATCH, Lateness.SERVE), (12 * BATCH, Lateness.REFUSE)],
)
async def test_a_target_keeps_no_small_tenant_from_its_turns_beside_a_flood(
    target: float, lateness: Lateness
) -> None:
    """The flood always has rows on time, and a backlog in which any newcomer would be late."""
    w = world(replace(SETTINGS, target_seconds=target, lateness=lateness))
    ends = now() + 3.0

    async def asks_on() -> None:
        while now() < ends:
            with suppress(CallError):
                await w.send(b"flood", tenant="flood")
            await asyncio.sleep(BATCH / 4)

    flooding = [asyncio.create_task(asks_on()) for _ in range(150)]
    await asyncio.sleep(0.5)
    took: list[float] = []
    while now() < ends:
        sent = now()
        assert rows_of(await w.send(b"mine", tenant="mine")) == [b"mine"]
        took.append(now() - sent)
    assert len(took) > 2.5 / (8 * BATCH)
    assert max(took) < 8 * BATCH
    await asyncio.gather(*flooding)


@pytest.mark.parametrize("callers", [12, 16, 24])
async def test_a_few_callers_that_always_ask_keep_another_for_a_batch_at_most(callers: int) -> None:
    """Too few rows wait to fill two batches, so what leaves early would pass the others by."""
    w = world(SETTINGS)
    ends = now() + 3.0

    async def asks_on() -> None:
        while now() < ends:
            await w.send(b"busy", tenant="busy")

    busy = [asyncio.create_task(asks_on()) for _ in range(callers)]
    await asyncio.sleep(0.5)
    latencies = await steady(w, [n * 0.8 * BATCH for n in range(140)], now())
    await asyncio.gather(*busy)
    # What is left of the batch that runs, a whole one at most, and their own.
    assert quantiles(latencies, n=100)[98] <= 2.5 * BATCH


async def test_very_many_tenants_of_a_row_each_are_no_reason_to_refuse_one_of_several() -> None:
    w = world(replace(SETTINGS, request_timeout_seconds=3.0))
    others = [w.send(b"other", tenant=f"t{n}") for n in range(100)]
    mine = [w.send(b"mine", tenant="interactive") for _ in range(30)]
    # All that is here takes 0.3 s; thirty turns of a hundred others would take seven.
    for one in (*others, *mine):
        assert len(rows_of(await one)) == 1
    assert now() < 1.0


@pytest.mark.parametrize("policy", POLICIES)
async def test_clumps_of_fifty_requests_move_the_tail_of_a_steady_tenant_little(
    policy: PolicyName,
) -> None:
    w = world(replace(SETTINGS, policy=policy))
    seconds = 8.0
    times = poisson(LIMIT / 5, seconds)

    async def clumps() -> None:
        tasks = []
        while now() < seconds:
            tasks += [w.send(b"agent", tenant="agents") for _ in range(50)]
            await asyncio.sleep(50 / (0.6 * LIMIT))
        await asyncio.gather(*tasks)

    agents = asyncio.create_task(clumps())
    latencies = await steady(w, times, now())
    await agents
    tail, ideal = quantiles(latencies, n=100)[98], quantiles(first_of_all(times), n=100)[98]
    assert tail / ideal <= 1.5, f"p99 {tail:.4f} s, first of all {ideal:.4f} s"


async def test_a_short_time_out_takes_no_time_from_patient_callers() -> None:
    seconds = 8.0
    times = poisson(LIMIT / 5, seconds)
    medians = []
    for timeout in (None, 1.0):
        w = world(SETTINGS)
        options = RequestOptions(timeout=timeout)
        flooding = asyncio.create_task(flood(w, 3 * LIMIT, seconds + 1, options))
        await asyncio.sleep(1)
        medians.append(median(await steady(w, times, now())))
        await flooding
    assert medians[1] <= 1.1 * medians[0]
    assert medians[1] < 3 * BATCH


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_queue_that_one_tenant_fills_has_room_for_another(policy: PolicyName) -> None:
    w = world(replace(SETTINGS, policy=policy, max_queue_size=80))
    filling = [w.send(b"flood", tenant="flood") for _ in range(70)]
    await asyncio.sleep(BATCH / 4)
    filling += [w.send(b"flood", tenant="flood") for _ in range(70)]
    with pytest.raises(Rejected, match="queue is full: 80 rows may wait"):
        await filling[-1]
    assert w.ledger.rows_waiting == 70
    mine = [w.send(b"mine", tenant="interactive") for _ in range(8)]
    await asyncio.sleep(0)
    with pytest.raises(Rejected, match="more than its share") as over:
        await w.send(b"flood", tenant="flood")
    assert over.value.status == 429
    assert over.value.retry_after is not None
    assert [rows_of(await one) for one in mine] == [[b"mine"]] * 8
    ends = await asyncio.gather(*filling, return_exceptions=True)
    refused = sum(isinstance(end, Rejected) for end in ends)
    assert list(w.ledger.tenants.rows())[:2] == [
        TenantCount("flood", served=140 - refused, refused=refused + 1, waiting=0),
        TenantCount("interactive", served=8, refused=0, waiting=0),
    ]


@pytest.mark.parametrize("policy", POLICIES)
async def test_one_tenant_has_no_more_room_than_the_manifest_says(policy: PolicyName) -> None:
    w = world(replace(SETTINGS, policy=policy, max_queue_size=80, tenant_max_share=0.25))
    filling = [w.send(b"flood", tenant="flood") for _ in range(40)]
    await asyncio.sleep(BATCH / 4)
    with pytest.raises(Rejected, match="more than its share"):
        await filling[-1]
    ends = await asyncio.gather(*filling, return_exceptions=True)
    assert sum(isinstance(end, Rejected) for end in ends) == 20
    with pytest.raises(Rejected, match="21 rows in one request are more than") as large:
        await w.send(*[b"x"] * 21, tenant="list")
    assert large.value.status == 413
    assert len(rows_of(await w.send(*[b"x"] * 20, tenant="list"))) == 20


@given(
    policy=st.sampled_from(POLICIES),
    size=st.integers(8, 60),
    calls=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 20), st.sampled_from([0, 0, 0.5, 3])),
        max_size=80,
    ),
)
@example(policy=PolicyName.DEADLINE, size=19, calls=[("a", 1, 0), ("a", 1, 0), ("a", 19, 0)])
@settings(max_examples=examples(60))
def test_no_more_rows_wait_than_the_queue_holds_whoever_sends_them(
    policy: PolicyName, size: int, calls: list[tuple[str, int, float]]
) -> None:
    async def run() -> None:
        w = world(replace(SETTINGS, policy=policy, max_queue_size=size))
        tasks = []
        for tenant, rows, batches in calls:
            tasks.append(w.send(*[b"x"] * rows, tenant=tenant))
            await asyncio.sleep(batches * BATCH)
            assert w.ledger.rows_waiting <= size
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, Answer | Rejected) for end in ends)
        assert w.ledger.rows_waiting == 0

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_tenant_of_three_times_the_weight_is_served_three_times_as_much(
    policy: PolicyName,
) -> None:
    w = world(replace(SETTINGS, policy=policy, tenant_weights=(("heavy", 3.0), ("light", 1.0))))
    tasks = [w.send(name.encode(), tenant=name) for name in ("heavy", "light") * 200]
    await asyncio.sleep(20 * BATCH)
    assert w.server.rows[8:].count(b"heavy") / len(w.server.rows[8:]) == pytest.approx(
        0.75, abs=0.05
    )
    await asyncio.gather(*tasks)


async def test_all_that_one_tenant_alone_sends_is_seen_by_the_policy() -> None:
    w = world(SETTINGS)
    tasks = [w.send(b"%03d" % n, tenant="only") for n in range(200)]
    await asyncio.gather(*tasks)
    assert w.server.rows == [b"%03d" % n for n in range(200)]


@pytest.mark.parametrize("policy", POLICIES)
async def test_whoever_leaves_or_is_failed_each_call_ends_once(policy: PolicyName) -> None:
    rng = random.Random(3)
    w = world(replace(SETTINGS, policy=policy, max_queue_size=300))
    tasks = []
    for _ in range(600):
        rows = [b"x"] * rng.choice([1, 1, 1, 2, 30])
        tasks.append(w.send(*rows, tenant=rng.choice("abc")))
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
        if rng.random() < 0.05:
            await asyncio.sleep(rng.random() * BATCH)
        if rng.random() < 0.01:
            w.batcher.configure(replace(w.batcher.settings, policy=rng.choice(POLICIES)))
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)
        await w.batcher.idle()
    assert w.ledger.rows_waiting == w.ledger.rows_live == 0
