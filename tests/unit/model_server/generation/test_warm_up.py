"""What a generator's first steps show, and how long they may take."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from batchedmodel_contract.generation.description import StepBounds
from batchedmodel_model_server.api.generator import Sampled, StepPart
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, ForwardFailed, OutOfMemory
from batchedmodel_model_server.generation.warm_up import cost_of, warmed_up
from batchedmodel_scheduling.latency.step_times import StepCost, StepLoad
from support.model_server_handlers import Clock

COST = StepCost(base=0.010, prefill_token=0.0002, sequence=0.001, context_token=0.00001)
SIZES = StepBounds(sequences=64, tokens=512)


class Timed:
    """Steps take what their cost says."""

    def __init__(
        self,
        clock: Clock,
        cost: StepCost = COST,
        *,
        blocks: int = 100,
        context: int = 4096,
        most_tokens: int = 10_000,
        fails: Callable[[Sequence[StepPart]], None] = lambda parts: None,
    ) -> None:
        self.blocks = blocks
        self.block_tokens = 16
        self.steps: list[int] = []
        """Tokens of each."""
        self._clock = clock
        self._cost = cost
        self._context = context
        self._most_tokens = most_tokens
        self._fails = fails

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        self._fails(parts)
        for part in parts:
            assert len(part.blocks) * self.block_tokens >= part.start + len(part.ids)
            assert max(part.blocks) < self.blocks
            assert part.start + len(part.ids) <= self._context
        tokens = sum(len(part.ids) for part in parts)
        if tokens > self._most_tokens:
            raise OutOfMemory(f"{tokens} tokens")
        read = sum(len(part.ids) for part in parts if len(part.ids) > 1)
        context = sum(part.start for part in parts if len(part.ids) == 1)
        self._clock.sleep(self._cost.predict(StepLoad(read, len(parts), context)))
        self.steps.append(tokens)
        return [[Sampled(0, 0.0)] * len(part.draws) for part in parts]

    def copy_block(self, source: int, target: int) -> None:
        raise AssertionError("nothing is copied")


def test_the_four_parts_of_the_cost_are_found() -> None:
    clock = Clock()
    cost, sizes = warmed_up(Timed(clock), SIZES, 4096, clock=clock.read)
    assert cost.base == pytest.approx(COST.base)
    assert cost.prefill_token == pytest.approx(COST.prefill_token)
    assert cost.sequence == pytest.approx(COST.sequence)
    assert cost.context_token == pytest.approx(COST.context_token)
    assert sizes == SIZES
    assert clock.now < 2


def test_what_noise_hides_of_the_cost_is_not_nothing() -> None:
    cost = cost_of(one=0.02, many=0.019, texts=8, prompt=0.018, tokens=100, behind=0.017)
    assert min(cost.base, cost.prefill_token, cost.sequence, cost.context_token) > 0
    assert cost.predict(StepLoad(0, 1, 0)) == pytest.approx(0.02)


@pytest.mark.parametrize("seconds", [0.5, 3.0, 60.0])
def test_a_slow_model_is_tried_with_less_and_counts_as_slow(seconds: float) -> None:
    clock = Clock()
    slow = StepCost(base=0.0, prefill_token=seconds, sequence=seconds)
    runner = Timed(clock, slow)
    cost, sizes = warmed_up(runner, SIZES, 4096, clock=clock.read)
    # Each of the four kinds of steps runs twice, whatever it takes.
    assert clock.now <= max(15.0, 17 * seconds)
    assert cost.predict(StepLoad(0, 1, 0)) >= 0.5 * seconds
    assert cost.prefill_token >= 0.5 * seconds
    assert sizes == SIZES


def test_a_model_without_time_costs_nothing() -> None:
    clock = Clock()
    free = StepCost(base=0.0, prefill_token=0.0, sequence=0.0)
    cost, _ = warmed_up(Timed(clock, free), SIZES, 4096, clock=clock.read)
    assert cost == free


@pytest.mark.parametrize(("blocks", "context"), [(1, 4096), (100, 2), (2, 17)])
def test_a_small_cache_or_context_is_never_left(blocks: int, context: int) -> None:
    clock = Clock()
    runner = Timed(clock, blocks=blocks, context=context)
    cost, _ = warmed_up(runner, StepBounds(sequences=blocks, tokens=512), context, clock=clock.read)
    assert cost.base > 0


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(200, StepBounds(64, 128)), (100, StepBounds(64, 64)), (31, StepBounds(16, 16))],
)
def test_a_step_that_does_not_fit_is_halved_until_one_does(most: int, sizes: StepBounds) -> None:
    clock = Clock()
    _, found = warmed_up(Timed(clock, most_tokens=most), SIZES, 4096, clock=clock.read)
    assert found == sizes


def test_a_model_that_holds_no_step_cannot_be_served() -> None:
    with pytest.raises(CannotLoad, match="a step of 1 tokens does not fit: 1 tokens"):
        warmed_up(Timed(Clock(), most_tokens=0), SIZES, 4096)


def test_a_step_that_fails_is_the_reason_why_it_cannot_be_served() -> None:
    def fails(parts: Sequence[StepPart]) -> None:
        raise ForwardFailed("the model failed: KeyError: 'k'")

    with pytest.raises(CannotLoad, match="a step of 1 texts failed in warm-up: the model failed"):
        warmed_up(Timed(Clock(), fails=fails), SIZES, 4096)


def test_a_lost_device_is_no_reason_of_the_model() -> None:
    def fails(parts: Sequence[StepPart]) -> None:
        raise DeviceLost("gone")

    with pytest.raises(DeviceLost):
        warmed_up(Timed(Clock(), fails=fails), SIZES, 4096)


def test_each_step_has_a_turn_of_its_own() -> None:
    clock = Clock()
    turns = []

    def turn(measure: Callable[[], float]) -> float:
        turns.append(clock.now)
        return measure()

    runner = Timed(clock)
    trials: Any = SimpleNamespace(take=turn, clock=clock.read)
    warmed_up(runner, SIZES, 4096, trials)
    assert len(turns) == len(runner.steps)
