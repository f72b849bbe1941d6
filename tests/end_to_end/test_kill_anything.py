"""Whatever is killed while a model is edited: what stands at the end is what was asked for last."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from batchedmodel_kube.names import REVISION_LABEL
from cluster.errors import CommandFailed
from cluster.kubernetes import Cluster
from support.installed import RELEASE_NAMESPACE
from support.kube import Kube, killed_process
from support.plane import read, until
from support.steady_load import SteadyLoad
from support.story_models import simulated

# Alone: beside lanes that want both cores, probes of pods that nobody killed are late as well.
pytestmark = [pytest.mark.timeout(900, func_only=True), pytest.mark.alone]

_NIGHTLY: Final = pytest.mark.nightly
SEED: Final = 20261122
_PROXY_SECONDS: Final = 5.0
"""kube-proxy follows what the API server knows."""
Kill = Callable[[], None]


@pytest.mark.parametrize(
    ("edits", "each_killed"),
    [pytest.param(10, 1, id="few"), pytest.param(50, 2, id="many", marks=_NIGHTLY)],
)
async def test_the_last_edit_stands_and_who_was_not_edited_notices_nothing(
    kube: Kube, installed: Cluster, edits: int, each_killed: int
) -> None:
    chance = random.Random(SEED)
    kube.apply(simulated("still", replicas=2))
    kube.apply(simulated("edited"))
    await kube.serves("still")
    await kube.ready("edited")
    load = SteadyLoad(_url(kube, "still"), connections=16, rate=20.0)
    hidden: list[tuple[float, float]] = []
    """From when to when the only node's kubelet was away and began anew."""

    def hides(restart: Kill) -> None:
        gone, before = load.seconds, _ready_since(kube, "still")
        restart()

        def again() -> bool:
            now = _ready_since(kube, "still")
            return len(now) == 2 and before.isdisjoint(now)

        # Were the API server killed before it is told that they are ready again, then the Service
        # would lead nowhere until it is back and told, half a minute later.
        until("they are ready again", again, 60)
        hidden.append((gone, load.seconds + _PROXY_SECONDS))

    killings = list(_killings(kube, installed, hides)) * each_killed
    chance.shuffle(killings)
    moments = dict(zip(sorted(chance.sample(range(edits), len(killings))), killings, strict=True))
    async with load.running():
        for number in range(edits):
            if number in moments:
                await asyncio.to_thread(moments[number])
            await _edited(kube, _edit(chance, number))
            await asyncio.sleep(chance.uniform(0.1, 1.0))
        last = kube.get("batchedmodel", "edited")
        await kube.eventually("all is done", lambda: _is_done(kube, "edited"), within=240)
        kube.apply({**last, "metadata": {"name": "twin"}, "status": {}})
        await kube.eventually("its twin is done", lambda: _is_done(kube, "twin"), within=120)
        assert _children(kube, "edited") == _children(kube, "twin")
    # A kubelet that begins says that its pods are not ready until it has probed them: until then
    # the Service leads to no pod of its node, and here there is no other.
    # Whoever asks then gets no connection, or loses it; nobody gets a wrong answer or a bad status.
    lost = [f"{at:.1f} {what}" for at, what in load.failed if not _is_hidden(at, what, hidden)]
    assert not lost, f"{lost}; the kubelet was away at {hidden}; {_unready(kube)}"
    assert load.outcomes["right"] > 12 * edits


def _is_hidden(at: float, what: str, hidden: list[tuple[float, float]]) -> bool:
    away = any(gone <= at <= back for gone, back in hidden)
    return away and not what.startswith(("status", "wrong"))


def _ready_since(kube: Kube, name: str) -> set[tuple[str, str]]:
    """The pods of a model that are ready, each with the moment from which it is."""
    return {
        (pod["metadata"]["name"], condition["lastTransitionTime"])
        for pod in kube.ready_pods(name)
        for condition in pod["status"]["conditions"]
        if condition["type"] == "Ready"
    }


