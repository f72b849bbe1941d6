"""When the link to our model server says that only a restart helps, and when no more."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from batchedmodel_contract.inference.batch import BatchRequest
from batchedmodel_contract.inference.description import CostRule, ModelDescription, TensorSpec
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.inference.ragged import Ragged
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.processes.server_api import ModelState, StateEvent
from batchedmodel_scheduling.core.policy import MemoryCap
from batchedmodel_sidecar.adapters.served import ServedAdapters
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_slots import SharedSlots
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.model import ReadyModel
from support.private_hop import PretendModel, serving
from support.simulate_command import PROFILE

_SECONDS: Final = 10.0
_BATCH: Final = BatchRequest(
    inputs=(Ragged("x", Datatype.INT64, ((1,),), (bytes(8),)),), version="1"
)

_DESCRIPTION: Final = ModelDescription(
    name="m",
    version="1",
    platform="torch",
    inputs=(TensorSpec(name="x", datatype=Datatype.INT64, shape=(1,)),),
    outputs=(TensorSpec(name="y", datatype=Datatype.INT64, shape=(1,)),),
    cost_rule=CostRule.ROWS,
)


class Listener:
    """Counts the models that became ready, and keeps why there is none."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[str] = asyncio.Queue()

    def model_ready(self, model: ReadyModel) -> None:
        self.changes.put_nowait("ready")

    def model_lost(self, reason: str) -> None:
        self.changes.put_nowait(reason)

    def profile_measured(self, profile: Profile) -> None:
        raise AssertionError("nothing was measured")

    def memory_bound(self, cap: MemoryCap) -> None:
        """No batch is answered here."""

    async def until(self, change: str) -> None:
        async with asyncio.timeout(_SECONDS):
            while await self.changes.get() != change:
                pass


class Restarting(PretendModel):
    """Answers no batch; each that follows it is told the next of these states."""

    def __init__(self, *states: ModelState) -> None:
        super().__init__(_DESCRIPTION, PROFILE)
        self._left = list(states)

    async def states(self) -> AsyncIterator[StateEvent]:
        yield StateEvent(state=self._left.pop(0), detail="", version="1")


@pytest.mark.parametrize(
    ("state", "stuck"),
    [(ModelState.LOADING, False), (ModelState.WARMING, False), (ModelState.HUNG, True)],
)
async def test_a_server_that_starts_is_not_dead_because_the_one_before_it_was(
    state: ModelState, stuck: bool, tmp_path: Path
) -> None:
    """`batchedmodel run` ended each new process while it loaded, again and again."""
    listener, path = Listener(), tmp_path / "model.sock"
    link = NativeLink("m", str(path), listener, SharedSlots(1), ByteBudget(1), ServedAdapters("m"))
    following = asyncio.create_task(link.follow())
    try:
        # The line to the next process may open before anybody saw that the one before had gone.
        async with serving(path, Restarting(ModelState.READY, state)):
            await listener.until("ready")
            with pytest.raises(Unserved) as raised:
                await link.infer(_BATCH, 0.05)
            assert raised.value.status == 504
            assert link.status.stuck
            await listener.until(f"the model is {state}")
            assert link.status.stuck is stuck
        await listener.until("the model server cannot be reached")
        await listener.until("the model server cannot be reached")
        assert not link.status.stuck
    finally:
        following.cancel()
        await link.close()
