"""A real process with real torch, whose passes fail in every way that the server answers for."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import pytest_asyncio

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.link.model_frames import State
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.processes.environment import EXIT_DEVICE_LOST
from support.model_server_handlers import arrays_of, batch_of
from support.model_server_process import ModelServerProcess, model_server
from support.private_hop import HopError, connected
from support.tender_handlers import DEADLY, EMPTY, GIANT, HEAVY, POISON

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

HANDLER = "support.tender_handlers:Tender"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tender(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelServerProcess]:
    """One for all tests that it survives."""
    async with model_server(tmp_path_factory.mktemp("tender"), HANDLER) as server:
        assert (await server.settled()).state is ModelState.READY
        yield server


def numbers(rows: int, **odd: float) -> list[np.ndarray[Any, Any]]:
    """Items of one to three numbers; those that are named by their place end with another one."""
    every = [np.full(1 + row % 3, 100.0 + row, np.float32) for row in range(rows)]
    for place, number in odd.items():
        every[int(place[1:])][-1] = number
    return every


def assert_intact(reply: BatchReply, given: Sequence[np.ndarray[Any, Any]], *but: int) -> None:
    """Every item but those that are named has its own answer."""
    for row, answer in enumerate(arrays_of(reply.outputs[0])):
        if row not in but:
            assert reply.statuses[row] == 200, reply.errors[row]
            assert answer.tolist() == (2 * given[row]).tolist()


async def test_one_poisoned_item_of_32_leaves_31_intact_within_11_passes(
    tender: ModelServerProcess,
) -> None:
    given = numbers(32, i21=POISON)
    reply = await tender.hop.infer(batch_of(x=given))
    assert reply.passes <= 11
    assert (reply.statuses[21], reply.errors[21]) == (500, "the model failed: ValueError: poison")
    assert_intact(reply, given, 21)
    assert sum("ValueError: poison" in line for line in tender.log if "Traceback" in line) <= 1


async def test_a_row_that_is_not_finite_fails_alone(tender: ModelServerProcess) -> None:
    given = numbers(32, i7=EMPTY)
    reply = await tender.hop.infer(batch_of(x=given))
    assert reply.passes == 1
    assert (reply.statuses[7], reply.errors[7]) == (
        500,
        "y: the model's answer is not a finite number",
    )
    assert_intact(reply, given, 7)


async def test_an_item_for_which_the_allocator_has_nothing_is_refused_and_teaches_nothing(
    tender: ModelServerProcess,
) -> None:
    given = numbers(16, i3=GIANT)
    reply = await tender.hop.infer(batch_of(x=given))
    assert reply.statuses[3] == 413
    assert "can't allocate memory" in reply.errors[3]
    assert reply.max_cost is None
    assert_intact(reply, given, 3)


async def test_what_does_not_fit_is_cut_and_the_bound_is_told_and_kept(
    tender: ModelServerProcess,
) -> None:
    given = numbers(32, **{f"i{row}": HEAVY for row in range(32)})
    reply = await tender.hop.infer(batch_of(x=given))
    assert_intact(reply, given)
    # 32 rows fail, 16 of them fail, and 4 of 8 fit; of three numbers at most.
    assert (reply.passes, reply.max_cost) == (6, 36)
    async with connected(tender.socket) as another:
        assert (await another.profile()).max_cost == 36
    again = await tender.hop.infer(batch_of(x=given))
    assert_intact(again, given)
    assert again.passes == 4


class End(NamedTuple):
    """How a server ended that lost its device, and where it lay."""

    folder: Path
    told: tuple[int, bool]
    event: State
    code: int
    left: bool
    """Whether its socket is there still."""


async def end_of_a_device(folder: Path) -> End:
    """A server there is ready and answers rightly, until its device is lost."""
    async with model_server(folder, HANDLER) as server:
        events = server.hop.states()
        async for event in events:
            if event.state not in (ModelState.LOADING, ModelState.WARMING):
                break
        assert event.state is ModelState.READY
        given = numbers(4)
        assert_intact(await server.hop.infer(batch_of(x=given)), given)
        told = await _refused(server, batch_of(x=numbers(4, i2=DEADLY)))
        event = await anext(events)
        code = await asyncio.wait_for(server.process.wait(), 20)
        return End(folder, told, event, code, server.socket.exists())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lost(tmp_path_factory: pytest.TempPathFactory) -> End:
    """The first of the servers of its folder."""
    return await end_of_a_device(tmp_path_factory.mktemp("lost"))


async def test_a_lost_device_is_told_to_whoever_is_at_work_and_ends_the_process(lost: End) -> None:
    assert lost.told == (503, True)
    assert lost.event.state is ModelState.LOST
    assert lost.event.detail.startswith("the device is lost: AcceleratorError: CUDA error: device")
    assert lost.code == EXIT_DEVICE_LOST
    assert not lost.left


async def test_the_same_folder_serves_again_after_a_lost_device(lost: End) -> None:
    again = await end_of_a_device(lost.folder)
    assert (lost.code, again.code) == (EXIT_DEVICE_LOST,) * 2


async def _refused(server: ModelServerProcess, request: BatchRequest) -> tuple[int, bool]:
    """The status, and whether the answer says that the batch was at work."""
    with pytest.raises(HopError) as refusal:
        await server.hop.infer(request)
    return refusal.value.status, refusal.value.at_work
