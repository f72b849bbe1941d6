"""Our own engine on a real cluster: pods follow the load, and no edit and no kill breaks a text."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from support.kube import Kube, killed_process, metric
from support.model_server_hub import hub
from support.simulated_texts import chatted
from support.steady_load import SteadyLoad
from support.story_models import frugal, llama_files, llama_from_hub

pytestmark = pytest.mark.timeout(1500, func_only=True)

CHAT: Final = "/v1/chat/completions"
AT_ONCE: Final = 8
LIMIT: Final = "batchedmodel_max_concurrent_requests"
USAGE: Final = "batchedmodel_kv_cache_usage_perc"
TOKENS: Final = 400
"""Of the text in whose middle the engine is killed."""
BUSY: Final = 6.2
"""Texts a second. With 60 tokens on average it is 2.3 times what one pod can do."""


async def _ask(session: aiohttp.ClientSession, url: str, number: int, turn: int) -> str:
    # Every tenth stream takes 10 s, longer than the delay of a drain.
    tokens = 200 if (number + turn) % 10 == 0 else 24 + (7 * number + 11 * turn) % 41
    return await chatted(session, url, f"text {turn} of caller {number}", tokens)


async def test_pods_follow_the_load_of_texts_and_an_edit_reaches_them_without_a_new_one(
    kube: Kube,
) -> None:
    kube.apply(frugal(_manifest()))
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


async def test_a_chat_with_a_small_checkpoint_goes_on_when_its_engine_is_killed(
    kube: Kube, tmp_path: Path
) -> None:
    if kube.cluster.control_plane is None:
        pytest.skip("pods of a cluster that is not ours may not reach this machine")
    files = await asyncio.to_thread(llama_files, tmp_path)
    async with hub("us/llama", files, host=kube.cluster.control_plane.host_address) as served:
        kube.apply(llama_from_hub(served.endpoint))
        await kube.serves("llama", within=300)
    url = kube.service_url("llama") + CHAT
    asked = {
        "model": "llama",
        "messages": [{"role": "user", "content": "What is batching?"}],
        "max_tokens": TOKENS,
        "temperature": 0,
    }
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json=asked) as response:
            assert response.status == 200, await response.text()
            document = await response.json()
        whole = document["choices"][0]["message"]["content"]
        assert document["usage"]["completion_tokens"] == TOKENS

        [pod] = kube.ready_pods("llama")
        told, killed = "", False
        async with session.post(url, json={**asked, "stream": True}) as response:
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                told += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                if told and not killed:
                    assert killed_process(pod, "batchedmodel_model_server")
                    killed = True
    assert killed
    assert told == whole, "nothing is lost and nothing doubled"


async def _each_says(kube: Kube, name: str, holds: Any) -> None:
    """Every pod's metric comes to be as it should."""
    pods = kube.ready_pods("llm")
    async with aiohttp.ClientSession() as session, asyncio.timeout(120.0):
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
