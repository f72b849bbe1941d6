"""Batches on their way to a server of somebody else's, whose every answer the test decides."""

import asyncio
from dataclasses import replace

import pytest

from batchedmodel_sidecar.backends.upstream.client import Deaf
from batchedmodel_sidecar.backends.upstream.protocol import Response
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from support.upstream_world import (
    SETTINGS,
    Rows,
    UpstreamWorld,
    in_front,
    once,
    poisoned,
    said,
    well,
)

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize(
    "fault",
    [
        Lost("gone"),
        Busy("the model cannot be reached"),
        said(503, "later", **{"Retry-After": "1"}),
        said(429, "later"),
    ],
    ids=["lost", "refused", "busy", "too many"],
)
async def test_what_was_left_of_a_search_is_tried_again_as_a_whole_batch_would_be(
    fault: Unserved | Response,
) -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = once(fault, on="cd", otherwise=poisoned)
        became = await world.calls("pbcd")
        refused = became.pop("p")
        assert isinstance(refused, Unserved)
        assert refused.status == 422
        assert became == {"b": "b", "c": "c", "d": "d"}
        sent = ["".join(rows) for rows in world.server.sent]
        assert sent[:5] == ["pbcd", "pb", "p", "b", "cd"]
        assert sent[5:] == (["cd"] if isinstance(fault, Busy) else ["c", "d"])

    await in_front(test)


async def test_of_few_callers_the_others_wait_for_one_batch_and_not_for_a_search() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = poisoned
        bad = asyncio.create_task(world.call("xpx", caller="bad"))
        good = [asyncio.create_task(world.call(row, caller="good")) for row in "abc"]
        assert await asyncio.gather(*good) == ["a", "b", "c"]
        with pytest.raises(Unserved, match="no"):
            await bad
        sent = ["".join(rows) for rows in world.server.sent]
        assert sorted(sent) == ["abc", "xpx", "xpxabc"]

    await in_front(test)


async def test_a_list_that_was_halved_for_memory_is_answered_across_a_death_of_the_server() -> None:
    async def test(world: UpstreamWorld) -> None:
        def small(rows: Rows) -> Response:
            return said(507, "too much") if len(rows) > 2 else well(rows)

        world.server.reaction = once(Lost("gone"), on="cd", otherwise=small)
        assert await world.call("abcd") == "abcd"
        assert ["".join(rows) for rows in world.server.sent] == ["abcd", "ab", "cd", "c", "d"]

    await in_front(test)


async def test_a_server_that_hangs_in_a_search_is_stuck_and_the_rest_is_told_so() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = once(Deaf(), on="cd", otherwise=poisoned)
        became = await world.calls("pbcd")
        assert world.link.status.stuck
        assert became["b"] == "b"
        for row in "cd":
            told = became[row]
            assert isinstance(told, Unserved)
            assert told.status == 504

    await in_front(test)


@pytest.mark.parametrize("last", [401, 422], ids=["not its row's fault", "patience is over"])
async def test_nobody_gets_a_header_that_was_for_another_when_a_search_ends(last: int) -> None:
    everybody = "abcdefghijklmnopqrstuvwxyzABCDEF"

    async def test(world: UpstreamWorld) -> None:
        def react(rows: Rows) -> Response:
            # The first in words of its own, or else the server would be taken for broken.
            words = "no" if len(rows) < len(everybody) else "none of these"
            status = last if len(rows) == 1 else 422
            return said(status, words, **{"Set-Cookie": "".join(rows)})

        world.server.reaction = react
        for row, told in (await world.calls(everybody)).items():
            assert isinstance(told, Unserved)
            assert told.reply is not None
            assert told.reply.headers in ((), (("Set-Cookie", row),))
        # What a search met that no row can be to blame for is told to nobody who did not meet it.
        assert len(world.server.sent) < len(everybody) * (2 if last == 401 else 1)

    await in_front(test)


async def test_searches_that_break_off_again_and_again_open_the_circuit() -> None:
    async def test(world: UpstreamWorld) -> None:
        def hangs(rows: Rows) -> Response:
            if set(rows) <= {*"cd"}:
                raise Deaf
            return poisoned(rows)

        world.server.reaction = hangs
        for _ in range(5):
            await world.calls("pbcd")
        assert world.batcher.closed is not None

    await in_front(test)


@pytest.mark.parametrize(("callers", "batches"), [("abcdefgh", 5), ("abc", 7), ("a", 20)])
async def test_a_server_that_answers_nobody_is_left_alone_whatever_it_says(
    callers: str, batches: int
) -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = lambda rows: said(500, f"error {len(world.server.sent)}")
        for _ in range(batches):
            assert world.batcher.closed is None
            await world.calls(callers)
        assert world.batcher.closed is not None

    await in_front(test)


