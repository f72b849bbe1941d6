"""A cluster that only a leader writes to."""

import pytest

from batchedmodel_operator.cluster.fenced import FencedCluster
from batchedmodel_operator.errors import Unreachable
from batchedmodel_operator.kinds import Kind
from support.operator_cluster import FakeCluster
from support.operator_world import manifest


async def test_who_does_not_lead_reads_and_does_not_write() -> None:
    cluster = FakeCluster()
    cluster.put(manifest())
    fenced = FencedCluster(cluster, may_write=lambda: False)
    assert await fenced.get(Kind.BATCHED_MODEL, "team", "minilm") is not None
    assert await fenced.labelled(Kind.POD, "team", "minilm") == []
    writes = cluster.writes
    for write in (
        lambda: fenced.apply(manifest(), manager="us"),
        lambda: fenced.delete(Kind.SERVICE, "team", "minilm", "1"),
        lambda: fenced.annotate("pod", "team", "1", {}),
    ):
        with pytest.raises(Unreachable, match="leads no more"):
            await write()
    assert cluster.writes == writes
