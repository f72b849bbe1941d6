"""Uninstalling, on a real cluster that has served, and another release in between.

The other one is as OpenShift wants it. It is made here because a cluster has one release at a time.
"""

import aiohttp
import pytest

from cluster.kubernetes import Cluster
from support.installed import RELEASE, RELEASE_NAMESPACE, install, uninstall
from support.kube import Kube
from support.steady_load import echo_body
from support.story_models import simulated
from support.user_range import FIRST, LABEL, refuses_own_users, runs_as, users_from_ranges

pytestmark = pytest.mark.timeout(900, func_only=True)


async def test_uninstalling_in_either_way_leaves_no_terminating_namespace(
    installed: Cluster,
) -> None:
    everywhere = Kube(installed, "default")
    uninstall(installed, RELEASE_NAMESPACE)
    await _namespaces_can_go(everywhere)
    installed.kubectl("create", "namespace", "elsewhere")
    await _a_release_works_whose_users_the_cluster_gives(Kube(installed, "elsewhere"))
    installed.kubectl("delete", "namespace", "elsewhere", "--wait=false")
    await everywhere.eventually(
        "the release's namespace is gone",
        lambda: "elsewhere" not in installed.kubectl("get", "namespaces"),
        within=120,
    )
    await _namespaces_can_go(everywhere)


async def _a_release_works_whose_users_the_cluster_gives(kube: Kube) -> None:
    """Operator, autoscaler, what `helm test` runs, and a model that says nothing of users."""
    if kube.cluster.control_plane is None:
        install(kube.cluster, kube.namespace, "--take-ownership")
        return
    with users_from_ranges(kube.cluster):
        kube.cluster.kubectl("label", "namespace", kube.namespace, f"{LABEL}=yes")
        await kube.eventually("the policies hold", lambda: refuses_own_users(kube), within=60)
        values = ("--set=security.ids=FromCluster", "--take-ownership")
        install(kube.cluster, kube.namespace, *values)
        kube.apply(simulated("ranged"))
        await kube.serves("ranged")
        for part in ("operator", "autoscaler"):
            assert runs_as(kube, f"deployment/{RELEASE}-{part}", part) == FIRST
        assert runs_as(kube, "deployment/ranged", "model") == FIRST
        url = kube.service_url("ranged") + "/v2/models/ranged/infer"
        one = aiohttp.ClientSession()
        async with one, one.post(url, json=echo_body(7)) as answer:
            assert answer.status == 200, await answer.text()
        place = f"--namespace={kube.namespace}"
        said = kube.cluster.helm("test", RELEASE, place, "--timeout=90s")
        assert "Phase:          Succeeded" in said


async def _namespaces_can_go(kube: Kube) -> None:
    """A namespace that has nothing to do with us is deleted: no dead API is in its way."""
    assert "custom.metrics.k8s.io" not in kube.cluster.kubectl("get", "apiservices")
    kube.cluster.kubectl("create", "namespace", "bystander")
    kube.cluster.kubectl("delete", "namespace", "bystander", "--wait=false")
    await kube.eventually(
        "an unrelated namespace can be deleted",
        lambda: "bystander" not in kube.cluster.kubectl("get", "namespaces"),
        within=90,
    )
