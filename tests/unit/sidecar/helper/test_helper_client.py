"""The sidecar's side of a helper, in front of processes that the tests play themselves."""

import asyncio
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Final, cast

import pytest

from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_sidecar.body.byte_budget import ByteBudget, Hold
from batchedmodel_sidecar.errors import Rejected, Unserved
from batchedmodel_sidecar.helper.client import HelperClient, HelperProcess
from batchedmodel_sidecar.helper.messages import (
    Content,
    Kind,
    Message,
    Pickled,
    content_of,
    receive,
    send,
)
from batchedmodel_sidecar.helper.shared_memory import SharedMemory

pytestmark = pytest.mark.looptime  # a machine that stands still for long makes nobody impatient

RESULT: Final = 7
MODEL: Final = Pickled(bytes, (b"m",))
LARGE_MODEL: Final = Pickled(bytes, (b" " * 1_000_000,))
"""Telling a helper of it takes several turns of the loop."""
AMPLE: Final = ByteBudget(1 << 30)


class Played:
    """The other end of a helper's socket, and the process that has it."""

    def __init__(self) -> None:
        ours, self._end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, self._end):
            end.setblocking(False)
        self.killed = False
        self.answers = 0
        self._taken: list[Message] = []
        self.process = HelperProcess(ours, cast("Any", self))

    def kill(self) -> None:
        self.killed = True
        self._end.close()

    async def wait(self) -> int:
        return -9

    @property
    def taken(self) -> list[Message]:
        """All that was sent to it."""
        while not self.killed:
            try:
                message = receive(self._end)
            except BlockingIOError:
                break
            if message is None:
                break
            self._taken.append(message)
        return self._taken

    @property
    def jobs(self) -> list[tuple[Kind, bytes]]:
        """The jobs of it, each with its body."""
        return [(one.kind, bytes(one.body)) for one in self.taken if one.body is not None]

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.jobs]

    def answer(self, kind: Kind = Kind.RESULT, value: object = RESULT) -> None:
        send(self._end, kind, content_of(value))
        self.answers += 1

    def babble(self) -> None:
        send(self._end, Kind.NEEDS, Content([b"", b"no pickle"], 0))

    def die(self) -> None:
        assert self.taken is not None
        self._end.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Played]:
    """The processes in the order of their start."""
    processes: list[Played] = []

    async def start(what: str, jobs: str) -> HelperProcess:
        processes.append(Played())
        return processes[-1].process

    monkeypatch.setattr(HelperProcess, "start", start)
    return processes


def helper_of(at_once: int = 1) -> HelperClient:
    return HelperClient("large bodies", "nothing", places=16, at_once=at_once)


@asynccontextmanager
async def a_helper(at_once: int = 1) -> AsyncIterator[HelperClient]:
    helper = helper_of(at_once)
    try:
        yield helper
    finally:
        await helper.close()


class Caller:
    """Has a body read, and closes its memory behind it as the front does."""

    def __init__(
        self,
        helper: HelperClient,
        name: bytes = b"mine",
        *,
        model: Pickled = MODEL,
        budget: ByteBudget = AMPLE,
        must: bool = False,
        **terms: Any,
    ) -> None:
        self._memory = SharedMemory()
        self._memory.write(name)
        self._task = asyncio.create_task(
            self._asks(helper, model, budget.hold(NOBODY), must=must, **terms)
        )

    async def _asks(self, helper: HelperClient, model: Pickled, hold: Hold, **terms: Any) -> object:
        try:
            with hold:
                result, _ = await helper.do(repr, self._memory, model, hold=hold, **terms)
                return result
        finally:
            self._memory.close()

    def __await__(self) -> Generator[Any, None, object]:
        return self._task.__await__()

    def leave(self) -> None:
        self._task.cancel()


async def turns() -> None:
    """Until everybody waits for somebody."""
    for _ in range(30):
        await asyncio.sleep(0)


