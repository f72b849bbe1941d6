"""The sidecar's side of the helper, in front of processes that are not there."""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from batchedmodel_contract.manifest.spec import ServerProtocol
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_sidecar.backends.foreign.catalogue import foreign
from batchedmodel_sidecar.body.byte_budget import ByteBudget, Hold
from batchedmodel_sidecar.codec.process import client
from batchedmodel_sidecar.codec.process.client import (
    CodecClient,
    CodecFailed,
    CodecProcessEnded,
    NoMemory,
    patience,
)
from batchedmodel_sidecar.codec.process.shared_memory import SharedMemory
from batchedmodel_sidecar.codec.process.wire import DealJob, Job, News, ParseJob, Reply
from batchedmodel_sidecar.codec.tokenizer import Tokens, text_threads
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.routes import Endpoint
from support.hostile_tokenizers import Panic
from support.sidecar_world import MODEL
from support.text_handlers import Ranker, tokenizer_json

pytestmark = pytest.mark.looptime  # a machine that stands still for long makes nobody impatient

JOB: Final = ParseJob(Endpoint.V2_INFER, None, most_rows=100)
REPLY: Final = Reply(head=7)
LARGE_MODEL: Final = replace(
    MODEL, tokens=Tokens(tokenizer_json() + b" " * 1_000_000, Ranker.text, text_threads(1))
)
"""Telling a helper of it takes several turns of the loop."""


AMPLE: Final = ByteBudget(1 << 30)


class NoProcess:
    """Answers when the test says; whoever is sent to it must be open still."""

    started: "list[NoProcess]"

    def __init__(self) -> None:
        self.asked: list[SharedMemory] = []
        self.jobs: list[Job] = []
        self.ended = False
        self._answer: asyncio.Future[tuple[Reply, SharedMemory]] | None = None
        self.started.append(self)

    def tell(self, news: News, memory: SharedMemory) -> None:
        assert memory.descriptor >= 0

    async def ask(self, job: Job, memory: SharedMemory) -> tuple[Reply, SharedMemory]:
        assert memory.descriptor >= 0
        self.jobs.append(job)
        self.asked.append(memory)
        self._answer = asyncio.get_running_loop().create_future()
        return await self._answer

    @classmethod
    async def start(cls) -> "NoProcess":
        return cls()

    async def end(self) -> None:
        self.ended = True

    def answer(self, reply: Reply = REPLY) -> None:
        assert self._answer is not None
        self._answer.set_result((reply, SharedMemory()))

    def panic(self) -> None:
        assert self._answer is not None
        self._answer.set_exception(Panic("of a library"))

    def die(self) -> None:
        assert self._answer is not None
        self._answer.set_exception(CodecProcessEnded("it was killed"))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[NoProcess]:
    """The processes in the order of their start."""
    processes: list[NoProcess] = []
    monkeypatch.setattr(NoProcess, "started", processes, raising=False)
    monkeypatch.setattr(client, "CodecProcess", NoProcess)
    return processes


@asynccontextmanager
async def a_helper() -> AsyncIterator[CodecClient]:
    helper = CodecClient(asyncio.get_running_loop().time)
    try:
        yield helper
    finally:
        await helper.close()


class Caller:
    """Has a body read, and closes its memory behind it as the front does."""

    def __init__(
        self,
        helper: CodecClient,
        model: ReadyModel = MODEL,
        budget: ByteBudget = AMPLE,
        job: Job = JOB,
    ) -> None:
        self.memory = SharedMemory()
        self._job = job
        self._task = asyncio.create_task(self._asks(helper, model, budget.hold(NOBODY)))

    async def _asks(self, helper: CodecClient, model: ReadyModel, hold: Hold) -> int:
        try:
            with hold:
                _, head = await helper.do(self._job, self.memory, model, urgent=False, held=hold)
                return head
        finally:
            self.memory.close()

    def __await__(self) -> Generator[Any, None, int]:
        return self._task.__await__()

    def leave(self) -> None:
        self._task.cancel()


async def turns() -> None:
    """Until everybody waits for somebody."""
    for _ in range(20):
        await asyncio.sleep(0)


async def asks_for(started: list[NoProcess], size: int) -> None:
    """The first helper gets to a job, and asks for so many bytes."""
    await turns()
    started[0].answer(Reply(head=0, needs=size))
    await turns()


async def test_a_job_whose_caller_left_is_not_tried_by_a_second_helper(
    started: list[NoProcess],
) -> None:
    async with a_helper() as helper:
        gone, stays = Caller(helper), Caller(helper)
        await turns()
        gone.leave()
        await turns()
        started[0].die()
        await turns()
        started[1].answer()
        assert await stays == REPLY.head
        assert [process.asked for process in started] == [[gone.memory], [stays.memory]]


async def test_no_helper_is_started_again_for_a_caller_that_left(started: list[NoProcess]) -> None:
    async with a_helper() as helper:
        gone = Caller(helper)
        await turns()
        gone.leave()
        await turns()
        started[0].die()
        await turns()
        assert len(started) == 1


