"""Uninstalling, on a real cluster that has served."""

import pytest

from cluster.kubernetes import Cluster
from support.installed import RELEASE_NAMESPACE, install, uninstall
from support.kube import Kube

pytestmark = pytest.mark.timeout(900, func_only=True)


async def test_uninstalling_in_either_way_leaves_no_terminating_namespace(
    installed: Cluster,
) -> None:
    everywhere = Kube(installed, "default")
    uninstall(installed, RELEASE_NAMESPACE)
    await _namespaces_can_go(everywhere)
    install(installed, "elsewhere", "--take-ownership")
    installed.kubectl("delete", "namespace", "elsewhere", "--wait=false")
    await everywhere.eventually(
        "the release's namespace is gone",
        lambda: "elsewhere" not in installed.kubectl("get", "namespaces"),
        within=120,
    )
    await _namespaces_can_go(everywhere)


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
