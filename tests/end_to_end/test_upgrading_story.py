"""Models with callers follow new images in turns: nobody is failed, nor by images that break."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import aiohttp
import pytest
import yaml

from batchedmodel_kube.names import NAME_LABEL
from build_images import AUTOSCALER, MODEL_SERVER, ROOT, SIDECAR
from cluster.kubernetes import Cluster
from support.installed import RELEASE_NAMESPACE, install
from support.kube import Kube
from support.steady_load import SteadyLoad
from support.story_models import frugal, simulated

pytestmark = pytest.mark.timeout(1800, func_only=True)

AT_ONCE: Final = 2
_TURNS: Final = ("--set=upgrades.mode=Rolling", f"--set=upgrades.atOnce={AT_ONCE}")
_OTHER: Final = "other"
_BROKEN: Final = "broken"
# On a busy machine kube-proxy hears late of a pod's end.
_DRAIN: Final = {"delaySeconds": 8}


@pytest.fixture
def in_turns(installed: Cluster) -> Iterator[Cluster]:
    """The release, with models that follow its images; as it was at the end."""
    for recipe in (SIDECAR, MODEL_SERVER):
        installed.tag_image(recipe.tag(), recipe.tag(_OTHER))
    # What has no sidecar in it ends at once.
    installed.tag_image(AUTOSCALER.tag(), SIDECAR.tag(_BROKEN))
    install(installed, RELEASE_NAMESPACE, "--take-ownership", *_TURNS)
    yield installed
    install(installed, RELEASE_NAMESPACE, "--reset-values")


class Fleet:
    """Models of one namespace."""

    def __init__(self, kube: Kube, count: int) -> None:
        self.kube = kube
        self.minilm = "minilm"
        self.simulated = [f"sim-{number}" for number in range(count - 1)]
        self.names = [self.minilm, *self.simulated]
        self.most_at_once = 0
        """Models whose Deployments were not whole in one answer of the API server."""

    def write(self) -> None:
        manifest = yaml.safe_load((ROOT / "examples/minilm.yaml").read_text())
        manifest["spec"]["drain"] = _DRAIN
        # Large batches warm up slowly beside pods that start, and callers are refused by that. A
        # namespace that goes is looked at again after half of what its pods may take to end.
        manifest["spec"]["batching"] = {"maxBatchSize": 2, "requestTimeoutSeconds": 60}
        self.kube.apply(frugal(manifest))
        for name in self.simulated:
            self.kube.apply(simulated(name, drain=_DRAIN))

    @asynccontextmanager
    async def called(self) -> AsyncIterator[list[SteadyLoad]]:
        """All of them, all the time."""
        loads = [
            SteadyLoad(f"{self._url(name)}/v2/models/{name}/infer", connections=4, rate=4.0)
            for name in self.simulated
        ]
        url = f"{self._url(self.minilm)}/v1/embeddings"
        loads.append(SteadyLoad(url, connections=2, rate=2.0, ask=_embedded))
        async with AsyncExitStack() as stack:
            for load in loads:
                await stack.enter_async_context(load.running())
            yield loads

    def _url(self, name: str) -> str:
        return self.kube.service_url(name)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Who rolls at the same time is counted until the block ends."""
        task = asyncio.create_task(self._count())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def _count(self) -> None:
        while True:
            rolling = await asyncio.to_thread(self._rolling)
            self.most_at_once = max(self.most_at_once, len(rolling))
            await asyncio.sleep(0.3)

    def _rolling(self) -> list[str]:
        return [
            one["metadata"]["name"] for one in self.deployments().values() if not _is_whole(one)
        ]

    def deployments(self) -> dict[str, dict[str, Any]]:
        found = self.kube.listed("deployments")
        return {one["metadata"]["labels"][NAME_LABEL]: one for one in found}

    def images(self) -> dict[str, str]:
        """The tag of the sidecar's image in each Deployment."""
        return {
            name: one["spec"]["template"]["spec"]["initContainers"][0]["image"].rpartition(":")[2]
            for name, one in self.deployments().items()
        }

    def follow(self, tag: str) -> bool:
        """Whether all have the image, and all their pods."""
        return not self._rolling() and set(self.images().values()) == {tag}

    def taken_back(self) -> list[str]:
        return [
            name
            for name in self.names
            if self.kube.condition(name, "UpToDate").get("reason") == "RolledBack"
        ]


async def _embedded(session: aiohttp.ClientSession, url: str, number: int, turn: int) -> str:
    asked = {"model": "minilm", "input": f"caller {number} asks for the {turn}th time"}
    async with session.post(url, json=asked) as response:
        if response.status != 200:
            return f"status {response.status}"
        [entry] = (await response.json())["data"]
    return "right" if len(entry["embedding"]) == 384 else "wrong"


def _is_whole(deployment: dict[str, Any]) -> bool:
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")}
    now = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return now and counts == {wanted}


@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.nightly)])
async def test_models_follow_images_in_turns_and_no_request_fails(
    kube: Kube, in_turns: Cluster, count: int
) -> None:
    fleet = Fleet(kube, count)
    fleet.write()
    for name in fleet.names:
        await kube.serves(name, within=300)
    assert set(fleet.images().values()) == {"dev"}
    async with fleet.called() as loads, fleet.watched():
        install(in_turns, RELEASE_NAMESPACE, *_TURNS, f"--set=sidecar.image.tag={_BROKEN}")
        await kube.eventually("a model is taken back", fleet.taken_back, within=180)
        await kube.eventually("all have what works", lambda: fleet.follow("dev"), within=180)
        tried = fleet.taken_back()
        assert 1 <= len(tried) <= AT_ONCE, tried
        assert _failed(loads) == []

        other = [f"--set={part}.image.tag={_OTHER}" for part in ("sidecar", "modelServer")]
        install(in_turns, RELEASE_NAMESPACE, *_TURNS, *other)
        await kube.eventually("all follow", lambda: fleet.follow(_OTHER), within=60 + 60 * count)
        for name in fleet.names:
            await kube.eventually(
                f"{name} says so",
                lambda name=name: kube.condition(name, "UpToDate").get("status") == "True",  # type: ignore[misc]
                within=30,
            )
    assert _failed(loads) == []
    assert all(load.outcomes["right"] > 20 for load in loads)
    assert 1 <= fleet.most_at_once <= AT_ONCE


def _failed(loads: list[SteadyLoad]) -> list[tuple[float, str]]:
    return [failure for load in loads for failure in load.failed]
