"""Callers of one engine: their frames, their bounds, and whose turn the compute thread has."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Finish,
    Refusal,
    Refused,
    StepReport,
    Submit,
    Token,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.generator import StepPart
from batchedmodel_model_server.errors import CannotLoad, DeviceLost
from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.generation import engine as engines
from batchedmodel_model_server.generation.engine import Engine
from batchedmodel_model_server.generation.engine_loop import (
    MOST_FAILURES,
    Caller,
    EngineLoop,
    Rules,
)
from batchedmodel_model_server.lora.registry import Kept
from batchedmodel_model_server.sources.folder import Content
from support.engine_frames import submit
from support.examples import examples
from support.reading_runner import ReadingRunner, drawn, engine_over

BLOCKS = 32


class World:
    """An engine whose turns come when a test says so, and all who ask for them."""

    def __init__(
        self,
        before: Callable[[Sequence[StepPart]], None] = lambda parts: None,
        sequences: int = 4,
        adapters: Any = None,
    ) -> None:
        self.now = 0.0
        self.turns: list[Callable[[bool], None]] = []
        self.refusal: str | None = None
        self.at_work = 0
        self.lost: list[DeviceLost] = []
        self.runner = ReadingRunner(BLOCKS, 4, before)
        self.loop = EngineLoop(
            lambda: engine_over(self.runner, sequences=sequences),
            lambda turn, target: self.turns.append(turn),
            Rules(lambda: self.refusal, self._working, self.lost.append),
            adapters=adapters,
            clock=lambda: self.now,
        )

    @contextmanager
    def _working(self) -> Iterator[None]:
        self.at_work += 1
        yield
        self.at_work -= 1

    async def turn(self) -> None:
        """The compute thread does what is before it, and the event loop hears of it."""
        turns, self.turns[:] = list(self.turns), []
        assert len(turns) == 1
        turns[0](False)
        await asyncio.sleep(0)

    async def turns_until_idle(self) -> None:
        while self.turns:
            await self.turn()


class Asking:
    """One caller, and what it was sent."""

    def __init__(self, world: World) -> None:
        self.frames: list[StepReport | Refused] = []
        self.ended = False
        self._world = world
        self.caller: Caller = world.loop.join(self._sent, self._end)

    def _sent(self, frame: StepReport | Refused) -> None:
        self.frames.append(frame)

    def _end(self) -> None:
        self.ended = True

    def ask(self, *frames: Submit | Cancel | Configure) -> None:
        for frame in frames:
            self._world.loop.take(self.caller, frame)

    @property
    def tokens(self) -> list[Token]:
        return [
            token
            for frame in self.frames
            if isinstance(frame, StepReport)
            for token in frame.tokens
        ]

    @property
    def cached(self) -> list[tuple[int, int]]:
        return [
            one for frame in self.frames if isinstance(frame, StepReport) for one in frame.cached
        ]

    @property
    def refused(self) -> list[tuple[int, Refusal]]:
        return [(frame.id, frame.why) for frame in self.frames if isinstance(frame, Refused)]

    @property
    def report(self) -> StepReport:
        """The last one."""
        frame = next(one for one in reversed(self.frames) if isinstance(one, StepReport))
        return replace(frame, tokens=())


async def test_whoever_comes_is_told_how_the_engine_is_without_a_step() -> None:
    world = World()
    asking = Asking(world)
    await world.turn()
    assert asking.frames == [
        StepReport(
            seconds=0.0,
            running=0,
            waiting=0,
            free_blocks=BLOCKS,
            blocks=BLOCKS,
            backlog=0,
            preemptions=0,
            prefill_tokens=0,
            tokens=[],
        )
    ]
    assert world.turns == []


async def test_a_turn_is_one_frame_for_each_caller_and_an_idle_engine_has_no_turns() -> None:
    world = World()
    asking = Asking(world)
    asking.ask(submit(1, [1, 2], max_tokens=3), submit(2, [3], max_tokens=2))
    await world.turns_until_idle()
    assert [len(frame.tokens) for frame in asking.frames if isinstance(frame, StepReport)] == [
        2,
        2,
        1,
    ]
    assert (asking.report.running, asking.report.free_blocks) == (0, BLOCKS)


async def test_callers_that_choose_one_id_get_each_its_own_tokens() -> None:
    world = World()
    first, second = Asking(world), Asking(world)
    first.ask(submit(7, [1, 2], max_tokens=2))
    second.ask(submit(7, [3, 4], max_tokens=3))
    await world.turns_until_idle()
    assert [token.id for token in first.tokens] == [7, 7]
    assert [token.id for token in second.tokens] == [7, 7, 7]
    assert first.tokens[0].token == drawn([1, 2], 0, 0)
    assert second.tokens[0].token == drawn([3, 4], 0, 0)
    # Both see each step.
    assert len(first.frames) == len(second.frames) == 3


async def test_each_caller_is_told_what_its_own_prompts_found_in_the_cache() -> None:
    world = World()
    first, second = Asking(world), Asking(world)
    for asking in (first, second):
        asking.ask(submit(7, range(10), max_tokens=1))
        await world.turns_until_idle()
    assert first.cached == []
    assert second.cached == [(7, 8)]


async def test_what_is_asked_during_a_step_is_in_the_next_one() -> None:
    late = submit(2, [5], max_tokens=1)
    world = World(lambda parts: asking.ask(late) if len(parts) == 1 and not asking.tokens else None)
    asking = Asking(world)
    asking.ask(submit(1, [1, 2], max_tokens=2))
    await world.turn()
    assert [token.id for token in asking.tokens] == [1]
    await world.turn()
    assert [token.id for token in asking.tokens] == [1, 1, 2]


async def test_a_cancelled_request_has_no_blocks_after_one_turn_and_no_token_any_more() -> None:
    world = World()
    asking = Asking(world)
    asking.ask(submit(1, [1] * 20, max_tokens=30), submit(2, [2] * 20, max_tokens=30))
    await world.turn()
    told = len(asking.tokens)
    asking.ask(Cancel(id=1), Cancel(id=1), Cancel(id=99))
    await world.turn()
    assert [token.id for token in asking.tokens[told:]] == [2]
    assert (asking.report.running, asking.report.free_blocks) == (1, BLOCKS - 6)
    asking.ask(Cancel(id=2))
    await world.turn()
    assert (asking.report.running, asking.report.free_blocks) == (0, BLOCKS)
    assert world.turns == []
    assert world.at_work == 0


async def test_one_of_several_choices_is_cancelled_alone() -> None:
    world = World()
    asking = Asking(world)
    asking.ask(submit(1, [1, 2, 3], max_tokens=6, choices=3))
    await world.turn()
    asking.ask(Cancel(id=1, choice=1))
    await world.turns_until_idle()
    assert [token.choice for token in asking.tokens].count(1) == 1
    assert [token.choice for token in asking.tokens].count(2) == 6
    assert world.at_work == 0
    asking.ask(submit(2, [1, 2, 3], choices=2))
    asking.ask(Cancel(id=2, choice=0), Cancel(id=2, choice=1), Cancel(id=2, choice=1))
    await world.turns_until_idle()
    assert {token.id for token in asking.tokens} == {1}
    assert world.at_work == 0


async def test_all_that_a_caller_had_leaves_with_it_and_harms_no_other() -> None:
    world = World()
    first, second = Asking(world), Asking(world)
    first.ask(*(submit(number, [1] * 8, max_tokens=30) for number in range(3)))
    second.ask(submit(1, [2] * 4, max_tokens=4))
    await world.turn()
    world.loop.leave(first.caller)
    world.loop.leave(first.caller)
    await world.turn()
    assert second.report.running == 1
    assert second.report.free_blocks == BLOCKS - 2
    await world.turns_until_idle()
    assert len(second.tokens) == 4
    assert len(first.tokens) == 3


async def test_a_request_that_can_never_be_served_is_refused_with_the_reason() -> None:
    world = World()
    asking = Asking(world)
    asking.ask(submit(1, [1, 99]), submit(2, [1], max_tokens=1))
    await world.turns_until_idle()
    (refused,) = (frame for frame in asking.frames if isinstance(frame, Refused))
    assert (refused.id, refused.why) == (1, Refusal.INVALID)
    assert "prompt: 99 holds a token id that is not from 0 to 49" in refused.message
    assert [token.id for token in asking.tokens] == [2]
    assert world.at_work == 0


async def test_what_had_begun_where_more_ran_is_taken_whatever_runs_now() -> None:
    world = World(sequences=1)
    asking = Asking(world)
    asking.ask(*(submit(number, [1, 2], given=1, max_tokens=2) for number in range(20)))
    await world.turns_until_idle()
    assert asking.refused == []
    assert {token.id for token in asking.tokens} == set(range(20))


async def test_texts_beyond_the_bound_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MOST_TEXTS", 8)
    world = World(sequences=2)
    first, second = Asking(world), Asking(world)
    first.ask(submit(1, [1], choices=2), *(submit(number, [1]) for number in range(2, 8)))
    second.ask(submit(1, [1], max_tokens=1))
    assert second.refused == [(1, Refusal.BUSY)]
    # What was cancelled counts until the engine has let go of it.
    first.ask(Cancel(id=7))
    second.ask(submit(2, [1], max_tokens=1))
    assert second.refused[1:] == [(2, Refusal.BUSY)]
    await world.turn()
    second.ask(submit(3, [1], max_tokens=1))
    await world.turns_until_idle()
    assert len(second.refused) == 2
    assert [token.id for token in second.tokens] == [3]


async def test_prompts_beyond_the_bound_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MOST_BYTES", 100)
    world = World()
    asking = Asking(world)
    asking.ask(submit(1, [1] * 20, max_tokens=1), submit(2, [1] * 6, max_tokens=1))
    assert asking.refused == [(2, Refusal.BUSY)]
    await world.turns_until_idle()
    asking.ask(submit(3, [1] * 20, max_tokens=1))
    await world.turns_until_idle()
    assert {token.id for token in asking.tokens} == {1, 3}


async def test_a_model_on_its_way_out_takes_nothing_and_says_why() -> None:
    world = World()
    asking = Asking(world)
    asking.ask(submit(1, [1], max_tokens=4))
    world.refusal = "model m is DRAINING: so it was told"
    asking.ask(submit(2, [1]))
    (refused,) = (frame for frame in asking.frames if isinstance(frame, Refused))
    assert refused == Refused(id=2, why=Refusal.BUSY, message=world.refusal)
    await world.turns_until_idle()
    assert len(asking.tokens) == 4


async def test_work_is_known_from_the_first_request_to_the_end_of_the_last() -> None:
    world = World()
    asking = Asking(world)
    assert world.at_work == 0
    asking.ask(submit(1, [1], max_tokens=1), submit(2, [1], max_tokens=2))
    assert world.at_work == 1
    await world.turn()
    assert world.at_work == 1
    await world.turn()
    assert world.at_work == 0
    asking.ask(submit(3, [1], max_tokens=1))
    assert world.at_work == 1
    await world.turns_until_idle()
    assert world.at_work == 0


async def test_an_id_that_is_in_use_is_an_error() -> None:
    world = World()
    asking = Asking(world)
    asking.ask(submit(1, [1]))
    with pytest.raises(InvalidInput):
        asking.ask(submit(1, [1]))


async def test_a_deadline_counts_from_the_arrival() -> None:
    world = World(sequences=1)
    asking = Asking(world)
    asking.ask(submit(1, [1], max_tokens=9))
    await world.turn()
    asking.ask(submit(2, [1], deadline=2.0))
    world.now = 1.9
    await world.turn()
    assert asking.refused == []
    world.now = 2.0
    await world.turn()
    assert asking.refused == [(2, Refusal.LATE)]


async def test_the_last_of_the_bounds_that_came_is_in_force_from_the_next_step_on() -> None:
    world = World(sequences=1)
    asking = Asking(world)
    asking.ask(*(submit(number, [number], max_tokens=9) for number in range(3)))
    await world.turn()
    assert asking.report.running == 1
    for sequences in (2, 3):
        asking.ask(Configure(max_sequences=sequences, max_tokens_per_step=8, token_seconds=None))
    await world.turn()
    assert asking.report.running == 3


async def test_a_lost_device_is_told_once_and_nothing_touches_it_any_more() -> None:
    def fails(parts: Sequence[StepPart]) -> None:
        raise DeviceLost("gone")

    world = World(fails)
    asking = Asking(world)
    asking.ask(submit(1, [1]))
    await world.turn()
    assert [str(error) for error in world.lost] == ["gone"]
    asking.ask(submit(2, [1]))
    assert world.turns == []
    assert asking.frames == []


async def test_an_error_of_the_engines_own_ends_the_newest_text_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(parts: Sequence[StepPart]) -> None:
        if any(draw.ids[0] == 9 for part in parts for draw in part.draws):
            raise ZeroDivisionError("who would have thought")

    world = World(fails)
    asking = Asking(world)
    asking.ask(submit(1, [1], max_tokens=20))
    await world.turn()
    asking.ask(submit(2, [9]))
    await world.turn()
    assert asking.refused == [(2, Refusal.BUSY)]
    assert "who would have thought" in caplog.text
    asking.ask(submit(3, [1], max_tokens=2))
    await world.turns_until_idle()
    assert [token.id for token in asking.tokens].count(3) == 2
    ids = [1]
    for token in asking.tokens:
        if token.id == 1:
            assert token.token == drawn(ids, 0, 0)
            ids.append(token.token)
    assert len(ids) == 21
    assert world.at_work == 0
    assert asking.report.free_blocks == BLOCKS


async def test_an_error_that_comes_again_at_once_ends_the_engine_and_another_begins() -> None:
    broken = False

    def fails(parts: Sequence[StepPart]) -> None:
        if broken:
            raise ZeroDivisionError("who would have thought")

    world = World(fails)
    asking = Asking(world)
    asking.ask(submit(1, [1], max_tokens=20), submit(2, [1], max_tokens=20))
    await world.turn()
    broken = True
    await world.turn()
    assert [token.id for token in asking.tokens if token.finish is Finish.FAILED] == [2]
    assert not asking.ended
    await world.turn()
    assert asking.ended
    assert world.at_work == 0
    broken = False
    await assert_another_caller_is_served(world)


async def assert_another_caller_is_served(world: World) -> None:
    """By an engine of which nothing is used."""
    other = Asking(world)
    other.ask(submit(1, [1], max_tokens=2))
    await world.turns_until_idle()
    assert len(other.tokens) == 2
    assert (other.report.running, other.report.free_blocks) == (0, BLOCKS)
    assert not other.ended
    assert world.at_work == 0
    assert world.lost == []


@contextmanager
def fails_at(engine: type[Engine], method: str, times: int) -> Iterator[None]:
    """The next calls of a method raise, whichever engine is asked."""
    left = times
    real = getattr(engine, method)

    def failing(*args: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise ZeroDivisionError("who would have thought")
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, method, failing)
        yield


@pytest.mark.parametrize("method", ["configure", "cancel", "take"])
async def test_an_engine_that_fails_outside_a_step_hangs_up_and_another_takes_its_place(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every text would wait for ever otherwise: no turn came any more."""
    world = World()
    asking = Asking(world)
    asking.ask(submit(1, [1], max_tokens=20), submit(2, [1] * 9, max_tokens=20))
    await world.turn()
    with fails_at(Engine, method, times=1):
        bounds = Configure(max_sequences=4, max_tokens_per_step=64, token_seconds=None)
        asking.ask(bounds, Cancel(id=2), submit(3, [1]))
        await world.turn()
        assert asking.ended
        assert "who would have thought" in caplog.text
        await world.turns_until_idle()
    await assert_another_caller_is_served(world)


