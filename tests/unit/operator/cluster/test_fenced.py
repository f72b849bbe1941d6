"""A cluster that only a leader writes to."""

import pytest
from kubernetes.aio.client.configuration import Configuration

from batchedmodel_kube.client import Client
from batchedmodel_kube.errors import Unreachable
from batchedmodel_operator.cluster.client import KubernetesCluster
from batchedmodel_operator.kinds import Kind
from support.operator_world import manifest


async def test_who_does_not_lead_writes_nothing() -> None:
    # Nobody listens where the client would ask.
    client = Client(Configuration(host="http://127.0.0.1:9"))
    cluster = KubernetesCluster(client, may_write=lambda: False)
    for write in (
        lambda: cluster.apply(manifest(), manager="us"),
        lambda: cluster.delete(Kind.SERVICE, "team", "minilm", "1"),
        lambda: cluster.annotate("pod", "team", "1", {}),
    ):
        with pytest.raises(Unreachable, match="leads no more"):
            await write()
    with pytest.raises(Unreachable, match="Cannot connect"):
        await cluster.read(Kind.BATCHED_MODEL, "team", "minilm")
    await client.close()