async def test_whom_a_broken_server_refused_is_told_so_and_waits_for_no_search() -> None:
    """Also who waits for its turn in a half when the circuit opens."""

    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = lambda rows: said(500, "no")
        told: list[int] = []

        async def floods(caller: str) -> None:
            while world.batcher.closed is None:
                calls = [world.call(row, caller=caller) for row in "abcdefgh"]
                for one in await asyncio.gather(*calls, return_exceptions=True):
                    assert isinstance(one, Unserved), one
                    told.append(one.status)

        began = asyncio.get_running_loop().time()
        await asyncio.gather(floods("x"), floods("y"))
        assert set(told) == {500}
        assert asyncio.get_running_loop().time() - began < 5.0

    await in_front(test, replace(SETTINGS, max_batch_size=8))


async def test_a_server_whose_every_answer_is_nonsense_is_left_alone() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = lambda rows: said(200, {"predictions": []})
        for _ in range(20):
            assert world.batcher.closed is None
            await world.calls("a")
        assert world.batcher.closed is not None

    await in_front(test)


@pytest.mark.slow
@pytest.mark.parametrize("callers", ["p", "pqr", "pqrstuvw"])
async def test_callers_whose_calls_are_bad_close_nothing_while_others_are_answered(
    callers: str,
) -> None:
    async def test(world: UpstreamWorld) -> None:
        def react(rows: Rows) -> Response:
            return well(rows) if rows == ["a"] else said(500, f"error {len(world.server.sent)}")

        world.server.reaction = react
        for turn in range(40):
            await world.calls(callers)
            if turn % 4 == 3:
                assert await world.call("a") == "a"
            assert world.batcher.closed is None

    await in_front(test)


RESTART = 0.7
"""Seconds, less than between two questions to a server that is ready."""


async def test_a_server_that_takes_no_connection_is_lost_and_then_found_soon() -> None:
    async def test(world: UpstreamWorld) -> None:
        restart = asyncio.create_task(world.server.away(RESTART))
        answer = asyncio.create_task(world.call("a"))
        await asyncio.sleep(0.1)
        assert world.link.status.reason == "the model cannot be reached"
        await restart
        await asyncio.sleep(0.3)
        assert world.heard == ["ready", "lost", "ready"]
        assert await answer == "a"

    await in_front(test)


SIDE_BY_SIDE = replace(SETTINGS, max_wait_seconds=0.0, max_batch_size=4, max_concurrent_batches=3)


async def test_one_connection_that_is_refused_beside_others_at_work_loses_no_server() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = once(Busy("refused"), on="abcd", otherwise=well)
        assert await world.calls("abcdefghijkl") == {row: row for row in "abcdefghijkl"}
        assert world.heard == ["ready"]

    await in_front(test, SIDE_BY_SIDE)


async def test_a_server_that_takes_no_connection_of_several_is_lost_once_it_was_asked() -> None:
    async def test(world: UpstreamWorld) -> None:
        calls = asyncio.create_task(world.calls("abcdefghijkl"))
        await world.server.away(RESTART)
        assert world.heard == ["ready", "lost"]
        assert await calls == {row: row for row in "abcdefghijkl"}
        assert world.heard == ["ready", "lost", "ready"]

    await in_front(test, SIDE_BY_SIDE)


async def test_a_server_that_dies_at_work_is_lost_and_then_found_soon() -> None:
    async def test(world: UpstreamWorld) -> None:
        def dies(rows: Rows) -> Response:
            world.server.reaction = well
            world.server.there = False
            raise Lost("gone")

        world.server.reaction = dies
        answer = asyncio.create_task(world.call("a"))
        await asyncio.sleep(0.1)
        assert world.link.status.model is None
        await world.server.away(RESTART)
        await asyncio.sleep(0.3)
        assert answer.done()
        assert await answer == "a"
        assert world.heard == ["ready", "lost", "ready"]

    await in_front(test)


async def test_a_server_that_stops_and_answers_for_a_while_is_lost_all_the_same() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = once(Lost("gone"), on="a", otherwise=well)
        answer = asyncio.create_task(world.call("a"))
        await asyncio.sleep(0.5)
        await world.server.away(RESTART)
        assert await answer == "a"
        await asyncio.sleep(0.3)
        assert world.heard == ["ready", "lost", "ready"]

    await in_front(test)


async def test_a_connection_that_breaks_is_no_loss_of_a_server_that_says_it_is_ready() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = once(Lost("gone"), on="a", otherwise=well)
        assert await world.call("a") == "a"
        assert world.heard == ["ready"]

    await in_front(test)


async def test_what_goes_alone_is_the_servers_work() -> None:
    async def test(world: UpstreamWorld) -> None:
        with world.link.working():
            world.server.silent = True  # it has one thread, and answers nothing else meanwhile
            await asyncio.sleep(20.0)
            assert world.heard == ["ready"]
        await asyncio.sleep(20.0)
        assert world.heard == ["ready", "lost"]

    await in_front(test)


async def test_no_restart_of_a_server_that_is_watched_goes_unnoticed() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.link.watch(True)
        for _ in range(5):
            await asyncio.sleep(0.3)
            await world.server.away(0.3)
        await asyncio.sleep(0.3)
        assert world.heard == ["ready"] + ["lost", "ready"] * 5
        world.link.watch(False)
        asked = len(world.server.asked)
        await asyncio.sleep(10.0)
        assert len(world.server.asked) <= asked + 6, "a server that is well is left in peace"

    await in_front(test)
