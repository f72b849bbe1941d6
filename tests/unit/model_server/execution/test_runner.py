"""A batch's way: every item gets its own status, and preparation does not wait for the device."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.handler import Batch, Handler, Spec
from batchedmodel_model_server.batching.items import examine
from batchedmodel_model_server.errors import ModelServerError
from batchedmodel_model_server.execution import runner
from batchedmodel_model_server.execution.device_thread import DeviceThread, settle
from support.hostile_tokenizers import Panic
from support.model_server_handlers import Echo, Failing, Giving, arrays_of, batch_of, loaded
from support.model_server_runner import runner_of


async def test_each_item_gets_back_its_own(compute: DeviceThread) -> None:
    reply = await runner_of(loaded(Echo()), compute).run(batch_of(x=[[1], [2, 3], [4, 5, 6]]))
    y, total, pair = reply.outputs
    assert [a.tolist() for a in arrays_of(y)] == [[1], [2, 3], [4, 5, 6]]
    assert [a.item() for a in arrays_of(total)] == [1, 5, 15]
    assert [a.tolist() for a in arrays_of(pair)] == [[1, -1], [5, -5], [15, -15]]
    assert reply.statuses == (200, 200, 200)
    assert (reply.tokens, reply.padded_tokens) == (6, 9)
    assert reply.compute_seconds > 0
    assert reply.queue_seconds >= 0


async def test_a_bad_item_fails_alone(compute: DeviceThread) -> None:
    request = batch_of(x=[[1], np.ones(1001, np.int64), [99], [4]])
    reply = await runner_of(loaded(Failing()), compute).run(request)
    assert reply.statuses == (200, 400, 400, 200)
    assert reply.errors[1] == "x: [1001] has size 1001 in L, above the maximum 1000"
    assert reply.errors[2] == "x: 99 is not served here"
    assert [a.tolist() for a in arrays_of(reply.outputs[0])] == [[1], [], [], [4]]


async def test_an_item_over_which_a_check_stumbles_fails_alone(compute: DeviceThread) -> None:
    reply = await runner_of(loaded(Failing()), compute).run(batch_of(x=[[1], [98], [99]]))
    assert reply.statuses == (200, 500, 400)
    assert reply.errors[1] == "the model's check failed: IndexError: 98"


async def test_what_fails_even_alone_is_told_why_and_its_neighbours_are_answered(
    compute: DeviceThread,
) -> None:
    reply = await runner_of(loaded(Failing()), compute).run(batch_of(x=[[1, 2], [99], [13], [4]]))
    assert reply.statuses == (200, 400, 500, 200)
    assert reply.errors[2] == "the model failed: RuntimeError: 13 brings bad luck"
    y, total, pair = reply.outputs
    assert [a.tolist() for a in arrays_of(y)] == [[1, 2], [], [], [4]]
    assert [a.item() for a in arrays_of(total)] == [3, 0, 0, 4]
    assert [a.tolist() for a in arrays_of(pair)] == [[3, -3], [], [], [4, -4]]


async def test_a_batch_without_valid_items_never_reaches_the_device(
    compute: DeviceThread,
) -> None:
    reply = await runner_of(loaded(Failing()), compute).run(batch_of(x=[[99], [99]]))
    assert reply.statuses == (400, 400)
    assert reply.compute_seconds == 0
    assert reply.padded_tokens == 0


async def test_what_is_no_batch_of_the_model_raises(compute: DeviceThread) -> None:
    with pytest.raises(InvalidInput):
        await runner_of(loaded(Echo()), compute).run(batch_of(z=[[1]]))


async def test_a_large_batch_is_handled_aside_with_the_same_answer(compute: DeviceThread) -> None:
    items = [np.full(1000, index) for index in range(300)]
    reply = await runner_of(loaded(Echo()), compute).run(batch_of(x=items))
    assert all(
        np.array_equal(item, answer)
        for item, answer in zip(items, arrays_of(reply.outputs[0]), strict=True)
    )


class Gated(Echo):
    """Each pass waits until the test opens the gate."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.order: list[int] = []

    def forward(self, batch: Batch) -> Any:
        self.entered.set()
        assert self.gate.wait(5)
        self.order.append(int(batch.array("x")[0, 0]))
        return super().forward(batch)


async def test_batches_run_in_the_order_in_which_they_came(compute: DeviceThread) -> None:
    handler = Gated()
    runner = runner_of(loaded(handler), compute)
    runs = [asyncio.create_task(runner.run(batch_of(x=[[number]]))) for number in range(4)]
    await asyncio.sleep(0)
    handler.gate.set()
    await asyncio.gather(*runs)
    assert handler.order == [0, 1, 2, 3]


