"""Batches that fail: who gets an answer all the same, and how many passes that takes."""

import asyncio
import math
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchedmodel_model_server.api.handler import Batch, Spec
from batchedmodel_model_server.batching.declaration import Sharing
from batchedmodel_model_server.errors import DeviceLost, NotReady
from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.execution.memory import MemoryCap
from support.model_server_handlers import OnHost, arrays_of, batch_of, loaded
from support.model_server_runner import runner_of

POISON = 13.0
EMPTY = 17.0
DEADLY = 19.0


class Tender(OnHost):
    """Doubles its numbers; fails at some of them, and above a number of padded values."""

    inputs: Mapping[str, Spec] = {"x": Spec("FP32", ("L",), max=1000)}
    outputs: Mapping[str, Spec] = {"y": Spec("FP32", ("L",))}

    def __init__(self, holds: float = math.inf) -> None:
        self.holds = holds
        self.passes: list[int] = []
        self.began = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def forward(self, batch: Batch) -> Any:
        x = batch.array("x")
        self.passes.append(batch.rows)
        self.began.set()
        self.goes_on.wait(60)
        if x.size > self.holds:
            raise MemoryError("no more")
        if (x == DEADLY).any():
            raise DeviceLost("gone")
        if (x == POISON).any():
            raise ValueError("poison")
        return {"y": np.where(x == EMPTY, np.nan, 2 * x)}


def items(rows: int, **odd: float) -> list[np.ndarray[Any, Any]]:
    """Items of different lengths; those that are named by their place hold another number."""
    every = [np.full(1 + row % 3, 100.0 + row, np.float32) for row in range(rows)]
    for place, number in odd.items():
        every[int(place[1:])][-1] = number
    return every


@pytest.mark.parametrize("bad", [0, 13, 16, 31])
async def test_one_poisoned_item_of_32_costs_the_others_nothing_and_at_most_11_passes(
    compute: DeviceThread, bad: int
) -> None:
    handler = Tender()
    given = items(32, **{f"i{bad}": POISON})
    reply = await runner_of(loaded(handler), compute).run(batch_of(x=given))
    assert len(handler.passes) <= 11
    assert reply.passes == len(handler.passes)
    for row, (status, answer) in enumerate(
        zip(reply.statuses, arrays_of(reply.outputs[0]), strict=True)
    ):
        assert status == (500 if row == bad else 200)
        assert answer.tolist() == ([] if row == bad else (2 * given[row]).tolist())
    assert reply.errors[bad] == "the model failed: ValueError: poison"


async def test_a_row_that_is_not_finite_fails_alone_and_nothing_is_run_again(
    compute: DeviceThread,
) -> None:
    handler = Tender()
    reply = await runner_of(loaded(handler), compute).run(batch_of(x=items(8, i2=EMPTY)))
    assert reply.statuses == (200, 200, 500, 200, 200, 200, 200, 200)
    assert reply.errors[2] == "y: the model's answer is not a finite number"
    assert handler.passes == [8]


async def test_a_row_that_is_not_finite_is_found_in_a_batch_that_was_cut_as_well(
    compute: DeviceThread,
) -> None:
    request = batch_of(x=items(8, i2=EMPTY, i5=POISON))
    reply = await runner_of(loaded(Tender()), compute).run(request)
    assert reply.statuses == (200, 200, 500, 200, 200, 500, 200, 200)
    assert arrays_of(reply.outputs[0])[7].tolist() == [214.0, 214.0]


async def test_what_does_not_fit_is_halved_and_later_batches_are_cut_before_they_fail(
    compute: DeviceThread,
) -> None:
    handler, cap = Tender(holds=30), MemoryCap()
    runner = runner_of(loaded(handler), compute, cap)
    request = batch_of(x=items(32))
    reply = await runner.run(request)
    assert set(reply.statuses) == {200}
    assert handler.passes == [32, 16, 8, 8, 8, 8]
    assert reply.max_cost == runner.max_cost == cap.cost == 36
    handler.passes.clear()
    again = await runner.run(request)
    assert set(again.statuses) == {200}
    assert handler.passes == [8, 8, 8, 8]
    assert [a.tolist() for a in arrays_of(again.outputs[0])] == [
        (2 * item).tolist() for item in items(32)
    ]


@pytest.mark.parametrize(
    ("holds", "odd", "statuses"),
    [(math.inf, {"i1": POISON}, (200, 500)), (1.5, {}, (200, 200))],
    ids=["poison", "memory"],
)
async def test_a_bound_that_falls_during_a_failing_pass_blames_no_item_that_is_fine(
    compute: DeviceThread, holds: float, odd: dict[str, float], statuses: tuple[int, ...]
) -> None:
    cap = MemoryCap()

    class Beside(Tender):
        """While its first pass runs, the batch before has learnt what the memory holds."""

        def forward(self, batch: Batch) -> Any:
            if not self.passes:
                cap.outgrown([2])
            return super().forward(batch)

    handler = Beside(holds)
    given = [np.full(1, 100.0, np.float32), np.full(1, odd.get("i1", 100.0), np.float32)]
    reply = await runner_of(loaded(handler), compute, cap).run(batch_of(x=given))
    assert reply.statuses == statuses
    assert handler.passes == [2, 1, 1]


class Strips(Tender):
    """Its items have two directions."""

    inputs: Mapping[str, Spec] = {"x": Spec("FP32", ("H", "W"), max=100)}
    outputs: Mapping[str, Spec] = {"y": Spec("FP32", ("H", "W"))}


