"""Stats, pods and objects as the autoscaler meets them, for its tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from batchedmodel_autoscaler.cluster.objects import Model, ModelKey, Owned, Pod
from batchedmodel_autoscaler.replicas.formula import Target
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_contract.processes.stats import BUCKETS, SidecarStats

KEY = ModelKey("team", "minilm")
TARGET = Target(utilization=0.8, queue_length=32, outstanding=32, queue_wait_seconds=0.5)
MODEL = Model(key=KEY, uid="uid", target=TARGET, capacity=None)
DEPLOYMENT = Owned(uid="deployment", model=KEY, owner=MODEL.uid)
REPLICA_SET = Owned(uid="replica-set", model=KEY, owner=DEPLOYMENT.uid)

CALM = SidecarStats(
    instance="first",
    model_ready=True,
    draining=False,
    profile_known=True,
    offered_work=(0.0,) * BUCKETS,
    age_seconds=3600.0,
    backlog_work=0.0,
    queue_length=0,
    outstanding=0,
    settings_hash="0123456789abcdef",
    max_batch_size=32,
    waited_row_seconds=0.0,
    released_rows=0,
)


def busy(rate: float, **more: Any) -> SidecarStats:
    """A sidecar to which so many device-seconds are offered every second."""
    return replace(CALM, offered_work=(rate,) * BUCKETS, **more)


def pod(number: int, **more: Any) -> Pod:
    """A ready pod."""
    plain = Pod(
        uid=f"uid-{number}",
        model=KEY,
        address=f"10.0.0.{number}",
        ready=True,
        leaving=False,
        startup_seconds=40.0,
        fresh=False,
        created=f"2026-11-20T10:00:{number % 60:02}Z",
        revision="a",
        owner=REPLICA_SET.uid,
    )
    return replace(plain, **more)


def fleet(pods: Sequence[Pod] = (), *, present: int | None = None) -> ClusterState:
    """A fleet that knows one model with its pods; nobody has been asked yet."""
    made = ClusterState(2.0)
    made.model_seen(MODEL)
    made.ownership.seen(replace(DEPLOYMENT, replicas=len(pods) if present is None else present))
    made.ownership.seen(REPLICA_SET)
    for one in pods:
        made.pod_seen(one)
    return made
