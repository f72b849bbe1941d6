"""The model server's engine over the link, as a real process that simulates its device."""

import asyncio
import random
import signal
import stat
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Finish,
    Refusal,
    Refused,
    Sampling,
    StepReport,
    Submit,
    Token,
)
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.processes.environment import EXIT_DEVICE_LOST
from batchedmodel_model_server.generation.engine import MOST_TEXTS
from batchedmodel_model_server.handlers.simulated import drawn
from support.engine_frames import submit
from support.generating_handlers import FAILS, FILLS, HANGS, LOSES
from support.model_server_handlers import arrays_of, version_of
from support.model_server_process import ModelServerProcess, model_server, token_batch
from support.private_hop import UNWELCOME, Hop, connected

pytestmark = pytest.mark.asyncio(loop_scope="module")

BLOCKS = 256
TEXT_TOKENS = 900
"""Of one that goes on until it is ended."""
PARAMETERS = {"generates": "true", "stepSeconds": "0.005", "blocks": str(BLOCKS)}
TROUBLED = "support.generating_handlers:Troubled"
BOUNDS = Configure(max_sequences=64, max_tokens_per_step=512, token_seconds=None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelServerProcess]:
    """One for all tests, each of which leaves the engine empty."""
    folder = tmp_path_factory.mktemp("engine")
    async with model_server(folder, TROUBLED, parameters=PARAMETERS) as running:
        assert (await running.settled()).state is ModelState.READY
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def caller(server: ModelServerProcess) -> AsyncIterator[Hop]:
    async with connected(server.socket) as one:
        await one.send(BOUNDS)
        assert (await one.idle()).free_blocks == BLOCKS
        yield one


def expected(asked: Submit, choice: int = 0) -> list[int]:
    """The tokens of a text."""
    ids = array("i", asked.ids)
    while len(ids) < len(asked.ids) - asked.given + asked.max_tokens:
        ids.append(drawn(ids, asked.sampling, choice))
    return ids[len(asked.ids) :].tolist()


def values(tokens: list[Token]) -> list[int]:
    return [token.token for token in tokens]


