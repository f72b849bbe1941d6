"""Pods are a model's by owner references; the label alone counts for nothing."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from batchedmodel_autoscaler.cluster.objects import ModelKey, Owned, Pod, Size
from batchedmodel_autoscaler.polling.pace import MOST_POLLS_PER_SECOND
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_contract.kubernetes.capacity import Capacity
from support.autoscaler_world import (
    CALM,
    DEPLOYMENT,
    KEY,
    MODEL,
    REPLICA_SET,
    busy,
    fleet,
    pod,
)

NOW = 1000.0
OTHER = ModelKey("team", "other")


def counts(known: ClusterState, one: Pod) -> bool:
    """Whether it is asked; what it answers all the same changes nothing where it is not."""
    before = known.sight(one.model, NOW)
    known.answered(one.uid, busy(0.6), NOW)
    asked = known.address(one.uid) == one.address
    assert asked == (known.sight(one.model, NOW) != before)
    return asked


def nobodys(**owner: str) -> Pod:
    return pod(9, uid="stranger", startup_seconds=4000.0, **owner)


@pytest.mark.parametrize(
    "stranger",
    [
        pytest.param(nobodys(owner=""), id="no controller"),
        pytest.param(nobodys(owner="unknown"), id="a ReplicaSet that is not there"),
        pytest.param(nobodys(owner=DEPLOYMENT.uid), id="a Deployment itself"),
        pytest.param(nobodys(owner=MODEL.uid), id="the model itself"),
        pytest.param(nobodys(owner="theirs"), id="a ReplicaSet of a Deployment of their own"),
        pytest.param(nobodys(owner="bare"), id="a ReplicaSet of nobody's"),
    ],
)
def test_a_pod_with_only_the_label_counts_for_nothing(stranger: Pod) -> None:
    known = fleet([pod(1, startup_seconds=40.0)])
    known.size_seen(Size(deployment=Owned(uid="deploy", model=KEY, owner=""), replicas=50))
    known.replica_set_seen(Owned(uid="theirs", model=KEY, owner="deploy"))
    known.replica_set_seen(Owned(uid="bare", model=KEY, owner=""))
    known.pod_seen(stranger)
    known.answered("uid-1", CALM, NOW)
    assert not counts(known, stranger)
    sight = known.sight(KEY, NOW)
    assert len(sight.pods) == 1
    assert sight.present == 1, "the size of their Deployment is not the model's"
    assert known.capacity(KEY) == Capacity(revision="a", startup_seconds=40.0)
    assert known.counts == (1, 1)


def test_strangers_make_nobody_asked_more_rarely() -> None:
    known = fleet([pod(1)])
    before = known.sight(KEY, NOW)
    for number in range(int(10 * MOST_POLLS_PER_SECOND)):
        known.pod_seen(pod(2 + number, owner=""))
    assert known.sight(KEY, NOW) == before


def test_in_whatever_order_the_objects_come_the_pod_counts_in_the_end() -> None:
    one = pod(1)

    def parts(known: ClusterState) -> list[Callable[[], None]]:
        return [
            lambda: known.model_seen(MODEL),
            lambda: known.size_seen(Size(deployment=DEPLOYMENT, replicas=1)),
            lambda: known.replica_set_seen(REPLICA_SET),
            lambda: known.pod_seen(one),
        ]

    for order in itertools.permutations(range(4)):
        known = ClusterState(2.0)
        come = parts(known)
        for number in order:
            assert known.counts[1] == 0
            come[number]()
        assert counts(known, one), order


@pytest.mark.parametrize(
    "goes",
    [
        pytest.param(lambda known: known.model_gone(MODEL), id="model"),
        pytest.param(
            lambda known: known.size_gone(Size(deployment=DEPLOYMENT, replicas=1)), id="deployment"
        ),
        pytest.param(lambda known: known.replica_set_gone(REPLICA_SET), id="replica set"),
        pytest.param(
            lambda known: known.replica_set_seen(replace(REPLICA_SET, owner="")), id="orphaned"
        ),
        pytest.param(
            lambda known: known.replica_set_seen(replace(REPLICA_SET, owner="x", model=OTHER)),
            id="orphaned and relabelled",
        ),
        pytest.param(lambda known: known.model_seen(replace(MODEL, uid="new")), id="another model"),
        pytest.param(lambda known: known.pod_seen(pod(1, owner="")), id="pod orphaned"),
        pytest.param(lambda known: known.pod_seen(pod(1, model=OTHER)), id="pod relabelled"),
    ],
)
def test_a_pod_counts_no_more_when_one_of_its_references_goes(
    goes: Callable[[ClusterState], None],
) -> None:
    known = fleet([pod(1)])
    assert counts(known, pod(1))
    goes(known)
    assert known.counts[1] == 0
    assert not known.sight(KEY, NOW).pods
    assert known.address("uid-1") == ""
