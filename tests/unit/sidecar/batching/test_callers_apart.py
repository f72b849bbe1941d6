"""Whoever's rows a server refuses spoils no batch of others: each caller hears of its own."""

import asyncio

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.queue.items import Item, ItemId
from batchedmodel_scheduling.queue.keys import Alone, Apart, apart, original
from batchedmodel_sidecar.backends.upstream.protocol import Response
from batchedmodel_sidecar.batching.health import Health, Standing
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.errors import CallError, Fatal, Lost, Unserved
from support.sidecar_world import call_of
from support.upstream_world import SECONDS, Reaction, Rows, UpstreamWorld, in_front, now, said, well

pytestmark = pytest.mark.looptime

BAD = "p"
SMALL = BatchSettings(max_batch_size=6)
REFUSED = Unserved("no", status=422, answered=True)
ANSWERED = Answer(outputs=(), rows=())


def refusing(status: int, **headers: str) -> Reaction:
    return lambda rows: said(status, "no", **headers) if BAD in rows else well(rows)


def breaking(rows: Rows) -> Response:
    if BAD in rows:
        raise Lost("gone")
    return well(rows)


def nonsense(rows: Rows) -> Response:
    return said(200, {"predictions": "no"}) if BAD in rows else well(rows)


@pytest.mark.parametrize("status", [401, 403, 404, 408, 415, 501, 502, 504])
async def test_what_one_callers_row_is_told_no_other_caller_is(status: int) -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = refusing(status)
        answers = await world.calls("abpcd")
        assert [row for row, told in answers.items() if told == row] == ["a", "b", "c", "d"]
        bad = answers[BAD]
        assert isinstance(bad, Unserved)
        assert (bad.status, world.batcher.closed) == (status, None)
        assert len(world.server.sent) <= 1 + 5, "the batch, then halves until one caller is alone"

    await in_front(test)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_row_that_is_told_to_wait_lets_only_its_caller_wait(status: int) -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = refusing(status, **{"Retry-After": "5"})
        began = now()
        bad = asyncio.create_task(world.call(BAD, caller="bad"))
        answers = await world.calls("abcd")
        assert list(answers) == list(answers.values())
        assert await world.call("e", caller="another") == "e"
        assert now() - began < 1.0
        assert not bad.done()
        with pytest.raises(Unserved):
            await bad

    await in_front(test)


async def test_behind_one_address_a_refusal_of_all_passes_at_once() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = lambda rows: said(404, "no such model")
        calls = [world.call(row, caller="gateway") for row in "abcd"]
        told = await asyncio.gather(*calls, return_exceptions=True)
        assert {one.status for one in told if isinstance(one, Unserved)} == {404}
        assert world.server.sent == [["a", "b", "c", "d"]]

    await in_front(test)


