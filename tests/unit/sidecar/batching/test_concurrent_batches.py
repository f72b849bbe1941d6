"""Several batches at an upstream server at the same time: as many as the settings say."""

import asyncio
import math
from dataclasses import replace
from itertools import cycle
from string import ascii_letters

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_sidecar.backends.upstream.protocol import Response
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.errors import Expired, Lost, Unserved
from batchedmodel_sidecar.telemetry.ledger import Durations, Ledger, RecentArrivals
from support.sidecar_world import MODEL, LoopTimer, PretendServer, answered, call_of, stats_of
from support.upstream_world import (
    SECONDS,
    Reaction,
    Rows,
    UpstreamWorld,
    in_front,
    now,
    once,
    poisoned,
    said,
    well,
)

pytestmark = pytest.mark.looptime

THREE = BatchSettings(
    policy=PolicyName.GREEDY, max_wait_seconds=0.0, max_batch_size=4, max_concurrent_batches=3
)


def _killed_by(deadly: str) -> Reaction:
    """The server dies with all that it has when it has one of these rows."""
    died_at = -math.inf

    def react(rows: Rows) -> Response:
        nonlocal died_at
        if set(deadly) & set(rows):
            died_at = now()
        # Those that end with it, or that ran beside it, are gone with it.
        if now() - died_at < 0.9 * SECONDS:
            raise Lost("gone")
        return well(rows)

    return react


async def test_as_many_batches_run_side_by_side_as_are_asked_for_and_never_more() -> None:
    async def test(world: UpstreamWorld) -> None:
        began = asyncio.get_running_loop().time()
        answers = await world.calls(ascii_letters)
        assert answers == {letter: letter for letter in ascii_letters}
        assert world.server.most_running == 3
        # 52 rows are 13 batches of 4, of which 3 run at a time.
        took = asyncio.get_running_loop().time() - began
        assert took == pytest.approx(5 * SECONDS, abs=SECONDS / 2)

    await in_front(test, THREE)


async def test_of_one_long_list_all_workers_have_a_part() -> None:
    async def test(world: UpstreamWorld) -> None:
        assert await world.call(ascii_letters) == ascii_letters
        assert world.server.most_running == 3

    await in_front(test, THREE)


async def test_fewer_let_the_surplus_run_out_and_more_leave_at_once() -> None:
    async def test(world: UpstreamWorld) -> None:
        calls = asyncio.create_task(world.calls(ascii_letters))
        await asyncio.sleep(SECONDS / 2)
        assert world.server.running == 3
        world.batcher.configure(replace(THREE, max_concurrent_batches=1))
        assert world.server.running == 3
        await asyncio.sleep(SECONDS)
        assert world.server.running == 1
        world.server.most_running = 0
        await asyncio.sleep(3 * SECONDS)
        assert world.server.most_running == 1
        world.batcher.configure(replace(THREE, max_concurrent_batches=2))
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        assert world.server.running == 2
        assert await calls == {letter: letter for letter in ascii_letters}
        assert world.server.most_running == 2

    await in_front(test, THREE)


async def test_the_search_for_a_bad_row_goes_on_in_the_place_of_its_batch() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = poisoned
        answers = await world.calls(ascii_letters)
        refused = answers.pop("p")
        assert isinstance(refused, Unserved)
        assert refused.status == 422
        assert all(answers[letter] == letter for letter in answers)
        assert world.server.most_running == 3

    await in_front(test, THREE)


async def test_a_death_under_several_batches_costs_only_the_row_that_kills() -> None:
    """Each row that was in work is tried by itself, and no other beside it."""

    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = _killed_by("p")
        answers = await world.calls(ascii_letters)
        refused = answers.pop("p")
        assert isinstance(refused, Unserved)
        assert "died twice" in refused.message
        assert all(answers[letter] == letter for letter in answers)
        assert world.batcher.closed is None

    await in_front(test, THREE)


@pytest.mark.parametrize("policy", list(PolicyName))
async def test_of_two_deaths_each_costs_only_the_row_that_kills(policy: PolicyName) -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = _killed_by("bS")
        answers = await world.calls(ascii_letters)
        blamed = {row: said for row, said in answers.items() if isinstance(said, Unserved)}
        assert all("died twice" in said.message for said in blamed.values())
        assert set(blamed) == {"b", "S"}

    await in_front(test, replace(THREE, policy=policy, max_batch_size=16))


async def test_a_batch_that_hangs_holds_up_those_that_are_tried_alone_and_nobody_else() -> None:
    """It hangs for as long as it may, and every healthy worker works meanwhile."""

    async def test(world: UpstreamWorld) -> None:
        for _ in range(20):
            await world.call("x")  # until it is known what a batch takes
        world.server.seconds["h"] = math.inf
        world.server.reaction = once(Lost("a worker died"), on="d", otherwise=well)
        hangs = asyncio.create_task(world.call("h"))
        await asyncio.sleep(SECONDS / 2)
        dies = asyncio.create_task(world.call("d"))
        await asyncio.sleep(0.1)
        took = []
        while not hangs.done():
            began = now()
            assert await world.call("x") == "x"
            took.append(now() - began)
            await asyncio.sleep(0.2)
        assert max(took) < 1.1, "so long the batch may be slow rather than hang"
        assert max(took[1:]) == pytest.approx(SECONDS, abs=SECONDS)
        results = await asyncio.gather(hangs, dies, return_exceptions=True)
        assert all(isinstance(one, Expired) for one in results), results

    await in_front(test, replace(THREE, request_timeout_seconds=5.0))


