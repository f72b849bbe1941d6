"""A cluster that gives each namespace its range of users, as OpenShift's restricted-v2 does."""

from collections.abc import Iterator

import aiohttp
import pytest

from support.kube import Kube
from support.steady_load import echo_body
from support.story_models import simulated
from support.user_range import FIRST, LABEL, refuses_own_users, runs_as, users_from_ranges

pytestmark = pytest.mark.timeout(900, func_only=True)


@pytest.fixture
def ranged(kube: Kube) -> Iterator[Kube]:
    """A namespace whose pods run as users of a range that no manifest knows."""
    if kube.cluster.control_plane is None:
        pytest.skip("a cluster that is not ours may know no policies that change objects")
    with users_from_ranges(kube.cluster):
        kube.cluster.kubectl("label", "namespace", kube.namespace, f"{LABEL}=yes")
        yield kube


async def test_pods_run_as_whichever_user_the_cluster_gives_them(ranged: Kube) -> None:
    kube = ranged
    fixed = simulated("fixed")
    await kube.eventually("the policies hold", lambda: refuses_own_users(kube), within=60)
    kube.apply(fixed)
    await kube.eventually(
        "it is said that its pods are refused", lambda: _says(kube, "fixed", "denied"), within=60
    )
    assert kube.pods("fixed") == []

    kube.patch("fixed", {"spec": {"security": {"ids": "FromCluster"}}})
    await kube.serves("fixed")
    [pod] = kube.ready_pods("fixed")
    for container in ("batcher", "model"):
        assert runs_as(kube, pod["metadata"]["name"], container) == FIRST
    url = kube.service_url("fixed") + "/v2/models/fixed/infer"
    async with aiohttp.ClientSession() as session, session.post(url, json=echo_body(7)) as answer:
        assert answer.status == 200, await answer.text()


def _says(kube: Kube, name: str, words: str) -> bool:
    ready = kube.condition(name, "Ready")
    return ready.get("status") == "False" and words in ready["message"]
