"""The whole chain on a real cluster with real images: install, serve, edit, scale, roll, leave.

Each test is one story of a user, in a namespace of its own, so that several are told beside each
other on one installation. The longest comes first.
"""

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.pod_settings import batch_settings
from build_images import ROOT
from cluster.errors import CommandFailed
from cluster.images import build_image
from cluster.kubernetes import Cluster
from cluster.settings import Settings
from support.installed import RELEASE, RELEASE_NAMESPACE
from support.kube import Kube, killed_process, metric, restarts, settings_hash
from support.model_server_hub import hub
from support.steady_load import SteadyLoad, echo_body
from support.story_models import (
    frugal,
    minilm_files,
    minilm_from_hub,
    minilm_vectors,
    put_claim,
    put_token,
    simulated,
    with_secret_variable,
)

pytestmark = pytest.mark.timeout(1500, func_only=True)

TEXTS = [f"sentence number {number} about batching" for number in range(64)]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as open_session:
        yield open_session


async def test_the_stock_hpa_follows_the_load_and_no_request_fails(kube: Kube) -> None:
    # On a busy machine callers pause for seconds, and kube-proxy hears of a pod's end late.
    calm = {"scaleDown": {"stabilizationWindowSeconds": 30}}
    scaling = {"minReplicas": 1, "maxReplicas": 2, "behavior": calm}
    kube.apply(simulated("sim", autoscaling=scaling, drain={"delaySeconds": 8}))
    await kube.serves("sim")
    first = kube.ready_pods("sim")[0]
    load = SteadyLoad(kube.service_url("sim") + "/v2/models/sim/infer", connections=64, rate=100.0)
    async with load.running():
        await kube.eventually("a second pod", lambda: len(kube.ready_pods("sim")) == 2, within=150)
        await _added_pod_gets_its_share(kube, first)
        assert load.failed == []

        kube.patch("sim", {"spec": {"model": {"env": {"EDITED": "yes"}}}})
        await kube.eventually(
            "the edit has rolled out", lambda: _rolled_out(kube, "sim"), within=180
        )
        assert load.failed == []

        load.rate = 4.0
        await kube.eventually("calm removes a pod", lambda: len(kube.pods("sim")) == 1, within=240)
        await asyncio.sleep(5.0)
    assert load.failed == []


async def _added_pod_gets_its_share(kube: Kube, first: dict[str, Any]) -> None:
    """64 persistent connections reach a pod that was added, within two minutes."""
    name = "batchedmodel_requests_accepted_total"
    pods = kube.ready_pods("sim")

    async def counts() -> dict[str, float]:
        async with aiohttp.ClientSession() as session:
            return {pod["metadata"]["uid"]: await metric(session, pod, name) for pod in pods}

    shares: list[float] = []
    before = await counts()
    for _ in range(12):
        await asyncio.sleep(10.0)
        after = await counts()
        answered = {uid: after[uid] - before[uid] for uid in after}
        shares.append(1 - answered[first["metadata"]["uid"]] / sum(answered.values()))
        # Twenty seconds in a row: one window may be luck.
        if len(shares) > 1 and min(shares[-2:]) >= 0.35:
            return
        before = after
    raise AssertionError(f"shares of the added pod, ten seconds each: {shares}")


def test_helm_test_runs_its_pod_and_leaves_nothing_behind(installed: Cluster) -> None:
    place = f"--namespace={RELEASE_NAMESPACE}"
    assert "Phase:          Succeeded" in installed.helm("test", RELEASE, place, "--timeout=90s")
    left = installed.kubectl("get", "pod,role,serviceaccount", place, "--output=name")
    assert "helm-test" not in left