async def test_a_caller_that_leaves_while_the_helper_learns_of_the_model_costs_nobody_anything(
    started: list[NoProcess],
) -> None:
    async with a_helper() as helper:
        gone, stays = Caller(helper, LARGE_MODEL), Caller(helper, LARGE_MODEL)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not started[0].asked
        gone.leave()
        await turns()
        started[0].answer()
        assert await stays == REPLY.head
        assert [process.asked for process in started] == [[stays.memory]]


async def test_a_caller_that_leaves_before_its_turn_is_not_asked_for(
    started: list[NoProcess],
) -> None:
    async with a_helper() as helper:
        first, gone, stays = Caller(helper), Caller(helper), Caller(helper)
        await turns()
        # Both at once: the helper's turn comes before the caller's who is to take it back.
        started[0].answer()
        gone.leave()
        await turns()
        started[0].answer()
        assert [await first, await stays] == [REPLY.head, REPLY.head]
        assert started[0].asked == [first.memory, stays.memory]


def test_memory_that_was_closed_has_no_descriptor_to_send() -> None:
    memory = SharedMemory()
    memory.close()
    with pytest.raises(ValueError, match="was closed"):
        assert memory.descriptor >= 0


async def test_whatever_is_raised_over_a_job_its_caller_is_told_and_the_next_one_is_done(
    started: list[NoProcess],
) -> None:
    async with a_helper() as helper:
        job = Caller(helper)
        await turns()
        started[0].panic()
        with pytest.raises(CodecFailed, match="cannot be worked on at present"):
            await job
        assert started[0].ended
        job = Caller(helper)
        await turns()
        started[1].answer()
        assert await job == REPLY.head


async def test_a_job_is_tried_by_two_helpers_and_no_more(started: list[NoProcess]) -> None:
    async with a_helper() as helper:
        bad, other = Caller(helper), Caller(helper)
        await turns()
        started[0].die()
        await turns()
        assert started[1].asked == [bad.memory], "before those that came later"
        started[1].die()
        await turns()
        with pytest.raises(CodecFailed, match="ended"):
            await bad
        started[2].answer()
        assert await other == REPLY.head


async def test_a_helper_that_gives_no_answer_in_its_time_is_ended(started: list[NoProcess]) -> None:
    async with a_helper() as helper:
        job = Caller(helper)
        with pytest.raises(CodecFailed, match="is stuck"):
            await job
        assert started[0].ended


async def test_all_that_waits_fails_when_the_pod_stops(started: list[NoProcess]) -> None:
    helper = CodecClient(asyncio.get_running_loop().time)
    jobs = [Caller(helper) for _ in range(3)]
    await turns()
    await helper.close()
    started[0].die()
    for job in jobs:
        with pytest.raises(CodecFailed, match="this pod is stopping"):
            await job
    assert len(started) == 1


async def test_who_is_refused_is_told_to_come_when_half_of_what_waits_is_done(
    started: list[NoProcess],
) -> None:
    async with a_helper() as helper:
        jobs = [Caller(helper) for _ in range(10)]
        await turns()
        assert helper.delay == 1.0
        await asyncio.sleep(2.0)
        started[0].answer()
        assert await jobs[0] == REPLY.head
        assert helper.delay == 8.0


def test_a_large_body_may_take_longer() -> None:
    assert patience(0) == 10.0
    assert patience(13 << 20) == 23.0


async def test_memory_that_values_take_is_held_while_they_are_read(
    started: list[NoProcess],
) -> None:
    budget = ByteBudget(5000)
    async with a_helper() as helper:
        caller = Caller(helper, budget=budget)
        await asks_for(started, 4000)
        assert started[0].jobs == [JOB, JOB._replace(granted=True)]
        assert budget.held == 4000
        started[0].answer()
        assert await caller == REPLY.head
        assert budget.held == 0


async def test_memory_that_is_not_there_is_not_taken_and_the_next_body_is_read(
    started: list[NoProcess],
) -> None:
    budget = ByteBudget(5000)
    async with a_helper() as helper:
        caller, after = Caller(helper, budget=budget), Caller(helper, budget=budget)
        await asks_for(started, 6000)
        with pytest.raises(NoMemory):
            await caller
        assert budget.held == 0
        await turns()
        started[0].answer()
        assert await after == REPLY.head


async def test_memory_is_held_until_the_end_of_a_job_whose_caller_left(
    started: list[NoProcess],
) -> None:
    budget = ByteBudget(5000)
    async with a_helper() as helper:
        caller = Caller(helper, budget=budget)
        await asks_for(started, 4000)
        caller.leave()
        await turns()
        assert budget.held == 4000
        started[0].answer()
        await turns()
        assert budget.held == 0


async def test_an_answer_to_several_is_cut_though_there_is_no_memory_and_keeps_bodies_out(
    started: list[NoProcess],
) -> None:
    budget = ByteBudget(5000)
    async with a_helper() as helper:
        protocol = foreign(ServerProtocol.V1, "m").protocol
        caller = Caller(helper, budget=budget, job=DealJob(protocol, 7))
        await asks_for(started, 9000)
        assert budget.held == 9000
        assert budget.refusal(Share("another"), 1) is not None
        started[0].answer()
        assert await caller == REPLY.head
        assert budget.held == 0
