"""Adapters of running texts and of passes are in their slots, whatever came before."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import Finish, Refusal, Sampling
from batchedmodel_model_server.api.generator import StepPart
from batchedmodel_model_server.errors import DeviceLost, ForwardFailed
from batchedmodel_model_server.lora.slots import NO_SLOT, DeviceAdapters
from support.engine_frames import submit
from support.examples import examples
from support.reading_runner import VOCABULARY, ReadingRunner, engine_over


class Bank:
    """Slots that hold numbers."""

    def __init__(self, slots: int) -> None:
        self.held: list[int | None] = [None] * slots
        self.fails: BaseException | None = None
        self.copies = 0

    def read(self, folder: Path) -> Any:
        raise NotImplementedError

    def bytes_of(self, weights: Any) -> int:
        return 1

    def labels_of(self, weights: Any) -> None:
        return None

    def put(self, slot: int, weights: Any) -> None:
        self.held[slot - 1] = -1
        if self.fails is not None:
            raise self.fails
        self.copies += 1
        self.held[slot - 1] = weights

    def clear(self, slot: int) -> None:
        self.held[slot - 1] = None

    def of(self, slot: int) -> int | None:
        """What a row of this slot is computed with."""
        return 0 if slot == NO_SLOT else self.held[slot - 1]


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_each_text_is_computed_with_its_adapter_and_all_of_them_end(seed: int) -> None:
    rng = random.Random(seed)
    slots = rng.randint(1, 4)
    bank = Bank(slots)

    def before(parts: Sequence[StepPart]) -> None:
        for part in parts:
            for draw in part.draws:
                assert bank.of(part.adapter) == draw.sampling.seed

    device = DeviceAdapters(bank, slots)
    engine = engine_over(ReadingRunner(rng.randint(16, 40), 4, before), adapters=device)
    waiting = [
        (number, rng.randint(0, 8), [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))])
        for number in range(1, 25)
    ]
    left = {number for number, _, _ in waiting}
    now = 0.0
    while left:
        while waiting and rng.random() < 0.4:
            number, adapter, ids = waiting.pop()
            one = submit(
                number,
                ids,
                max_tokens=rng.randint(1, 10),
                sampling=Sampling(seed=adapter),
                choices=rng.choice([1, 1, 2]),
                adapter=adapter,
            )
            engine.submit(one, now, cast(Any, adapter))
            if rng.random() < 0.1:
                engine.cancel(number)
                left.discard(number)
        engine.step(now)
        now += 0.05
        assert now < 100, "somebody waits for ever"
        report, refused = engine.take(0.0)
        assert not refused
        left -= {token.id for token in report.tokens if token.finish is Finish.LENGTH}
    while engine.busy:
        engine.step(now)
        now += 0.05
    # Nothing is held any more.
    assert device.table.fits(range(100, 100 + slots))


def test_a_text_whose_adapter_cannot_be_copied_is_refused_and_others_go_on() -> None:
    bank = Bank(2)
    engine = engine_over(ReadingRunner(16, 4), adapters=DeviceAdapters(bank, 2))
    bank.fails = MemoryError()
    engine.submit(submit(1, [3], adapter=5), 0.0, cast(Any, 5))
    engine.submit(submit(2, [3], max_tokens=1), 0.0)
    engine.step(0.0)
    report, (refused,) = engine.take(0.0)
    assert (refused.id, refused.why) == (1, Refusal.BUSY)
    assert [token.id for token in report.tokens] == [2]
    assert bank.held == [None, None]
    bank.fails = DeviceLost("gone")
    engine.submit(submit(3, [3], adapter=5), 0.0, cast(Any, 5))
    with pytest.raises(DeviceLost):
        engine.step(0.0)


def test_rows_find_the_slots_of_their_adapters_and_nothing_is_copied_twice() -> None:
    bank = Bank(2)
    device = DeviceAdapters(bank, 2)
    weights: dict[int, Any] = {number: number for number in range(1, 5)}
    numbers = np.array([0, 1, 2, 1], np.int32)
    for _ in range(2):
        slots = device.slots_of(numbers, weights)
        assert [bank.of(slot) for slot in slots.tolist()] == [0, 1, 2, 1]
    assert bank.copies == 2
    with pytest.raises(ForwardFailed, match="3 adapters do not fit"):
        device.slots_of(np.array([1, 2, 3], np.int32), weights)


def test_what_could_not_be_copied_is_not_taken_for_there() -> None:
    bank = Bank(2)
    device = DeviceAdapters(bank, 2)
    bank.fails = RuntimeError("no")
    with pytest.raises(RuntimeError):
        device.slots_of(np.array([1, 2], np.int32), cast(Any, {1: 1, 2: 2}))
    bank.fails = None
    slots = device.slots_of(np.array([1, 2], np.int32), cast(Any, {1: 1, 2: 2}))
    assert [bank.of(slot) for slot in slots.tolist()] == [1, 2]