@pytest.mark.parametrize(
    "reaction",
    [refusing(404), refusing(422), breaking, nonsense],
    ids=["refused whole", "refused", "broken off", "answered with nonsense"],
)
@pytest.mark.parametrize("others", [1, 16])
async def test_one_callers_bad_rows_leave_the_time_of_others_to_them(
    reaction: Reaction, others: int
) -> None:
    """Beside others at a third of what the server can do, by itself two fifths of its requests.

    It costs all some time until it is known whose rows these are.
    """

    async def test(world: UpstreamWorld) -> None:
        took: list[float] = []

        async def honest(number: int) -> None:
            began = now()
            assert await world.call("h", caller=f"h{number % others}") == "h"
            took.append(now() - began)

        async def bad() -> None:
            with pytest.raises(Unserved):
                await world.call(BAD, caller="bad")

        world.server.reaction = reaction
        async with asyncio.TaskGroup() as group:
            for number in range(1_200):
                group.create_task(honest(number))
                if number % 5 == 0:
                    group.create_task(bad())
                await asyncio.sleep(0.5 * SECONDS)
        late = sorted(took[len(took) // 2 :])
        assert late[len(late) * 99 // 100] < 8 * SECONDS

    await in_front(test, SMALL)


async def test_whose_row_the_server_hung_over_is_no_further_behind_than_others() -> None:
    """Nobody knows whose fault that was, and who paid for it would starve beside a flood."""
    hurried = BatchSettings(max_batch_size=6, request_timeout_seconds=1.0)

    async def test(world: UpstreamWorld) -> None:
        for _ in range(40):
            assert await world.call("w", caller="o") == "w"
        world.server.seconds["x"] = 100.0
        hung = asyncio.create_task(world.call("x", caller="h"))
        await asyncio.sleep(6.0 - SECONDS)
        served: list[str] = []

        async def one(row: str) -> None:
            assert await world.call(row, caller=row) == row
            served.append(row)

        tasks = [asyncio.create_task(one(row)) for _ in range(60) for row in "ho"]
        with pytest.raises(CallError):
            await hung
        await asyncio.gather(*tasks)
        assert served[:60].count("h") == pytest.approx(30, abs=12)

    await in_front(test, hurried)


async def test_a_probe_is_sent_of_somebody_else_than_who_met_the_failure() -> None:
    """Whose own requests are over quota cannot make the whole server rest."""

    async def test(world: UpstreamWorld) -> None:
        health: Health = world.batcher._health
        assert await world.call("w", caller="honest") == "w"
        for number, row in enumerate("abcdef"):
            await asyncio.sleep(1.1)
            assert await world.call(row, caller="bad") == row, number
        busy = said(429, "over quota", **{"Retry-After": "5"})
        world.server.reaction = lambda rows: well(rows) if rows == ["w"] else busy
        world.server.sent.clear()
        bad = asyncio.create_task(world.call("q", caller="bad"))
        await asyncio.sleep(3 * SECONDS)
        assert world.server.sent == [["q"], ["w"]]
        assert health.circuit.changes_at(now()) == float("inf"), "nobody rests but its key"
        bad.cancel()

    await in_front(test, SMALL)


def heard(standing: Standing, caller: str, times: int, result: Answer | Unserved) -> None:
    for _ in range(times):
        standing.parts(caller, result)


def test_who_is_refused_while_others_are_answered_goes_apart_until_it_fares_better() -> None:
    standing = Standing()
    call = call_of([b"1"])
    for _ in range(8):
        heard(standing, "bad", 4, ANSWERED)
        heard(standing, "bad", 1, REFUSED)
        heard(standing, "good", 1, ANSWERED)
    assert standing.placed(call, "bad").key == Apart(call.key, "bad", 1)
    assert standing.placed(call, "good").key == call.key
    heard(standing, "bad", 100, ANSWERED)
    assert standing.placed(call, "bad") is call


def test_each_call_of_who_goes_apart_is_sent_by_itself() -> None:
    standing = Standing()
    call = call_of([b"1"])
    for _ in range(8):
        heard(standing, "bad", 1, REFUSED)
        heard(standing, "good", 1, ANSWERED)
    keys = {standing.placed(call, "bad").key for _ in range(10)}
    assert len(keys) == 10
    assert {original(key) for key in keys} == {call.key}


def test_over_whose_row_alone_the_server_died_goes_apart_at_once() -> None:
    standing = Standing()
    heard(standing, "bad", 1, Fatal())
    assert standing.goes_apart("bad")
    assert not standing.goes_apart("good")


def test_where_everybody_is_refused_nobody_goes_apart() -> None:
    standing = Standing()
    callers = [f"{number}" for number in range(20)]
    for caller in callers:
        heard(standing, caller, 1, ANSWERED)
    for _ in range(20):
        for caller in callers:
            heard(standing, caller, 1, REFUSED)
    assert not any(map(standing.goes_apart, callers))


def test_a_bad_request_now_and_then_keeps_nobody_apart() -> None:
    standing = Standing()
    for _ in range(50):
        heard(standing, "usual", 1, REFUSED)
        heard(standing, "usual", 20, ANSWERED)
        heard(standing, "other", 20, ANSWERED)
        assert not standing.goes_apart("usual")


def test_callers_beyond_number_are_forgotten() -> None:
    standing = Standing()
    for number in range(5_000):
        heard(standing, f"{number}", 1, REFUSED)
    assert len(standing) == 1_024


def test_a_suspect_is_known_for_one_though_its_caller_goes_apart() -> None:
    item = Item(id=ItemId(1), key=Alone(ItemId(1)), length=1, arrived=0.0, due=1.0, deadline=1.0)
    item = item._replace(share=Share("bad"))
    assert apart(item).key == Alone(ItemId(1))
    assert apart(item._replace(key="k")).key == Apart("k", "bad")