async def test_who_generates_says_what_callers_must_know(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    description = await server.hop.generation()
    assert description is not None
    assert (description.blocks, description.block_tokens) == (BLOCKS, 16)
    assert description.max_context_tokens == BLOCKS * 16
    assert (description.max_sequences, description.max_tokens_per_step) == (64, 512)
    assert orjson.loads(await server.hop.tokenizer())["model"]["type"] == "BPE"
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o660
    async with model_server(tmp_path) as other:
        await other.settled()
        assert await other.hop.generation() is None
        assert await other.hop.engines() == []


async def test_texts_that_join_and_leave_at_any_step_have_the_tokens_that_are_theirs(
    caller: Hop,
) -> None:
    rng = random.Random(7)
    coming = [
        submit(
            number,
            [rng.randrange(65, 91) for _ in range(rng.randint(1, 60))],
            max_tokens=rng.randint(1, 25),
            choices=rng.choice([1, 1, 3]),
            sampling=Sampling(seed=number),
        )
        for number in range(40)
    ]
    asked = {one.id: one for one in coming}
    left = sum(one.choices for one in coming)
    told: dict[tuple[int, int], list[Token]] = {}
    while left:
        if coming:
            await caller.send(*(coming.pop() for _ in range(min(len(coming), rng.randint(1, 4)))))
        for token in (await caller.report()).tokens:
            told.setdefault((token.id, token.choice), []).append(token)
            left -= bool(token.finish)
    for (number, choice), tokens in told.items():
        assert values(tokens) == expected(asked[number], choice)
        assert [token.finish for token in tokens[:-1]] == [Finish.NONE] * (len(tokens) - 1)
        assert tokens[-1].finish is Finish.LENGTH
    assert (await caller.idle()).free_blocks == BLOCKS


async def test_the_report_after_a_cancel_has_its_blocks_free(caller: Hop) -> None:
    await caller.send(submit(1, [65] * 100, max_tokens=500), submit(2, [65] * 100, max_tokens=500))
    while (report := await caller.report()).running < 2:
        pass
    # Reports of steps before the cancel may still be unread; the one with this token is later.
    await caller.send(Cancel(id=1), submit(3, max_tokens=1))
    while not any(token.id == 3 for token in report.tokens):
        report = await caller.report()
    if report.running == 2:
        report = await caller.report()
    assert report.running == 1
    assert BLOCKS - report.free_blocks <= 1 + (100 + 500) // 16
    await caller.send(Cancel(id=2))
    assert (await caller.idle()).free_blocks == BLOCKS


async def test_a_caller_that_is_killed_leaves_nothing_behind(
    server: ModelServerProcess, caller: Hop
) -> None:
    async with connected(server.socket) as other:
        await other.send(
            *(submit(number, [65] * 30, max_tokens=TEXT_TOKENS) for number in range(20))
        )
        while (await other.report()).running < 20:
            pass
        other.abort()
    # The reports of steps before the abort are still unread; the one with this token is later.
    await caller.send(submit(1, max_tokens=1))
    while not (report := await caller.report()).tokens:
        pass
    behind = 0
    while report.running and behind < TEXT_TOKENS // 2:
        behind += 1
        report = await caller.report()
    assert (report.running, report.free_blocks) == (0, BLOCKS)


@pytest.mark.parametrize("sent", UNWELCOME.values(), ids=UNWELCOME)
async def test_whoever_sends_nonsense_is_hung_up_on_and_harms_no_other(
    server: ModelServerProcess, caller: Hop, sent: bytes
) -> None:
    honest = submit(1, max_tokens=12)
    await caller.send(honest)
    async with connected(server.socket) as other:
        await other.report()
        seen = len(server.log)
        await other.send_bytes(sent)
        while await other.next() is not None:
            pass
    assert values((await caller.texts(1))[1, 0]) == expected(honest)
    assert (await caller.idle()).free_blocks == BLOCKS
    assert any("the connection of a sidecar has ended: " in line for line in server.log[seen:])


async def test_whoever_does_not_read_is_hung_up_on_and_harms_no_other(
    server: ModelServerProcess, caller: Hop
) -> None:
    async with connected(server.socket) as other:
        chatty = Sampling(logprobs=20)
        seen = len(server.log)
        await other.send(*(submit(n, max_tokens=63 * 16, sampling=chatty) for n in range(4)))
        await other.send(*(submit(n, choices=60, max_tokens=60, sampling=chatty) for n in (9, 10)))
        other.stop_reading()
        async with asyncio.timeout(60):
            while not any("frames unread" in line for line in server.log[seen:]):
                await caller.report()
    assert (await caller.idle()).free_blocks == BLOCKS
    await caller.send(submit(1, max_tokens=3))
    assert len((await caller.texts(1))[1, 0]) == 3


async def test_a_first_token_that_would_come_too_late_is_refused(caller: Hop) -> None:
    await caller.send(
        Configure(max_sequences=1, max_tokens_per_step=512, token_seconds=None),
        submit(1, max_tokens=400, deadline=1.0),
        submit(2, deadline=0.05),
    )
    began = time.monotonic()
    refused = await caller.refused()
    assert (refused.id, refused.why) == (2, Refusal.LATE)
    assert 0.04 < time.monotonic() - began < 1.0
    await caller.send(Cancel(id=1), BOUNDS)


async def test_more_than_the_engine_takes_may_come_again(caller: Hop) -> None:
    most = MOST_TEXTS // 64
    await caller.send(*(submit(number, max_tokens=30, choices=64) for number in range(most + 1)))
    refused = await caller.refused()
    assert (refused.id, refused.why) == (most, Refusal.BUSY)
    await caller.send(*(Cancel(id=number) for number in range(most)))
    assert (await caller.idle()).free_blocks == BLOCKS


async def test_what_can_never_be_served_is_refused_with_the_reason(caller: Hop) -> None:
    await caller.send(submit(1, [260]), submit(2, [65] * 4000, max_tokens=100))
    first, second = await caller.refused(), await caller.refused()
    assert (first.id, first.why) == (1, Refusal.INVALID)
    assert "prompt: 260 holds a token id that is not from 0 to 259" in first.message
    assert "with its text has 4100 tokens; the model takes 4096" in second.message


async def test_batches_are_answered_between_steps(server: ModelServerProcess, caller: Hop) -> None:
    await caller.send(*(submit(number, max_tokens=100) for number in range(8)))
    began, answered = time.monotonic(), 0
    generating = asyncio.create_task(caller.texts(8))
    while not generating.done():
        reply = await server.hop.infer(token_batch("x", [[answered]]))
        assert arrays_of(reply.outputs[0])[0].tolist() == [answered]
        answered += 1
    assert {len(tokens) for tokens in (await generating).values()} == {100}
    # A batch and a step take 5 ms each, and one goes behind the other.
    assert answered > 10
    assert time.monotonic() - began < 10


async def test_a_step_that_fails_ends_only_the_text_that_it_fails_with(
    caller: Hop,
) -> None:
    honest = submit(1, max_tokens=40)
    await caller.send(honest, submit(2, [FAILS], max_tokens=3), submit(3, [FILLS], max_tokens=3))
    frames: dict[int, list[Token]] = {}
    refused: dict[int, Refused] = {}
    while len(frames.get(1, ())) < 40:
        match await caller.next():
            case Refused() as one:
                refused[one.id] = one
            case StepReport(tokens=tokens):
                for token in tokens:
                    frames.setdefault(token.id, []).append(token)
    assert values(frames[1]) == expected(honest)
    assert (refused[2].why, refused[3].why) == (Refusal.FAILED, Refusal.FAILED)
    assert "2 brings bad luck" in refused[2].message


async def test_a_step_that_hangs_is_told_and_so_is_that_it_ended_after_all(
    server: ModelServerProcess, caller: Hop
) -> None:
    events = server.hop.states()
    assert (await anext(events)).state is ModelState.READY
    await caller.send(submit(1, [HANGS], max_tokens=2))
    hung = await asyncio.wait_for(anext(events), 20)
    assert hung.state is ModelState.HUNG
    assert "a forward pass has run for" in hung.detail
    await caller.send(submit(2))
    refused = await caller.refused()
    assert (refused.id, refused.why) == (2, Refusal.BUSY)
    assert "model is HUNG" in refused.message
    assert (await asyncio.wait_for(anext(events), 20)).state is ModelState.READY
    assert len((await caller.texts(1))[1, 0]) == 2


async def test_a_drain_ends_what_was_taken_and_takes_nothing_more(tmp_path: Path) -> None:
    async with model_server(tmp_path, parameters=PARAMETERS) as server:
        await server.settled()
        async with connected(server.socket) as caller:
            asked = submit(1, max_tokens=60)
            await caller.send(asked)
            while not (report := await caller.report()).tokens:
                pass
            events = server.hop.states()
            await anext(events)
            server.process.send_signal(signal.SIGTERM)
            assert (await anext(events)).state is ModelState.DRAINING
            await caller.send(submit(2))
            told = list(report.tokens)
            refused = []
            while (frame := await caller.next()) is not None:
                if isinstance(frame, Refused):
                    refused.append(frame)
                elif isinstance(frame, StepReport):
                    told += frame.tokens
            assert values(told) == expected(asked)
            assert [(one.id, one.why) for one in refused] == [(2, Refusal.BUSY)]
        assert await asyncio.wait_for(server.process.wait(), 10) == 0
        assert not server.socket.exists()


async def test_texts_of_a_killed_engine_go_on_in_the_next_one(tmp_path: Path) -> None:
    asked = {n: submit(n, [65 + n], max_tokens=40, sampling=Sampling(seed=n)) for n in range(10)}
    told: dict[int, list[int]] = {number: [] for number in asked}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(model_server(tmp_path, parameters=PARAMETERS))
        await server.settled()
        caller = await stack.enter_async_context(connected(server.socket))
        await caller.send(*asked.values())
        while len(told[0]) < 10:
            for token in (await caller.report()).tokens:
                told[token.id].append(token.token)
        server.process.kill()
        while (frame := await caller.next()) is not None:
            assert isinstance(frame, StepReport)
            for token in frame.tokens:
                told[token.id].append(token.token)
        await server.process.wait()
        server = await stack.enter_async_context(model_server(tmp_path, parameters=PARAMETERS))
        await server.settled()
        caller = await stack.enter_async_context(connected(server.socket))
        for number, one in asked.items():
            ids = [*one.ids, *told[number]]
            given = len(told[number])
            await caller.send(
                submit(number, ids, given=given, max_tokens=40, sampling=one.sampling)
            )
        for (number, _), tokens in (await caller.texts(10)).items():
            assert told[number] + values(tokens) == expected(asked[number])


async def test_a_lost_device_ends_the_process_and_with_it_the_connection(tmp_path: Path) -> None:
    async with model_server(tmp_path, TROUBLED, parameters=PARAMETERS) as server:
        await server.settled()
        async with connected(server.socket) as caller:
            await caller.send(submit(1, [LOSES]))
            while await caller.next() is not None:
                pass
        assert await asyncio.wait_for(server.process.wait(), 10) == EXIT_DEVICE_LOST


async def test_a_connection_stays_with_its_version_until_that_has_gone(tmp_path: Path) -> None:
    version_of(tmp_path / "model" / "1", factor=1)
    async with model_server(
        tmp_path,
        "support.generating_handlers:Versioned",
        parameters=PARAMETERS,
        source={"path": str(tmp_path / "model")},
    ) as server:
        await server.settled()
        async with connected(server.socket) as old:
            await old.send(submit(1, max_tokens=150))
            while not (await old.report()).tokens:
                pass
            version_of(tmp_path / "model" / "2", factor=2)
            await server.hop.load()
            description = await server.hop.generation()
            assert description is not None
            assert description.vocabulary == 302
            first, second = await old.engines()
            assert second > first
            await server.hop.release("1")
            async with connected(server.socket) as new:
                await new.send(submit(1, [301], max_tokens=3))
                assert len((await new.texts(1))[1, 0]) == 3
            # What had begun goes on to its end, and nothing else begins.
            await old.send(submit(2, max_tokens=3), engine=first)
            assert (await old.refused()).why is Refusal.BUSY
            assert (await old.texts(1))[1, 0][-1].finish is Finish.LENGTH
            while await old.next() is not None:
                pass
