"""Models with heavy objects do not take the API server from all others."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from typing import cast

import pytest

from batchedmodel_kube.client import Client, Collection, Event, EventType
from batchedmodel_kube.errors import Unreachable
from batchedmodel_operator.cluster.client import KubernetesCluster
from batchedmodel_operator.kinds import Kind

_HEAVY = 600_000


class Server:
    """It has one pod of each model, and takes a second to list it."""

    def __init__(self) -> None:
        self.seconds = 1.0
        self.size = _HEAVY
        self.at_once: Counter[str] = Counter()
        """The most lists at the same time, by what their model's name begins with."""
        self._now: Counter[str] = Counter()

    async def list(self, collection: Collection) -> AsyncGenerator[Event, None]:
        """As a client's."""
        sort = collection.labels.split("=")[1].split("-")[0]
        self._now[sort] += 1
        self.at_once[sort] = max(self.at_once[sort], self._now[sort])
        try:
            await asyncio.sleep(self.seconds)
            size = self.size if sort == "heavy" else 5_000
            yield Event(type=EventType.ADDED, found={"metadata": {}}, size=size)
        finally:
            self._now[sort] -= 1


@pytest.fixture
def server() -> Server:
    return Server()


async def _listed(cluster: KubernetesCluster, server: Server, sort: str) -> int:
    """How many of such models are listed at the same time where eight are to be."""
    server.at_once.clear()
    models = (cluster.labelled(Kind.POD, "team", f"{sort}-{number}") for number in range(8))
    await asyncio.gather(*models)
    return server.at_once[sort]


@pytest.mark.looptime
async def test_models_that_had_heavy_pods_are_listed_one_after_the_other(server: Server) -> None:
    cluster = KubernetesCluster(cast(Client, server))
    assert await _listed(cluster, server, "heavy") == 8
    assert await _listed(cluster, server, "heavy") == 1
    server.size = 5_000
    assert await _listed(cluster, server, "heavy") == 1
    assert await _listed(cluster, server, "heavy") == 8


@pytest.mark.looptime
async def test_other_models_wait_for_none_of_them(server: Server) -> None:
    cluster = KubernetesCluster(cast(Client, server))
    await _listed(cluster, server, "heavy")
    beside = asyncio.create_task(_listed(cluster, server, "heavy"))
    began = asyncio.get_running_loop().time()
    assert await _listed(cluster, server, "light") == 8
    assert asyncio.get_running_loop().time() - began < 1.5
    await beside


@pytest.mark.looptime
async def test_a_turn_that_does_not_come_is_a_failure(server: Server) -> None:
    """A reconcile that waited for long would count as stuck."""
    cluster = KubernetesCluster(cast(Client, server))
    await _listed(cluster, server, "heavy")
    server.seconds = 50.0
    first = asyncio.create_task(cluster.labelled(Kind.POD, "team", "heavy-1"))
    await asyncio.sleep(1)
    with pytest.raises(Unreachable, match="take too long"):
        await cluster.labelled(Kind.POD, "team", "heavy-2")
    await first
    assert await _listed(cluster, server, "light") == 8