async def asks_for(started: list[Played], size: int) -> None:
    """The first helper gets to a job, and asks for so many bytes."""
    await turns()
    started[0].answer(Kind.NEEDS, size)
    await turns()


async def test_a_job_whose_caller_left_is_not_tried_by_a_second_helper(
    started: list[Played],
) -> None:
    async with a_helper() as helper:
        gone, stays = Caller(helper, b"gone"), Caller(helper, b"stays")
        await turns()
        gone.leave()
        await turns()
        started[0].die()
        await asyncio.sleep(1.0)
        started[1].answer()
        assert await stays == RESULT
        assert [process.bodies for process in started] == [[b"gone"], [b"stays"]]


async def test_no_helper_is_started_again_for_a_caller_that_left(started: list[Played]) -> None:
    async with a_helper() as helper:
        gone = Caller(helper)
        await turns()
        gone.leave()
        await turns()
        started[0].die()
        await asyncio.sleep(1.0)
        assert len(started) == 1


async def test_a_caller_that_leaves_while_the_helper_learns_of_the_model_costs_nobody_anything(
    started: list[Played],
) -> None:
    async with a_helper() as helper:
        gone = Caller(helper, b"gone", model=LARGE_MODEL)
        stays = Caller(helper, b"stays", model=LARGE_MODEL)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not started[0].taken
        gone.leave()
        await turns()
        started[0].answer()
        assert await stays == RESULT
        assert [process.bodies for process in started] == [[b"stays"]]


async def test_a_caller_that_leaves_before_its_turn_is_not_asked_for(
    started: list[Played],
) -> None:
    async with a_helper() as helper:
        first, gone, stays = (Caller(helper, name) for name in (b"first", b"gone", b"stays"))
        await turns()
        # Both at once: the helper's turn comes before the caller's who is to take it back.
        started[0].answer()
        gone.leave()
        await turns()
        started[0].answer()
        assert [await first, await stays] == [RESULT, RESULT]
        assert started[0].bodies == [b"first", b"stays"]


def test_memory_that_was_closed_has_no_descriptor_to_send() -> None:
    memory = SharedMemory()
    memory.close()
    with pytest.raises(ValueError, match="was closed"):
        assert memory.descriptor >= 0


async def test_whatever_is_raised_over_a_job_its_caller_is_told_and_the_next_one_is_done(
    started: list[Played],
) -> None:
    async with a_helper() as helper:
        job = Caller(helper)
        await turns()
        started[0].babble()
        with pytest.raises(Rejected, match="large bodies cannot be worked on at present"):
            await job
        assert started[0].killed
        job = Caller(helper)
        await turns()
        started[1].answer()
        assert await job == RESULT


async def test_a_job_is_tried_by_two_helpers_and_no_more(started: list[Played]) -> None:
    async with a_helper() as helper:
        bad, other = Caller(helper, b"bad"), Caller(helper, b"other")
        await turns()
        started[0].die()
        await asyncio.sleep(1.0)
        assert started[1].bodies == [b"bad"], "before those that came later"
        started[1].die()
        with pytest.raises(Rejected, match="the process that works on large bodies ended"):
            await bad
        await asyncio.sleep(1.0)
        started[2].answer()
        assert await other == RESULT


async def test_a_helper_that_gives_no_answer_in_its_time_is_ended(started: list[Played]) -> None:
    async with a_helper() as helper:
        job = Caller(helper)
        with pytest.raises(Rejected, match="the process that works on large bodies is stuck"):
            await job
        assert started[0].killed


async def test_all_that_waits_fails_when_the_pod_stops(started: list[Played]) -> None:
    helper = helper_of()
    jobs = [Caller(helper) for _ in range(3)]
    await turns()
    await helper.close()
    for job in jobs:
        with pytest.raises(Rejected, match="this pod is stopping"):
            await job
    assert len(started) == 1