async def test_who_is_tried_alone_and_is_slow_shares_the_server_and_is_blamed_for_nothing() -> None:
    """Nothing is known of this server, which may well be slow itself: that takes ten seconds."""

    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = _killed_by("s")
        slow = asyncio.create_task(world.call("s"))
        await asyncio.sleep(2 * SECONDS)
        world.server.seconds["s"] = 12.0
        await asyncio.sleep(10.5)
        assert (world.server.running, world.server.sent) == (1, [["s"], ["s"]])
        assert await world.calls("xyz") == {"x": "x", "y": "y", "z": "z"}
        with pytest.raises(Lost, match="gone"):
            await slow
        assert world.server.sent.count(["s"]) == 2

    await in_front(test, THREE)


async def test_workers_that_waited_for_one_who_left_go_on_at_once() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.seconds |= {"a": 5.0, "d": 2 * SECONDS}
        world.server.reaction = once(Lost("a worker died"), on="d", otherwise=well)
        apart = asyncio.create_task(world.call("a"))
        await asyncio.sleep(SECONDS / 2)
        dies = asyncio.create_task(world.call("d"))
        await asyncio.sleep(0.5)  # a death is followed by a pause
        waits = asyncio.create_task(world.call("x"))
        await asyncio.sleep(3 * SECONDS)
        assert not waits.done(), "d is tried alone, which it cannot be beside a"
        dies.cancel()
        began = now()
        assert await waits == "x"
        assert now() - began == pytest.approx(SECONDS)
        assert not apart.done()
        assert await apart == "a"

    await in_front(test, THREE)


async def test_workers_that_all_fail_for_a_moment_have_failed_once() -> None:
    async def test(world: UpstreamWorld) -> None:
        until = now() + 3.5 * SECONDS
        failure = said(502, "no")
        world.server.reaction = lambda rows: failure if now() < until else well(rows)
        calls = asyncio.create_task(world.calls(ascii_letters))
        await asyncio.sleep(3.2 * SECONDS)  # fours, their halves, then eight of one
        assert world.batcher.closed is None
        answers = await calls
        assert sum(isinstance(one, Unserved) for one in answers.values()) == 8

    await in_front(test, replace(THREE, max_concurrent_batches=8))


async def test_a_worker_that_asks_for_rest_does_not_hide_that_the_other_is_broken() -> None:
    async def test(world: UpstreamWorld) -> None:
        replies = cycle([said(503, "later", **{"Retry-After": "1"}), said(502, "broken")])
        world.server.reaction = lambda rows: next(replies)
        calls: list[asyncio.Task[str]] = []
        while world.batcher.closed is None:
            calls.append(asyncio.create_task(world.call("a", caller=f"{len(calls)}")))
            await asyncio.sleep(0.25)
            assert len(calls) < 4 * 20, "a rest of a second, and a failure or two"
        await asyncio.gather(*calls, return_exceptions=True)

    await in_front(test, replace(THREE, max_batch_size=1, max_concurrent_batches=2))


async def test_a_server_that_is_busy_gets_a_rest_from_all() -> None:
    async def test(world: UpstreamWorld) -> None:
        busy = said(503, "later", **{"Retry-After": "1"})
        assert await world.call("w") == "w"
        until = now() + 3.5 * SECONDS  # a probe may wait for a place behind the next batches
        world.server.reaction = lambda rows: busy if now() < until else well(rows)
        calls = asyncio.create_task(world.calls(ascii_letters))
        await asyncio.sleep(5 * SECONDS)
        assert world.server.running == 0, "a probe was told the same"
        assert await calls == {letter: letter for letter in ascii_letters}

    await in_front(test, THREE)


async def test_a_server_of_ours_has_one_batch_and_the_next_whatever_the_settings_say() -> None:
    """They may be meant for a server of another kind, which is about to take its place."""
    server = PretendServer()
    batcher = Batcher(
        THREE,
        infer=server.infer,
        clock=now,
        timer=LoopTimer,
        ledger=Ledger(),
        durations=Durations(),
        recorder=RecentArrivals(now()),
        one_by_one=True,
    )
    batcher.attach(MODEL)
    calls = [asyncio.create_task(answered(batcher, call_of([bytes([n])]))) for n in range(40)]
    await asyncio.sleep(0.001)
    assert len(server.batches) == 2
    four = replace(THREE, max_concurrent_batches=4)
    batcher.configure(four)
    await asyncio.sleep(0.001)
    assert len(server.batches) == 2
    told = stats_of(batcher)
    assert (told.max_concurrent_batches, told.settings_hash) == (1, four.digest())
    await asyncio.gather(*calls)
    await batcher.close()
