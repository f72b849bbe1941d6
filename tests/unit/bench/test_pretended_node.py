"""The trace's node says that it lives as a kubelet does, and notices when it is given up."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pretended_node import NodeLost, joined

pytestmark = pytest.mark.looptime

UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


class PretendApi:
    """An API server with one node, whose controllers do what a test says."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.beats: list[float] = []
        self.away = False
        self.status = "True"
        self.taints: list[dict[str, str]] = []

    async def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        if method == "POST":
            self.made.append(path.rpartition("/")[2])
            return {}
        assert (method, path) == ("GET", "/api/v1/nodes/pretended")
        if self.away:
            raise RuntimeError("GET: 503")
        conditions = [{"type": "Ready", "status": self.status}]
        spec = {"taints": self.taints} if self.taints else {}
        return {"spec": spec, "status": {"conditions": conditions}}

    async def patch(self, path: str, change: Mapping[str, Any]) -> None:
        assert path.endswith("/leases/pretended")
        assert change["spec"]["renewTime"].endswith("Z")
        self.beats.append(asyncio.get_running_loop().time())


async def test_a_node_renews_its_lease_from_the_beginning_to_the_end() -> None:
    api = PretendApi()
    async with joined(api):
        assert api.made == ["nodes", "leases"]
        await asyncio.sleep(35)
    assert api.beats == pytest.approx([0, 10, 20, 30])
    await asyncio.sleep(60)
    assert len(api.beats) == 4


async def test_a_beat_that_fails_is_made_up_for_by_the_next() -> None:
    api = PretendApi()
    async with joined(api):
        await asyncio.sleep(5)
        api.away = True
        await asyncio.sleep(20)
        api.away = False
        await asyncio.sleep(10)
    assert api.beats == pytest.approx([0, 30])


async def test_what_kubernetes_taints_a_new_node_with_is_waited_out() -> None:
    api = PretendApi()
    api.taints = [NOT_READY]
    asyncio.get_running_loop().call_later(2, api.taints.clear)
    async with joined(api):
        assert asyncio.get_running_loop().time() == pytest.approx(2)


async def test_a_node_that_is_given_up_ends_the_run() -> None:
    api = PretendApi()
    with pytest.RaisesGroup(pytest.RaisesExc(NodeLost, match=r"Ready is Unknown, .*NoExecute")):
        async with joined(api):
            await asyncio.sleep(15)
            api.status, api.taints = "Unknown", [UNREACHABLE]
            await asyncio.sleep(3600)
    assert asyncio.get_running_loop().time() == pytest.approx(20)
    assert len(api.beats) == 2, "it is not healed by a beat before it is told"


async def test_a_node_that_is_tainted_at_the_end_fails_the_run_too() -> None:
    api = PretendApi()
    with pytest.RaisesGroup(pytest.RaisesExc(NodeLost, match="not-ready:NoSchedule")):
        async with joined(api):
            await asyncio.sleep(15)
            api.taints = [NOT_READY]