async def test_a_batch_whose_caller_left_before_it_began_is_not_run(
    compute: DeviceThread,
) -> None:
    handler = Gated()
    runner = runner_of(loaded(handler), compute)
    first = asyncio.create_task(runner.run(batch_of(x=[[1]])))
    second = asyncio.create_task(runner.run(batch_of(x=[[2]])))
    await asyncio.to_thread(handler.entered.wait, 5)
    second.cancel()
    await asyncio.wait([second])
    handler.gate.set()
    await first
    assert handler.order == [1]


async def test_a_caller_that_leaves_during_its_pass_disturbs_nobody(
    compute: DeviceThread,
) -> None:
    handler = Gated()
    runner = runner_of(loaded(handler), compute)
    first = asyncio.create_task(runner.run(batch_of(x=[[1]])))
    await asyncio.to_thread(handler.entered.wait, 5)
    first.cancel()
    await asyncio.wait([first])
    handler.gate.set()
    reply = await runner.run(batch_of(x=[[2]]))
    assert reply.statuses == (200,)


@pytest.mark.parametrize("error", [SystemExit, StopIteration, KeyboardInterrupt])
async def test_nothing_that_work_raises_ends_the_compute_thread(
    compute: DeviceThread, error: type[BaseException]
) -> None:
    def work() -> None:
        raise error

    with pytest.raises(ModelServerError, match=error.__name__):
        await compute.call(work)
    assert await compute.call(lambda: 7) == 7


async def test_a_waiter_is_settled_once() -> None:
    waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    settle(waiter, 1)
    settle(waiter, ValueError())
    assert await waiter == 1
    waiter = asyncio.get_running_loop().create_future()
    waiter.cancel()
    settle(waiter, 2)
    assert waiter.cancelled()


def test_the_base_handler_checks_and_predicts_nothing() -> None:
    handler = Handler()
    handler.check({})
    handler.load(None, "host")
    handler.unload()
    assert handler.predicted_seconds(1, 1) is None


async def test_padding_counts_in_every_direction(compute: DeviceThread) -> None:
    images = {"x": Spec("FP32", ("H", "W"), max=9)}
    model = loaded(Giving({"y": np.zeros(2)}, {"y": Spec("FP32", ())}, images))
    request = batch_of(x=[np.ones((2, 3), np.float32), np.ones((5, 1), np.float32)])
    reply = await runner_of(model, compute).run(request)
    assert (reply.tokens, reply.padded_tokens) == (6 + 5, 2 * 5 * 3)


class Panicking(Failing):
    """Its libraries raise what is no exception."""

    def check(self, item: Mapping[str, Any]) -> None:
        if item["x"][0] == 98:
            raise Panic("in the check")

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        if (batch.array("x") == 13).any():
            raise Panic("in the pass")
        return Echo.forward(self, batch)


async def test_panic_of_a_library_fails_its_item_alone_in_the_check_as_in_the_pass(
    compute: DeviceThread,
) -> None:
    request = batch_of(x=[[1], [98], [13], [4]])
    async with asyncio.timeout(10):
        reply = await runner_of(loaded(Panicking()), compute).run(request)
    assert reply.statuses == (200, 500, 500, 200)
    assert reply.errors[1] == "the model's check failed: Panic: in the check"
    assert reply.errors[2] == "the model failed: Panic: in the pass"


class Wordless(Exception):
    """One that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Speechless(Failing):
    """Raises what cannot be shown."""

    def check(self, item: Mapping[str, Any]) -> None:
        if item["x"][0] == 98:
            raise Wordless

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        if (batch.array("x") == 13).any():
            raise Wordless
        return Echo.forward(self, batch)


async def test_an_exception_that_cannot_be_shown_fails_its_item_alone(
    compute: DeviceThread,
) -> None:
    request = batch_of(x=[[1], [98], [13], [4]])
    reply = await runner_of(loaded(Speechless()), compute).run(request)
    assert reply.statuses == (200, 500, 500, 200)
    assert "Wordless" in reply.errors[1]
    assert "Wordless" in reply.errors[2]


async def test_batch_of_many_items_is_judged_off_the_loop(
    compute: DeviceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def seen(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return examine(*given)

    monkeypatch.setattr(f"{runner.__name__}.examine", seen)
    for items in (1, 4096):
        await runner_of(loaded(Echo()), compute).run(batch_of(x=[[1]] * items))
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False]
