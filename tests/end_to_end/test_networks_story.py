"""A cluster with addresses of both families, whose network enforces policies."""

import asyncio
import functools
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import aiohttp
import pytest

from batchedmodel_contract.processes.listening import authority
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.names import DATA_PORT
from cluster.errors import Unavailable
from cluster.kubernetes import Cluster
from cluster.networks import Families
from cluster.settings import Settings
from support.guarded import CALLER, Place, deny_all, has_ended, put_caller, put_load, reached, runs
from support.installed import RELEASE, RELEASE_NAMESPACE, install, own_cluster
from support.kube import Kube
from support.steady_load import echo_body
from support.story_models import simulated

pytestmark = pytest.mark.timeout(900)

_PATH: Final = "/v2/models/sim/infer"
_OPENED: Final = (
    *("--set=networkPolicy.install=true", "--set=networkPolicy.egress=true"),
    *("--set=networkPolicy.models={guarded}", "--set=networkPolicy.fetchers={guarded}"),
    "--set=networkPolicy.callers={callers}",
)
_METRICS_API: Final = 10250


@pytest.fixture(scope="module")
def networks(cluster_settings: Settings) -> Iterator[Cluster]:
    try:
        with own_cluster(cluster_settings, families=Families.BOTH, policies=True) as cluster:
            yield cluster
    except Unavailable as reason:
        pytest.skip(str(reason))


async def test_a_model_is_served_at_addresses_of_both_families(networks: Cluster) -> None:
    networks.kubectl("create", "namespace", "both")
    kube = Kube(networks, "both")
    kube.apply(simulated("sim", service={"ipFamilyPolicy": "PreferDualStack"}))
    await kube.serves("sim")
    service = kube.get("service", "sim")["spec"]
    [pod] = kube.ready_pods("sim")
    places = [
        *((address, service["ports"][0]["port"]) for address in service["clusterIPs"]),
        *((one["ip"], DATA_PORT) for one in pod["status"]["podIPs"]),
    ]
    assert [":" in address for address, _ in places] == [False, True, False, True]
    async with aiohttp.ClientSession() as session:
        for address, port in places:
            url = f"http://{authority(address, port)}{_PATH}"
            async with session.post(url, json=echo_body(7)) as answer:
                assert answer.status == 200, await answer.text()


async def test_where_all_is_denied_the_chart_opens_what_must_flow_and_no_more(
    networks: Cluster,
) -> None:
    for namespace in ("guarded", "callers", "strangers"):
        networks.kubectl("create", "namespace", namespace)
    callers, strangers = Kube(networks, "callers"), Kube(networks, "strangers")
    kube, release = Kube(networks, "guarded"), Kube(networks, RELEASE_NAMESPACE)
    deny_all(networks, "guarded")
    calm = {"scaleDown": {"stabilizationWindowSeconds": 30}}
    kube.apply(simulated("sim", autoscaling={"minReplicas": 1, "maxReplicas": 2, "behavior": calm}))
    await asyncio.gather(put_caller(callers), put_caller(strangers), kube.ready("sim"))
    [pod] = kube.ready_pods("sim")
    data, admin = _ports(pod, DATA_PORT), _ports(pod, ADMIN_PORT)

    # Without the option. Kubelets are let through, and nobody else is.
    assert reached(callers, CALLER, *data, *admin) == [False] * 4
    await kube.eventually(
        "the autoscaler says that it hears nothing",
        lambda: kube.condition("sim", "AutoscalingActive").get("reason") == "MetricsStale",
        within=60,
    )
    await kube.eventually(
        "the operator says that it hears nothing",
        lambda: kube.condition("sim", "Progressing").get("reason") == "BatchSettingsRollingOut",
        within=60,
    )
    deny_all(networks, RELEASE_NAMESPACE)
    plane = networks.control_plane
    assert plane is not None
    api = (plane.namespace.slot.first.api_service_address, 443)
    for part in ("operator", "autoscaler"):
        [name] = [one["metadata"]["name"] for one in _pods(release, part)[:1]]
        await kube.eventually(
            f"the API server is shut to the {part}",
            functools.partial(_is_shut, release, name, part, api),
            within=30,
        )
    [asked] = _ports(_pods(release, "autoscaler")[0], _METRICS_API)[:1]
    assert not _reached_from_outside(asked)

    install(networks, RELEASE_NAMESPACE, *_OPENED)
    # They must come up behind it, too; what is connected already would stay so.
    release.kubectl("delete", "pods", "--all", "--wait=false")
    await kube.eventually(
        "the autoscaler hears the model",
        lambda: kube.condition("sim", "AutoscalingActive").get("status") == "True",
        within=120,
    )
    await kube.eventually(
        "the operator knows the settings that its pods have in force",
        lambda: kube.condition("sim", "Progressing").get("status") == "False",
        within=120,
    )
    networks.helm("test", RELEASE, f"--namespace={RELEASE_NAMESPACE}", "--timeout=120s")

    assert reached(callers, CALLER, *data, *admin) == [True, True, False, False]
    assert reached(strangers, CALLER, *data, *admin) == [False] * 4
    # An API server on another machine.
    [asked] = _ports(_pods(release, "autoscaler")[0], _METRICS_API)[:1]
    assert _reached_from_outside(asked)
    assert not _reached_from_outside(data[0])
    with _listening(plane.host_address, 443), _listening(plane.host_address, 8443):
        # A hub may be anywhere, and by name; nothing else is asked.
        places = [(plane.host_address, 443), (plane.host_address, 8443), api]
        name = pod["metadata"]["name"]
        assert reached(kube, name, *places, container="model") == [True, False, False]
        code = "import socket; socket.getaddrinfo('sim.guarded.svc.cluster.local', 80)"
        kube.kubectl("exec", name, "--container=model", "--", "python", "-c", code)

    service = kube.get("service", "sim")["spec"]
    put_load(callers, "load", (service["clusterIP"], 80), _PATH, echo_body(7))
    await kube.eventually(
        "a second pod",
        lambda: len(kube.ready_pods("sim")) == 2 or has_ended(callers, "load"),
        within=150,
    )
    assert runs(callers, "load"), callers.kubectl("logs", "load")


def _ports(pod: dict[str, Any], port: int) -> list[Place]:
    return [(one["ip"], port) for one in pod["status"]["podIPs"]]


def _pods(release: Kube, part: str) -> list[dict[str, Any]]:
    selector = f"--selector=app.kubernetes.io/name=batchedmodel-{part}"
    said = json.loads(release.kubectl("get", "pods", selector, "--output=json"))
    pods: list[dict[str, Any]] = said["items"]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def _is_shut(release: Kube, pod: str, container: str, place: Place) -> bool:
    return reached(release, pod, place, container=container) == [False]


def _reached_from_outside(place: Place) -> bool:
    try:
        with socket.create_connection(place, timeout=3):
            return True
    except OSError:
        return False


def _listening(address: str, port: int) -> closing[socket.socket]:
    return closing(socket.create_server((address, port)))
