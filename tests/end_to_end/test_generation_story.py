"""Our own engine on a real cluster: pods follow the load of texts, and no edit breaks a stream."""

import asyncio
from typing import Any, Final

import aiohttp
import pytest

from support.kube import Kube, metric
from support.simulated_texts import chatted
from support.steady_load import SteadyLoad

pytestmark = pytest.mark.timeout(600, func_only=True)

CHAT: Final = "/v1/chat/completions"
AT_ONCE: Final = 8
LIMIT: Final = "batchedmodel_max_concurrent_requests"
USAGE: Final = "batchedmodel_kv_cache_usage_perc"
BUSY: Final = 6.2
"""Texts a second. With 60 tokens on average it is 2.3 times what one pod can do."""


async def _ask(session: aiohttp.ClientSession, url: str, number: int, turn: int) -> str:
    # Every tenth stream takes 10 s, longer than the delay of a drain.
    tokens = 200 if (number + turn) % 10 == 0 else 24 + (7 * number + 11 * turn) % 41
    return await chatted(session, url, f"text {turn} of caller {number}", tokens)


async def test_pods_follow_the_load_of_texts_and_an_edit_reaches_them_without_a_new_one(
    kube: Kube,
) -> None:
    kube.apply(_manifest())
    await kube.serves("llm")
    assert len(kube.pods("llm")) == 1
    load = SteadyLoad(kube.service_url("llm") + CHAT, connections=96, rate=BUSY, ask=_ask)
    async with load.running():
        await kube.eventually("three pods", lambda: len(kube.ready_pods("llm")) == 3, within=150)
        await _each_says(kube, USAGE, lambda usage: 0 < usage < 1)
        assert load.failed == []

        pods = _names(kube)
        kube.patch("llm", {"spec": {"generation": {"maxSequences": AT_ONCE + 2}}})
        await _each_says(kube, LIMIT, lambda limit: limit == AT_ONCE + 2)
        assert _names(kube) == pods
        assert load.failed == []

        kube.kubectl("delete", "pod", min(pods), "--wait=false")
        await kube.eventually("another pod", lambda: _is_whole_without(kube, min(pods)), within=90)
    assert load.failed == []
    assert load.outcomes["right"] > 100


async def _each_says(kube: Kube, name: str, holds: Any) -> None:
    """Every pod's metric comes to be as it should."""
    pods = kube.ready_pods("llm")
    async with aiohttp.ClientSession() as session, asyncio.timeout(30.0):
        while not all([holds(await metric(session, pod, name)) for pod in pods]):  # noqa: ASYNC110
            await asyncio.sleep(0.5)


def _names(kube: Kube) -> set[str]:
    return {pod["metadata"]["name"] for pod in kube.pods("llm")}


def _is_whole_without(kube: Kube, gone: str) -> bool:
    """Whether as many pods serve as before, and this one is no longer there at all."""
    there = kube.kubectl("get", "pods", "--output=name")
    return gone not in there and len(kube.ready_pods("llm")) == 3


def _manifest() -> dict[str, Any]:
    # 160 tokens a second.
    engine = {"generates": "true", "stepSeconds": "0.05"}
    return {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "llm"},
        "spec": {
            "model": {"handler": "simulated", "parameters": engine},
            "generation": {"maxSequences": AT_ONCE},
            "batching": {"requestTimeoutSeconds": 60},
            "autoscaling": {"minReplicas": 1, "maxReplicas": 3},
            # On a busy machine kube-proxy hears of a pod's end late.
            "drain": {"delaySeconds": 8, "timeoutSeconds": 60},
        },
    }
