"""Several batches at a foreign server at the same time: as many as the settings say."""

import asyncio
from dataclasses import replace
from string import ascii_letters

import pytest
from prometheus_client import CollectorRegistry

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.spec import PolicyName
from batchedmodel_sidecar.batcher import Batcher
from batchedmodel_sidecar.errors import Lost, Unserved
from batchedmodel_sidecar.ledger import Ledger
from batchedmodel_sidecar.metrics import Durations
from batchedmodel_sidecar.recorder import FlightRecorder
from batchedmodel_sidecar.upstream.dialect import Response
from support.foreign_world import (
    SECONDS,
    Foreigners,
    Rows,
    in_front,
    now,
    once,
    poisoned,
    said,
    well,
)
from support.sidecar_world import MODEL, LoopTimer, PretendServer, call_of

pytestmark = pytest.mark.looptime

THREE = BatchSettings(
    policy=PolicyName.GREEDY, max_wait_seconds=0.0, max_batch_size=4, max_concurrent_batches=3
)


async def test_as_many_batches_run_side_by_side_as_are_asked_for_and_never_more() -> None:
    async def test(world: Foreigners) -> None:
        began = asyncio.get_running_loop().time()
        answers = await world.calls(ascii_letters)
        assert answers == {letter: letter for letter in ascii_letters}
        assert world.server.most_running == 3
        # 52 rows are 13 batches of 4, of which 3 run at a time.
        took = asyncio.get_running_loop().time() - began
        assert took == pytest.approx(5 * SECONDS, abs=SECONDS / 2)

    await in_front(test, THREE)


async def test_of_one_long_list_all_workers_have_a_part() -> None:
    async def test(world: Foreigners) -> None:
        assert await world.call(ascii_letters) == ascii_letters
        assert world.server.most_running == 3

    await in_front(test, THREE)


async def test_fewer_let_the_surplus_run_out_and_more_leave_at_once() -> None:
    async def test(world: Foreigners) -> None:
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
    async def test(world: Foreigners) -> None:
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

    async def test(world: Foreigners) -> None:
        died_at: list[float] = []

        def react(rows: Rows) -> Response:
            if "p" in rows:
                died_at.append(now())
            # Those that end with it, or that ran beside it, are gone with it.
            if died_at and now() - died_at[-1] < SECONDS:
                raise Lost("gone")
            return well(rows)

        world.server.reaction = react
        answers = await world.calls(ascii_letters)
        refused = answers.pop("p")
        assert isinstance(refused, Unserved)
        assert "died twice" in refused.message
        assert all(answers[letter] == letter for letter in answers)
        assert world.batcher.closed is None

    await in_front(test, THREE)


async def test_a_server_that_is_busy_gets_a_rest_from_all() -> None:
    async def test(world: Foreigners) -> None:
        busy = said(503, "later", **{"Retry-After": "1"})
        world.server.reaction = once(busy, on="abcd", otherwise=well)
        calls = asyncio.create_task(world.calls(ascii_letters))
        await asyncio.sleep(3 * SECONDS)
        assert world.server.running == 0
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
        durations=Durations(CollectorRegistry()),
        recorder=FlightRecorder(now()),
        one_by_one=True,
    )
    batcher.attach(MODEL)
    calls = [asyncio.create_task(batcher.submit(call_of([bytes([n])]))) for n in range(40)]
    await asyncio.sleep(0.001)
    assert len(server.batches) == 2
    four = replace(THREE, max_concurrent_batches=4)
    batcher.configure(four)
    await asyncio.sleep(0.001)
    assert len(server.batches) == 2
    told = batcher.stats(draining=False)
    assert (told.max_concurrent_batches, told.settings_hash) == (1, four.digest())
    await asyncio.gather(*calls)
    await batcher.close()