async def test_a_large_body_may_take_longer(started: list[Played]) -> None:
    async with a_helper() as helper:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Rejected, match="is stuck"):
            await Caller(helper, bytes(13 << 20))
        assert asyncio.get_running_loop().time() - begun == pytest.approx(23.0, abs=0.1)


async def test_memory_that_values_take_is_held_while_they_are_read(
    started: list[Played],
) -> None:
    budget = ByteBudget(5000)
    async with a_helper() as helper:
        caller = Caller(helper, budget=budget)
        await asks_for(started, 4000)
        assert started[0].jobs == [(Kind.JOB, b"mine"), (Kind.GRANTED, b"mine")]
        assert budget.in_use == 4000
        started[0].answer()
        assert await caller == RESULT
        assert budget.in_use == 0


async def test_memory_that_is_not_there_is_not_taken_and_the_next_body_is_read(
    started: list[Played],
) -> None:
    budget = ByteBudget(5000)
    async with a_helper() as helper:
        caller, after = Caller(helper, budget=budget), Caller(helper, budget=budget)
        await asks_for(started, 6000)
        with pytest.raises(Rejected):
            await caller
        assert budget.in_use == 0
        await turns()
        started[0].answer()
        assert await after == RESULT


@pytest.mark.parametrize(("limit", "status"), [(2000, 413), (5000, 429)])
async def test_a_body_whose_values_find_no_memory_is_told_whether_to_come_again(
    started: list[Played], limit: int, status: int
) -> None:
    budget = ByteBudget(limit)
    assert budget.hold(Share("another")).grow(limit // 2)
    async with a_helper() as helper:
        caller = Caller(helper, budget=budget)
        await asks_for(started, 3000)
        with pytest.raises(Rejected) as refused:
            await caller
    assert refused.value.status == status
    assert "values of the body take up to 3000 bytes" in refused.value.message
    assert (refused.value.retry_after is None) == (status == 413)


async def test_an_answer_whose_values_find_no_memory_is_an_error_of_its_call(
    started: list[Played],
) -> None:
    async with a_helper() as helper:
        caller = Caller(helper, budget=ByteBudget(2000), is_answer=True)
        await asks_for(started, 3000)
        with pytest.raises(Unserved, match="values of the answer take up to 3000") as failed:
            await caller
    assert (failed.value.status, failed.value.retry_after) == (503, 1.0)


async def test_memory_is_held_until_the_end_of_a_job_whose_caller_left(
    started: list[Played],
) -> None:
    budget = ByteBudget(5000)
    async with a_helper() as helper:
        caller = Caller(helper, budget=budget)
        await asks_for(started, 4000)
        caller.leave()
        await turns()
        assert budget.in_use == 4000
        started[0].answer()
        await turns()
        assert budget.in_use == 0


async def test_an_answer_to_several_is_cut_though_there_is_no_memory_and_keeps_bodies_out(
    started: list[Played],
) -> None:
    budget = ByteBudget(5000)
    async with a_helper() as helper:
        caller = Caller(helper, budget=budget, must=True)
        await asks_for(started, 9000)
        assert budget.in_use == 9000
        assert budget.refusal(Share("another"), 1) is not None
        started[0].answer()
        assert await caller == RESULT
        assert budget.in_use == 0


async def test_only_the_oldest_job_is_blamed_for_the_end_of_a_helper(
    started: list[Played],
) -> None:
    async with a_helper(at_once=2) as helper:
        bad, good = Caller(helper, b"bad"), Caller(helper, b"good")
        for place in range(2):
            await asyncio.sleep(1.0)
            assert started[place].bodies == [b"bad", b"good"]
            started[place].die()
        with pytest.raises(Rejected, match="ended"):
            await bad
        await asyncio.sleep(1.0)
        assert started[2].bodies == [b"good"]
        started[2].answer()
        assert await good == RESULT


async def test_a_job_behind_one_that_hangs_is_done_by_the_next_helper(
    started: list[Played],
) -> None:
    async with a_helper(at_once=2) as helper:
        hangs, good = Caller(helper, b"hangs"), Caller(helper, b"good")
        with pytest.raises(Rejected, match="is stuck"):
            await hangs
        await asyncio.sleep(1.0)
        assert started[1].bodies == [b"good"]
        started[1].answer()
        assert await good == RESULT


async def test_a_large_job_is_alone_with_the_helper_and_small_ones_are_not(
    started: list[Played],
) -> None:
    """A small job of another tenant waited for two large ones that the helper had already."""
    async with a_helper(at_once=2) as helper:
        jobs = [Caller(helper, b"x" * size) for size in (5000, 5000, 5, 5)]
        with_helper = list[int]()
        for answers in (1, 1, 2):
            await turns()
            with_helper.append(len(started[0].bodies) - started[0].answers)
            for _ in range(answers):
                started[0].answer()
        assert with_helper == [1, 1, 2]
        for caller in jobs:
            assert await caller == RESULT


async def test_helpers_that_do_nothing_but_end_are_started_less_and_less_often(
    started: list[Played],
) -> None:
    async with a_helper() as helper:
        jobs = [Caller(helper) for _ in range(4)]
        times = []
        for place in range(8):
            while len(started) == place:  # noqa: ASYNC110  nobody else tells
                await asyncio.sleep(0.01)
            times.append(asyncio.get_running_loop().time())
            await turns()
            started[place].die()
        pauses = [later - sooner for sooner, later in pairwise(times)]
        assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 0.8, 0.8], abs=0.03)
        for job in jobs:
            with pytest.raises(Rejected, match="ended"):
                await job