async def test_a_batch_of_high_and_wide_items_counts_as_what_it_is_padded_to(
    compute: DeviceThread,
) -> None:
    handler, cap = Strips(holds=1000), MemoryCap()
    cap.begin_with(1000)
    given = [np.full(shape, 1.0, np.float32) for shape in [(100, 1), (1, 100)] * 4]
    reply = await runner_of(loaded(handler), compute, cap).run(batch_of(x=given))
    assert set(reply.statuses) == {200}
    assert sum(handler.passes) == len(given), "none of them was tried in vain"
    assert cap.cost == 1000


async def test_an_item_that_does_not_fit_even_alone_is_refused(compute: DeviceThread) -> None:
    handler = Tender(holds=50)
    given = [*items(7), np.ones(51, np.float32)]
    reply = await runner_of(loaded(handler), compute).run(batch_of(x=given))
    assert reply.statuses == (200,) * 7 + (413,)
    assert reply.errors[7] == "the device's memory does not hold this: MemoryError: no more"
    assert reply.max_cost is None


async def test_a_handler_that_may_not_run_twice_is_never_asked_again(
    compute: DeviceThread,
) -> None:
    handler = Tender()
    model = replace(loaded(handler), idempotent=False)
    reply = await runner_of(model, compute).run(batch_of(x=items(8, i2=POISON)))
    assert handler.passes == [8]
    assert reply.statuses == (500,) * 8


async def test_nothing_of_a_failed_pass_is_alive_when_its_items_run_again(
    compute: DeviceThread,
) -> None:
    class Tensor(np.ndarray[Any, Any]):
        """Can be watched."""

    class Holding(Tender):
        def forward(self, batch: Batch) -> Any:
            assert all(reference() is None for reference in held)
            activations = np.zeros(10).view(Tensor)
            held.append(weakref.ref(activations))
            return super().forward(batch)

    held: list[weakref.ref[Tensor]] = []
    reply = await runner_of(loaded(Holding(holds=20)), compute).run(batch_of(x=items(16)))
    assert set(reply.statuses) == {200}
    assert len(held) > 3


async def test_a_batch_behind_a_failing_one_does_not_wait_for_its_repetitions(
    compute: DeviceThread,
) -> None:
    handler = Tender()
    runner = runner_of(loaded(handler), compute)
    failing = asyncio.create_task(runner.run(batch_of(x=items(16, i0=POISON))))
    behind = asyncio.create_task(runner.run(batch_of(x=items(5))))
    assert (await behind).statuses == (200,) * 5
    assert handler.passes.index(5) == 1
    assert (await failing).statuses.count(500) == 1


async def test_a_caller_that_leaves_ends_the_search(compute: DeviceThread) -> None:
    handler = Tender()
    runner = runner_of(loaded(handler), compute)
    handler.goes_on.clear()
    failing = asyncio.create_task(runner.run(batch_of(x=items(32, i0=POISON))))
    await asyncio.to_thread(handler.began.wait, 60)
    failing.cancel()
    await asyncio.wait([failing])
    handler.goes_on.set()
    await runner.run(batch_of(x=items(1)))
    assert len(handler.passes) < 4


async def test_after_the_device_is_lost_nothing_touches_it_again(compute: DeviceThread) -> None:
    handler = Tender()
    runner = runner_of(loaded(handler), compute)
    deadly = asyncio.create_task(runner.run(batch_of(x=items(4, i1=DEADLY))))
    behind = asyncio.create_task(runner.run(batch_of(x=items(3))))
    with pytest.raises(DeviceLost):
        await deadly
    with pytest.raises(NotReady, match="gone"):
        await behind
    assert handler.passes == [4]


async def test_what_nobody_waits_for_any_more_is_not_run_again(compute: DeviceThread) -> None:
    handler = Tender()
    request = replace(batch_of(x=items(32, i0=POISON)), wanted_seconds=0.0)
    reply = await runner_of(loaded(handler), compute).run(request)
    assert handler.passes == [32]
    assert set(reply.statuses) == {504}


class Either(Tender):
    """Takes packed batches as well."""

    packs = True

    def forward(self, batch: Batch) -> Any:
        row = batch.packed()
        if row is None:
            return super().forward(batch)
        x = row.array("x")
        self.passes.append(batch.rows)
        if (x == POISON).any():
            raise ValueError("poison")
        return {"y": np.where(x == EMPTY, np.nan, 2 * x)}


@pytest.mark.parametrize("sharing", Sharing)
async def test_items_that_fail_are_found_however_items_share_a_pass(
    compute: DeviceThread, sharing: Sharing
) -> None:
    handler = Either()
    model = loaded(handler)
    model = replace(model, declaration=replace(model.declaration, sharing=sharing))
    # Neither in the order of their lengths nor all of one length.
    items = [np.full(1 + 7 * index % 5, 100 + index, np.float32) for index in range(32)]
    items[11][0], items[20][0] = POISON, EMPTY
    reply = await runner_of(model, compute).run(batch_of(x=items))
    assert [index for index, status in enumerate(reply.statuses) if status != 200] == [11, 20]
    for index, (item, answer) in enumerate(zip(items, arrays_of(reply.outputs[0]), strict=True)):
        if index not in (11, 20):
            assert np.array_equal(answer, 2 * item)
    if sharing is not Sharing.APART:
        assert len(handler.passes) <= 11