async def test_minilm_is_served_batched_and_edited_without_restart(
    kube: Kube, session: aiohttp.ClientSession
) -> None:
    manifest = yaml.safe_load((ROOT / "examples/minilm.yaml").read_text())
    # Beside pods that start its warm-up measures a slow device, by which callers are refused.
    manifest["spec"]["batching"]["requestTimeoutSeconds"] = 600
    kube.apply(frugal(manifest))
    await kube.serves("minilm", within=300)
    url = kube.service_url("minilm") + "/v1/embeddings"

    async def embedded(text: str) -> tuple[float, ...]:
        asked = {"model": "minilm", "input": text, "encoding_format": "base64"}
        async with session.post(url, json=asked) as response:
            assert response.status == 200, await response.text()
            coded = (await response.json())["data"][0]["embedding"]
        return struct.unpack("<384f", base64.b64decode(coded))

    [pod] = kube.ready_pods("minilm")
    before = await metric(session, pod, "batchedmodel_batch_size_count")
    vectors = await asyncio.gather(*(embedded(text) for text in TEXTS))
    batches = await metric(session, pod, "batchedmodel_batch_size_count") - before
    assert batches <= 12, "64 concurrent requests, at most 32 in a batch"
    reference = await asyncio.to_thread(minilm_vectors, TEXTS)
    worst = max(abs(a - b) for ours, ref in zip(vectors, reference, strict=True)
                for a, b in zip(ours, ref, strict=True))  # fmt: skip
    # In bfloat16 where the processor has it: far nearer than any other text's vector.
    assert worst < 4e-3

    kube.patch("minilm", {"spec": {"batching": {"maxBatchSize": 5}}})
    wanted = batch_settings(
        read_manifest(_as_read(kube.get("batchedmodel", "minilm"))).spec
    ).digest()
    async with asyncio.timeout(30.0):
        while await settings_hash(session, pod) != wanted:  # noqa: ASYNC110  # asked for only
            await asyncio.sleep(0.05)
    [same] = kube.ready_pods("minilm")
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    assert set(restarts(same).values()) == {0}

    assert killed_process(same, "batchedmodel_sidecar")
    await kube.eventually(
        "the sidecar is back",
        lambda: [pod for pod in kube.ready_pods("minilm") if restarts(pod)["batcher"] == 1],
        within=60,
    )
    [again] = kube.ready_pods("minilm")
    assert restarts(again)["model"] == 0
    await embedded("once more")

    kube.kubectl("delete", "batchedmodel", "minilm", "--timeout=60s", timeout_s=70)
    await kube.eventually(
        "no object is left", lambda: kube.children("minilm") == [] or None, within=120
    )


