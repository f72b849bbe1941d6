"""A cluster without any IPv4 address, whose control plane reaches the autoscaler on the node only.

So it is with an overlay network that ends at the nodes. Its GPUs are a tainted pool.
"""

from collections.abc import Iterator
from ipaddress import IPv6Address
from typing import Final

import aiohttp
import pytest

from cluster.errors import Unavailable
from cluster.kubernetes import Cluster
from cluster.networks import Families
from cluster.settings import Settings
from support.installed import own_cluster
from support.kube import Kube, metric
from support.steady_load import SteadyLoad, echo_body
from support.story_models import simulated

pytestmark = pytest.mark.timeout(900)


ON_THE_NODE: Final = (
    "--set=autoscaler.hostNetwork=true",
    # The only node has the ports once.
    "--set=autoscaler.replicas=1",
    # The usual port is the kubelet's there.
    "--set=autoscaler.port=11250",
    "--set=autoscaler.adminPort=18080",
)


@pytest.fixture(scope="module")
def ipv6(cluster_settings: Settings) -> Iterator[Cluster]:
    try:
        with own_cluster(cluster_settings, *ON_THE_NODE, families=Families.IPV6) as cluster:
            yield cluster
    except Unavailable as reason:
        pytest.skip(str(reason))


async def test_a_model_serves_and_the_stock_hpa_follows_its_load(ipv6: Cluster) -> None:
    ipv6.kubectl("create", "namespace", "team")
    kube = Kube(ipv6, "team")
    calm = {"scaleDown": {"stabilizationWindowSeconds": 30}}
    kube.apply(simulated("sim", autoscaling={"minReplicas": 1, "maxReplicas": 2, "behavior": calm}))
    await kube.serves("sim")
    [pod] = kube.ready_pods("sim")
    assert IPv6Address(pod["status"]["podIP"]).version == 6
    assert len(pod["status"]["podIPs"]) == 1
    url = kube.service_url("sim") + "/v2/models/sim/infer"
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json=echo_body(7)) as answer:
            assert answer.status == 200, await answer.text()
        assert await metric(session, pod, "batchedmodel_batch_size_count") >= 1
    load = SteadyLoad(url, connections=64, rate=100.0)
    async with load.running():
        await kube.eventually("a second pod", lambda: len(kube.ready_pods("sim")) == 2, within=150)
    assert load.failed == []
    active = kube.condition("sim", "AutoscalingActive")
    assert active["status"] == "True", active


async def test_a_tainted_pool_takes_models_that_ask_for_a_gpu_or_a_part_of_one(
    ipv6: Cluster,
) -> None:
    ipv6.kubectl("create", "namespace", "gpus")
    kube = Kube(ipv6, "gpus")
    part = "nvidia.com/mig-1g.5gb"
    for resource in ("nvidia.com/gpu", part):
        ipv6.pretend_accelerator(resource, 1)
    ipv6.kubectl("taint", "nodes", "--all", "nvidia.com/gpu=present:NoSchedule")
    kube.apply(simulated("whole", accelerator={"count": 1}))
    kube.apply(simulated("part", accelerator={"resource": part, "count": 1}))
    kube.apply(simulated("neither"))
    for name in ("whole", "part"):
        await kube.ready(name)
        [pod] = kube.ready_pods(name)
        # A pod without any requests would be the first that a node under pressure evicts.
        assert pod["status"]["qosClass"] == "Burstable"
    await kube.eventually(
        "it is said that the pool is not for everybody",
        lambda: kube.condition("neither", "Ready").get("reason") == "TaintNotTolerated",
        within=60,
    )