async def test_a_helper_is_told_of_a_model_once_and_of_another(started: list[Played]) -> None:
    async with a_helper() as helper:
        for name in (b"a", b"a", b"b"):
            caller = Caller(helper, model=Pickled(bytes, (name,)))
            await turns()
            started[0].answer()
            await caller
        models = [one.load() for one in started[0].taken if one.kind is Kind.MODEL]
        assert models == [b"a", b"b"]


async def test_a_helper_that_is_begun_early_takes_the_first_job(started: list[Played]) -> None:
    async with a_helper() as helper:
        helper.begin()
        await turns()
        assert len(started) == 1
        caller = Caller(helper)
        await turns()
        started[0].answer()
        assert await caller == RESULT
        assert len(started) == 1


async def order(played: Played) -> list[bytes]:
    """The names of all jobs in the order in which they were done."""
    await turns()
    while len(played.bodies) > (done := played.answers):
        assert done < 40
        played.answer()
        await turns()
    return [body.rstrip() for body in played.bodies]


async def test_answers_go_before_others_and_each_in_their_order(started: list[Played]) -> None:
    async with a_helper() as helper:
        first = Caller(helper, b"first")
        await turns()
        others = [
            Caller(helper, name, is_answer=name in b"xy") for name in (b"a", b"b", b"x", b"y")
        ]
        assert await order(started[0]) == [b"first", b"x", b"y", b"a", b"b"]
        for caller in (first, *others):
            assert await caller == RESULT


async def test_a_flood_of_answers_keeps_another_tenant_waiting_for_one_of_its_size(
    started: list[Played],
) -> None:
    async with a_helper() as helper:
        for n in range(8):
            Caller(helper, b"flood %d" % n + b" " * 1000, share=Share("flood"), is_answer=True)
        await turns()
        Caller(helper, b"mine", share=Share("mine"), is_answer=True)
        assert (await order(started[0])).index(b"mine") <= 2


async def test_answers_take_no_place_from_others(started: list[Played]) -> None:
    async with a_helper() as helper:
        for _ in range(40):
            Caller(helper, is_answer=True)
        await turns()
        helper.check_place(NOBODY)