async def test_a_model_is_fetched_once_with_a_token_and_kept_on_a_claim(
    kube: Kube, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    if kube.cluster.control_plane is None:
        pytest.skip("pods of a cluster that is not ours may not reach this machine")
    files = await asyncio.to_thread(minilm_files)
    async with hub("us/minilm", files, host=kube.cluster.control_plane.host_address) as served:
        served.token = "hf_right"
        served.cut_after["model.safetensors"] = len(files["model.safetensors"]) // 3
        put_claim(kube, "models", tmp_path)
        kube.apply(minilm_from_hub(served.endpoint, secret="hub", claim="models"))
        await _not_ready(kube, "fetched", "MissingSecret", 'secret "hub" not found')
        put_token(kube, "hf_wrong")
        await _not_ready(kube, "fetched", "FetchFailed", "not to be seen with this token")
        put_token(kube, "hf_right")
        await kube.serves("fetched", within=300)
        assert served.authorized["store"] == {None}
        assert len(served.ranges) == 1, "it went on where the connection broke"

        served.fetched.clear()
        kube.patch("fetched", {"spec": {"replicas": 2}})
        await kube.eventually(
            "the second pod serves", lambda: len(_uids(kube, "fetched")) == 2, within=120
        )
        assert served.fetched == [], "the second pod finds what the first one fetched"
    [pod, other] = kube.ready_pods("fetched")
    said = kube.kubectl("logs", pod["metadata"]["name"], "--container=fetch-model")
    assert "the model's files are in /var/cache/batchedmodel/hub/us--minilm/" in said
    assert "hf_right" not in said
    with pytest.raises(CommandFailed, match="Read-only file system"):
        kube.kubectl(
            *("exec", pod["metadata"]["name"], "--container=model", "--"),
            *("touch", "/var/cache/batchedmodel/hub/mine"),
        )
    # The hub is gone: a new pod serves what is there.
    kube.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    left = {other["metadata"]["uid"]}
    await kube.eventually(
        "a new pod serves", lambda: len(_uids(kube, "fetched") - left) == 1
        and pod["metadata"]["uid"] not in _uids(kube, "fetched"), within=120,
    )  # fmt: skip
    asked = {"model": "fetched", "input": TEXTS[0]}
    async with session.post(kube.service_url("fetched") + "/v1/embeddings", json=asked) as answer:
        assert len((await answer.json())["data"][0]["embedding"]) == 384


async def test_what_new_pods_lack_is_named_and_no_request_fails_until_they_have_it(
    kube: Kube,
) -> None:
    kube.apply(simulated("lacking", replicas=2))
    await kube.serves("lacking")
    # A probe that is late on a busy machine takes a pod away for a moment.
    await kube.eventually("both are ready", lambda: len(_uids(kube, "lacking")) == 2, within=60)
    good = _uids(kube, "lacking")
    url = kube.service_url("lacking") + "/v2/models/lacking/infer"
    async with SteadyLoad(url, connections=64, rate=40.0).running() as load:
        # No field of the manifest refers to a Secret, but what others add to a child stays.
        kube.kubectl(
            *("apply", "--server-side", "--field-manager=others", "--filename=-"),
            stdin=json.dumps(with_secret_variable("lacking", secret="not-there")),
        )
        kube.patch("lacking", {"spec": {"model": {"env": {"EDITED": "yes"}}}})
        await _not_ready(kube, "lacking", "MissingSecret", 'secret "not-there" not found')

        private = {"model": {"image": "localhost/there-is-none:1"}}
        kube.patch("lacking", {"spec": {**private, "pod": {"imagePullSecrets": ["neither"]}}})
        await _not_ready(kube, "lacking", "ImagePullFailed", "image pull secrets neither")
        assert kube.condition("lacking", "Available")["status"] == "True"
        await asyncio.sleep(5.0)
        assert _uids(kube, "lacking") == good, "the last good pods keep serving"
        assert load.failed == []

        kube.kubectl("create", "secret", "generic", "not-there", "--from-literal=token=secret")
        kube.patch("lacking", {"spec": {"model": {"image": None}, "pod": None}})
        await kube.eventually(
            "the good image is back", lambda: _rolled_out(kube, "lacking"), within=180
        )
        await kube.ready("lacking", within=30)
        await asyncio.sleep(5.0)
    assert load.failed == []
    assert load.outcomes["right"] > 0
    now = _uids(kube, "lacking")
    assert len(now) == 2
    assert not now & good, "the edit that came with it has reached every pod"


def _uids(kube: Kube, name: str) -> set[str]:
    """Of the pods that are ready."""
    return {pod["metadata"]["uid"] for pod in kube.ready_pods(name)}


async def _not_ready(kube: Kube, name: str, reason: str, words: str) -> None:
    """`Ready` says why a new pod does not come up, once it has tried."""

    def said() -> bool:
        ready = kube.condition(name, "Ready")
        return ready.get("reason") == reason and words in ready["message"]

    await kube.eventually(f"{reason} is said", said, within=120)


async def test_an_accelerator_is_requested_and_its_lack_is_said(kube: Kube) -> None:
    kube.cluster.pretend_accelerator("nvidia.com/gpu", 1)
    kube.apply(simulated("first", accelerator={"count": 1}))
    await kube.ready("first")
    [pod] = kube.ready_pods("first")
    [model] = [c for c in pod["spec"]["containers"] if c["name"] == "model"]
    assert model["resources"]["limits"]["nvidia.com/gpu"] == "1"
    kube.apply(simulated("second", accelerator={"count": 1}))
    await kube.eventually(
        "the second says why it waits",
        lambda: kube.condition("second", "Ready").get("reason") == "InsufficientAccelerator",
        within=60,
    )
    assert kube.condition("first", "Ready")["status"] == "True"


async def test_a_foreign_v2_container_is_batched_too(
    kube: Kube, session: aiohttp.ClientSession, cluster_settings: Settings
) -> None:
    image = build_image(
        cluster_settings,
        dockerfile=ROOT / "tests/end_to_end/foreign/Dockerfile",
        context=ROOT,
        tag="localhost/foreign-v2:test",
        build_args={},
    )
    kube.cluster.import_image(image)
    manifest = simulated("foreign")
    manifest["spec"]["model"] = {"protocol": "V2", "image": image.tag, "port": 8080}
    manifest["spec"]["batching"] = {"policy": "Window", "maxWaitMilliseconds": 200}
    kube.apply(frugal(manifest))
    await kube.serves("foreign")
    url = kube.service_url("foreign") + "/v2/models/foreign/infer"

    async def doubled(number: int) -> bool:
        async with session.post(url, json=echo_body(number)) as response:
            return bool((await response.json())["outputs"][0]["data"] == [2 * number])

    assert all(await asyncio.gather(*(doubled(number) for number in range(32))))
    [pod] = kube.ready_pods("foreign")
    async with session.get(f"http://{pod['status']['podIP']}:8080/calls") as response:
        calls = await response.json()
    assert sum(calls) == 32
    assert len(calls) <= 6


def _rolled_out(kube: Kube, name: str) -> bool:
    deployment = kube.get("deployment", name)
    status, wanted = deployment["status"], deployment["spec"]["replicas"]
    return bool(
        status.get("observedGeneration") == deployment["metadata"]["generation"]
        and status.get("updatedReplicas") == status.get("replicas") == wanted
        and status.get("availableReplicas") == wanted
    )


def _as_read(manifest: dict[str, Any]) -> dict[str, Any]:
    return {key: manifest[key] for key in ("apiVersion", "kind", "metadata", "spec")}