def _unready(kube: Kube) -> str:
    """What the kubelet says of pods that are not well, for the reader of a failed test."""
    return kube.kubectl("get", "events", "--field-selector=reason=Unhealthy")


def _url(kube: Kube, name: str) -> str:
    return f"{kube.service_url(name)}/v2/models/{name}/infer"


def _killings(kube: Kube, installed: Cluster, hides: Callable[[Kill], None]) -> Iterator[Kill]:
    plane = installed.control_plane
    if plane is None:
        pytest.skip("the control plane is not ours to stop")

    def process_of(name: str) -> Kill:
        def killed() -> bool:
            found = read(plane, RELEASE_NAMESPACE, "pods") or {"items": []}
            pods = [pod for pod in found["items"] if name in pod["metadata"]["name"]]
            return any(killed_process(pod, f"batchedmodel_{name}") for pod in pods)

        # One that was killed a moment ago may not be back yet.
        return lambda: until(f"the {name} runs", killed, 60)

    def program(name: str) -> Kill:
        def restart() -> None:
            plane.stop_program(name)
            plane.start_program(name)

        return restart

    yield process_of("operator")
    yield process_of("autoscaler")
    yield program("kube-apiserver")
    yield program("etcd")
    yield lambda: hides(program("kubelet"))


def _edit(chance: random.Random, number: int) -> dict[str, Any]:
    scaled = {"minReplicas": 1, "maxReplicas": 1 + chance.randint(1, 3)}
    return chance.choice(
        [
            {"batching": {"maxWaitMilliseconds": number}},
            {"model": {"env": {"EDIT": str(number)}}},
            {"replicas": chance.randint(1, 2), "autoscaling": None},
            {"replicas": None, "autoscaling": scaled},
            {"service": {"port": 80 + number}},
            {"rollout": {"minReadySeconds": number % 3}},
            {"suspend": chance.random() < 0.3},
            {"disruption": {"maxUnavailable": 1 + number % 2}},
        ]
    )


async def _edited(kube: Kube, spec: dict[str, Any]) -> None:
    def taken() -> bool:
        kube.patch("edited", {"spec": spec})
        return True

    await kube.eventually(f"the API server takes {spec}", taken, within=60)


def _is_done(kube: Kube, name: str) -> bool:
    model = kube.get("batchedmodel", name)
    generation = model["metadata"]["generation"]
    conditions = {one["type"]: one for one in model.get("status", {}).get("conditions", [])}
    applied, ready = conditions.get("Reconciled", {}), conditions.get("Ready", {})
    if applied.get("observedGeneration") != generation or applied["status"] != "True":
        return False
    at_rest = conditions.get("Progressing", {}).get("status") == "False"
    serves = ready.get("status") == "True" or model["spec"].get("suspend")
    return at_rest and bool(serves)


def _children(kube: Kube, name: str) -> dict[str, Any]:
    """What the operator made of a model, with its names taken out of it."""
    model = kube.get("batchedmodel", name)
    found: dict[str, Any] = {
        "configmap": kube.get("configmap", f"{name}-batching")["data"],
        "service": kube.get("service", name)["spec"],
        "deployment": kube.get("deployment", name)["spec"],
        "hpa": _spec_if_there(kube, "hpa", name),
        "pdb": _spec_if_there(kube, "pdb", name),
    }
    for given in ("clusterIP", "clusterIPs"):
        found["service"].pop(given)
    if "autoscaling" in model["spec"]:
        found["deployment"].pop("replicas")
    found["deployment"]["template"]["metadata"]["labels"].pop(REVISION_LABEL)
    named: dict[str, Any] = json.loads(json.dumps(found).replace(name, "NAME"))
    return named


def _spec_if_there(kube: Kube, kind: str, name: str) -> Any:
    try:
        return kube.get(kind, name)["spec"]
    except CommandFailed:
        return None
