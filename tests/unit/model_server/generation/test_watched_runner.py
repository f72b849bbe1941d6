"""Steps are watched by what they should take, and teach what they take."""

import asyncio
from array import array
from collections.abc import Callable, Sequence

import pytest

from batchedmodel_model_server.api.generator import Sampled, StepPart
from batchedmodel_model_server.errors import DeviceLost, ForwardFailed, OutOfMemory
from batchedmodel_model_server.execution.watchdog import LEAST_SECONDS, Watchdog
from batchedmodel_model_server.generation.serving import WatchedRunner, load_of
from batchedmodel_scheduling.latency.step_times import StepCost, StepLoad, StepTimes
from support.model_server_handlers import Clock

COST = StepCost(base=1.0, prefill_token=0.1, sequence=0.5)
DECODE = StepPart(array("i", [1]), 40, [0, 1, 2], [])
PROMPT = StepPart(array("i", [1] * 20), 0, [3, 4], [])


class Runner:
    """Does as it is told."""

    blocks = 8
    block_tokens = 16

    def __init__(self, does: Callable[[], None]) -> None:
        self._does = does
        self.copied: list[tuple[int, int]] = []

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        self._does()
        return [[] for _ in parts]

    def copy_block(self, source: int, target: int) -> None:
        self.copied.append((source, target))


class Watching(Watchdog):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop(), lambda hung: None)
        self.allowed: list[float] = []
        self.ended = 0

    def pass_begins(self, allowed: float) -> None:
        self.allowed.append(allowed)

    def pass_ends(self) -> None:
        self.ended += 1


def test_the_load_of_a_step_counts_prompts_texts_and_what_those_that_go_on_have() -> None:
    assert load_of([DECODE, PROMPT]) == StepLoad(prefill_tokens=20, sequences=2, context_tokens=40)


async def test_a_step_may_take_ten_times_what_it_should_and_ten_seconds_at_least() -> None:
    watchdog = Watching()
    runner = WatchedRunner(Runner(lambda: None), StepTimes(COST), watchdog)
    assert runner.run([DECODE, PROMPT]) == [[], []]
    runner = WatchedRunner(
        Runner(lambda: None),
        StepTimes(StepCost(base=0.1, prefill_token=0, sequence=0)),
        watchdog,
    )
    runner.run([DECODE])
    assert watchdog.allowed == [pytest.approx(40.0), LEAST_SECONDS]
    assert watchdog.ended == 2


async def test_what_steps_take_corrects_what_they_should() -> None:
    clock, cost = Clock(), StepTimes(COST)
    runner = WatchedRunner(Runner(lambda: clock.sleep(3.0)), cost, Watching(), clock.read)
    for _ in range(200):
        runner.run([DECODE])
    assert cost.predict(load_of([DECODE])) == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (OutOfMemory("full"), OutOfMemory),
        (DeviceLost("gone"), DeviceLost),
        (MemoryError(), OutOfMemory),
        (KeyError("k"), ForwardFailed),
        (SystemExit(3), ForwardFailed),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_whatever_a_runner_raises_is_told_in_our_words_and_teaches_nothing(
    raised: BaseException, told: type[ForwardFailed]
) -> None:
    def fails() -> None:
        raise raised

    watchdog, cost = Watching(), StepTimes(COST)
    with pytest.raises(told) as caught:
        WatchedRunner(Runner(fails), cost, watchdog).run([DECODE])
    assert type(caught.value) is told
    assert watchdog.ended == 1
    load = load_of([DECODE])
    assert cost.predict(load) == COST.predict(load)


async def test_all_else_is_the_runners_own() -> None:
    own = Runner(lambda: None)
    watched = WatchedRunner(own, StepTimes(COST), Watching())
    watched.copy_block(1, 2)
    assert (watched.blocks, watched.block_tokens, own.copied) == (8, 16, [(1, 2)])
