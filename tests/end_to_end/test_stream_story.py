"""A language model on a real cluster: its pods come and go beneath streams, and none breaks."""

import asyncio
from typing import Any, Final

import aiohttp
import pytest

from build_images import ROOT, SIDECAR
from cluster.images import build_image
from cluster.settings import Settings
from support.installed import built_image
from support.kube import Kube, metric
from support.steady_load import SteadyLoad
from support.story_models import frugal
from support.streamed_texts import streamed

pytestmark = pytest.mark.timeout(1500, func_only=True)

CHAT: Final = "/v1/chat/completions"
AT_ONCE: Final = 8
PORT: Final = 8080
ENGINE: Final = (f"--max-num-seqs={AT_ONCE}", "--step-seconds=0.05", f"--port={PORT}")
"""160 tokens a second."""
LONG: Final = 240
"""Tokens of every tenth stream. They take 12 s, longer than the delay of a drain: such a stream is
whole only if a pod that is to go waits for it."""
BUSY: Final = 6.2
"""Streams a second. With 60 tokens on average it is 2.3 times what one pod can do."""
CALM: Final = 1.0


async def _ask(session: aiohttp.ClientSession, url: str, number: int, turn: int) -> str:
    tokens = LONG if (number + turn) % 10 == 0 else 20 + (7 * number + 11 * turn) % 41
    return await streamed(session, url, 10_000 * number + turn, tokens)


async def test_pods_come_and_go_and_are_replaced_beneath_streams_and_none_breaks(
    kube: Kube, cluster_settings: Settings
) -> None:
    image = build_image(
        cluster_settings,
        dockerfile=ROOT / "tests/end_to_end/engine/Dockerfile",
        context=ROOT,
        tag="localhost/simulated-engine:test",
        build_args={"SIDECAR": built_image(cluster_settings, SIDECAR).id},
    )
    kube.cluster.import_image(image)
    kube.apply(frugal(_manifest(image.tag)))
    await kube.serves("llm")
    assert len(kube.pods("llm")) == 1
    load = SteadyLoad(kube.service_url("llm") + CHAT, connections=96, rate=BUSY, ask=_ask)
    async with load.running():
        await kube.eventually("three pods", lambda: len(kube.ready_pods("llm")) == 3, within=150)
        await _each_is_asked(kube)
        assert load.failed == []

        old = _names(kube)
        kube.patch("llm", {"spec": {"model": {"env": {"EDITED": "yes"}}}})
        await kube.eventually("the edit has rolled out", lambda: _replaced(kube, old), within=180)
        await _each_is_asked(kube)
        assert load.failed == []

        load.rate = CALM
        await kube.eventually("calm leaves one pod", lambda: len(_names(kube)) == 1, within=240)
    assert load.failed == []
    assert load.outcomes["right"] > 100


async def _each_is_asked(kube: Kube) -> None:
    """Streams reach every pod, those that were added as well."""
    name, pods = "batchedmodel_requests_accepted_total", kube.ready_pods("llm")
    async with aiohttp.ClientSession() as session, asyncio.timeout(120.0):
        while not all([await metric(session, pod, name) for pod in pods]):  # noqa: ASYNC110
            await asyncio.sleep(1.0)


def _names(kube: Kube) -> set[str]:
    """Of all pods, those that are about to end as well."""
    return set(kube.kubectl("get", "pods", "--output=name").split())


def _replaced(kube: Kube, old: set[str]) -> bool:
    """Whether new pods serve, and the old ones have gone."""
    now = _names(kube)
    return not now & old and len(now) == len(kube.ready_pods("llm")) > 1


def _manifest(image: str) -> dict[str, Any]:
    soon = {"type": "Pods", "value": 2, "periodSeconds": 15}
    calm = {"stabilizationWindowSeconds": 15, "policies": [soon]}
    return {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "llm"},
        "spec": {
            "model": {"protocol": "OpenAI", "image": image, "port": PORT, "args": [*ENGINE]},
            "generation": {"maxConcurrentRequests": AT_ONCE},
            "batching": {"requestTimeoutSeconds": 60},
            "autoscaling": {"minReplicas": 1, "maxReplicas": 3, "behavior": {"scaleDown": calm}},
            # On a busy machine kube-proxy hears of a pod's end late.
            "drain": {"delaySeconds": 8, "timeoutSeconds": 60},
        },
    }