@pytest.mark.parametrize("method", ["configure", "take"])
async def test_engines_that_fail_one_after_the_other_end_the_process(method: str) -> None:
    world = World()
    with fails_at(Engine, method, times=MOST_FAILURES):
        while not world.lost:
            asking = Asking(world)
            bounds = Configure(max_sequences=4, max_tokens_per_step=64, token_seconds=None)
            asking.ask(bounds)
            await world.turns_until_idle()
            assert asking.ended
    (lost,) = world.lost
    assert "the engine failed again and again: ZeroDivisionError: who would" in str(lost)


async def test_an_outcome_that_cannot_be_told_ends_no_more_than_the_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its tokens would be missing in the middle of the texts otherwise."""
    world = World()
    other, asking = Asking(world), Asking(world)
    other.ask(submit(1, [1], max_tokens=20))
    asking.ask(submit(1, [1], max_tokens=20))
    await world.turn()

    def sent(frame: StepReport | Refused) -> None:
        raise ZeroDivisionError("who would have thought")

    world.loop.join(sent, lambda: None)
    await world.turn()
    assert asking.ended
    assert other.ended
    assert "who would have thought" in caplog.text
    await world.turns_until_idle()
    await assert_another_caller_is_served(world)


async def test_an_engine_whose_tokens_can_never_be_told_is_not_replaced_for_ever() -> None:
    """A token counted as a success before it was sent: no number of such engines was enough."""
    world = World()

    def sent(frame: StepReport | Refused) -> None:
        if isinstance(frame, StepReport) and frame.tokens:
            raise ZeroDivisionError("who would have thought")

    engines = 0
    while not world.lost and engines < 10:
        engines += 1
        caller = world.loop.join(sent, lambda: None)
        world.loop.take(caller, submit(1, [1], max_tokens=20))
        await world.turns_until_idle()
    assert engines == MOST_FAILURES
    (lost,) = world.lost
    assert "the engine failed again and again: ZeroDivisionError: who would" in str(lost)


class Lending:
    """Has adapters 1, and 2 and 3 that must be read first, the last of which cannot be."""

    def __init__(self) -> None:
        self.lent: list[int] = []
        self.read = asyncio.Event()

    def hold(self, number: int) -> Kept | None:
        if number > 3:
            return None
        self.lent.append(number)
        return Kept(number, Content(), "weights" if number == 1 else None, 1)

    async def in_memory(self, kept: Kept) -> str:
        await self.read.wait()
        if kept.number == 3:
            raise CannotLoad("it is gone")
        return "weights"

    def give_back(self, kept: Kept) -> None:
        self.lent.remove(kept.number)


async def test_a_text_waits_for_its_adapter_to_be_read_and_fails_alone_without() -> None:
    lending = Lending()
    world = World(adapters=lending)
    asking = Asking(world)
    for adapter in (1, 2, 3, 4):
        asking.ask(submit(adapter, [1], max_tokens=1, adapter=adapter))
    asking.ask(submit(5, [1], adapter=2), Cancel(id=5))
    assert asking.refused == [(4, Refusal.BUSY)]
    await world.turns_until_idle()
    assert [token.id for token in asking.tokens] == [1]
    assert sorted(lending.lent) == [2, 3]
    lending.read.set()
    for _ in range(3):
        await asyncio.sleep(0)
    await world.turns_until_idle()
    assert [token.id for token in asking.tokens] == [1, 2]
    assert asking.refused == [(4, Refusal.BUSY), (3, Refusal.BUSY)]
    assert lending.lent == []
    assert world.at_work == 0


async def test_a_model_without_adapters_refuses_texts_that_name_one() -> None:
    world = World()
    asking = Asking(world)
    asking.ask(submit(1, [1], adapter=1))
    assert asking.refused == [(1, Refusal.BUSY)]


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32))
def test_every_request_is_settled_once_whatever_its_caller_does(seed: int) -> None:
    asyncio.run(_history(random.Random(seed)))


async def _history(rng: random.Random) -> None:
    world = World(sequences=3)
    gone: list[Asking] = []
    present = [Asking(world)]
    wanted: dict[tuple[Asking, int], set[int]] = {}
    for number in range(60):
        asking = rng.choice(present)
        match rng.randrange(7):
            case 0 | 1 | 2:
                one = submit(
                    number,
                    [rng.randrange(50) for _ in range(rng.randint(0, 20))],
                    max_tokens=rng.randint(1, 20),
                    choices=rng.choice([1, 1, 2, 3]),
                    deadline=rng.choice([None, None, 3.0]),
                )
                wanted[asking, number] = set(range(one.choices))
                asking.ask(one)
            case 3:
                choice = rng.choice([None, 0, 1])
                for (whose, which), choices in list(wanted.items()):
                    if whose is asking and rng.random() < 0.3:
                        asking.ask(Cancel(id=which, choice=choice))
                        choices.clear() if choice is None else choices.discard(choice)
            case 4:
                present.append(Asking(world))
            case 5 if len(present) > 1:
                present.remove(asking)
                gone.append(asking)
                world.loop.leave(asking.caller)
            case _ if world.turns:
                world.now += 1.0
                await world.turn()
    await world.turns_until_idle()
    assert world.at_work == 0
    assert present[0].report.free_blocks == BLOCKS
    for (asking, number), choices in wanted.items():
        ends = [token.choice for token in asking.tokens if token.id == number and token.finish]
        refused = [which for which, _ in asking.refused].count(number)
        assert len(ends) == len(set(ends))
        if asking in gone:
            continue
        assert choices <= set(ends) or refused == 1 or not choices
        assert not (ends and refused)
    # Nothing of what has ended counts any more.
    last = Asking(world)
    last.ask(*(submit(number, [1], max_tokens=1) for number in range(12)))
    assert last.refused == []
    await world.turns_until_idle()
    assert len(last.tokens) == 12


async def test_an_engine_that_ends_hangs_up_on_its_callers() -> None:
    world = World()
    asking = Asking(world)
    await world.turns_until_idle()
    world.loop.end()
    assert asking.ended


async def test_batches_that_come_during_a_step_run_before_the_next_one() -> None:
    now, happened = 0.0, list[str]()
    running = asyncio.get_running_loop()
    compute = DeviceThread(running, clock=lambda: now)

    def took(what: str, seconds: float) -> None:
        nonlocal now
        happened.append(what)
        now += seconds

    def hand_over() -> None:
        work = partial(took, "batch", 0.125)
        batches.extend([running.create_task(compute.call(work)) for _ in range(2)])
        running.call_soon(handed_over.set)

    def stepping(parts: Sequence[StepPart]) -> None:
        took("step", 0.25)
        handed_over.clear()
        running.call_soon_threadsafe(hand_over)
        assert handed_over.wait(5)

    batches: list[asyncio.Task[None]] = []
    ended, handed_over = asyncio.Event(), threading.Event()

    def sent(frame: StepReport | Refused) -> None:
        assert isinstance(frame, StepReport)
        if any(token.finish for token in frame.tokens):
            ended.set()

    loop = EngineLoop(
        lambda: engine_over(ReadingRunner(BLOCKS, 4, stepping)),
        compute.post,
        Rules(lambda: None, nullcontext, lambda error: None),
    )
    caller = loop.join(sent, lambda: None)
    loop.take(caller, Configure(max_sequences=4, max_tokens_per_step=64, token_seconds=1.0))
    loop.take(caller, submit(1, [1], max_tokens=3))
    compute.start()
    await ended.wait()
    await asyncio.gather(*batches)
    compute.finish()
    compute.join(5)
    assert happened == ["step", "batch", "batch"] * 3
