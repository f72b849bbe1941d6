"""Sidecars that do not answer keep no look waiting, and are asked ever more rarely."""

import asyncio

import pytest

from batchedmodel_kube.admin_client import Whom
from batchedmodel_operator.interfaces import SidecarState
from support.operator_cluster import FakeSidecars
from support.operator_world import SIMULATED, World

pytestmark = pytest.mark.looptime


class MuteSidecars(FakeSidecars):
    """Those at `mute` addresses never answer."""

    def __init__(self) -> None:
        super().__init__()
        self.mute: set[str] = set()

    async def state(self, address: str, whom: Whom) -> SidecarState | None:
        answer = await super().state(address, whom)
        if address in self.mute:
            await asyncio.sleep(3600)
        return answer


async def _world(*, pods: int, mute: int) -> tuple[World, MuteSidecars]:
    world, sidecars = World({**SIMULATED, "replicas": pods}), MuteSidecars()
    world.sidecars = sidecars
    world.restart()
    await world.settle()
    for number in range(pods):
        world.start_pod(str(number))
    world.all_ready()
    sidecars.mute = {f"10.0.0.{number}" for number in range(mute)}
    return world, sidecars


async def _seconds_of_a_reconcile(world: World) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await world.look()
    return loop.time() - began


async def test_a_reconcile_waits_for_all_of_its_pods_for_half_a_second() -> None:
    world, _ = await _world(pods=100, mute=100)
    assert await _seconds_of_a_reconcile(world) == pytest.approx(0.5, abs=0.01)


async def test_pods_that_answer_are_heard_beside_those_that_do_not() -> None:
    world, _ = await _world(pods=6, mute=3)
    await world.look()
    message = world.condition("Progressing")["message"]
    assert message == "not known to use the present batch settings: 0, 1, 2"


async def test_pods_behind_many_that_do_not_answer_have_their_turn() -> None:
    world, _ = await _world(pods=40, mute=32)
    for _ in range(4):
        await world.look()
        world.now += 1
    message = world.condition("Progressing")["message"]
    assert "31" in message
    assert "32" not in message


async def test_pods_that_do_not_answer_are_asked_ever_more_rarely_whatever_is_edited() -> None:
    world, sidecars = await _world(pods=3, mute=3)
    for number in range(100):
        world.spec({**SIMULATED, "batching": {"maxBatchSize": 40 + number}})
        await world.look()
        world.now += 1
    # After half a second, one, two, four and so on up to a minute.
    assert len(sidecars.asked) == 3 * 8
    assert await _seconds_of_a_reconcile(world) == 0


async def test_a_pod_that_answers_again_is_asked_as_any_other() -> None:
    world, sidecars = await _world(pods=1, mute=1)
    for _ in range(3):
        await world.look()
        world.now += 10
    sidecars.mute.clear()
    await world.settle()
    sidecars.asked.clear()
    for number in range(3):
        world.spec({**SIMULATED, "batching": {"maxBatchSize": 40 + number}})
        await world.look()
    assert len(sidecars.asked) == 3
