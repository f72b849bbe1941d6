"""Pods are a model's by owner references; the label alone counts for nothing."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from batchedmodel_autoscaler.cluster.objects import ModelKey, Owned, Pod
from batchedmodel_autoscaler.cluster.ownership import Ownership
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_autoscaler.state.pace import MOST_POLLS_PER_SECOND
from batchedmodel_kube.capacity import Capacity
from batchedmodel_kube.informer import Cache
from support.autoscaler_world import CALM, DEPLOYMENT, KEY, MODEL, REPLICA_SET, busy, fleet, pod
from support.steps import steps

NOW = 1000.0
OTHER = ModelKey("team", "other")


def counts(known: ClusterState, one: Pod) -> bool:
    """Whether it is asked; what it answers all the same changes nothing where it is not."""
    before = known.observation(one.model, NOW)
    known.answered(one.uid, busy(0.6), NOW)
    asked = known.address(one.uid) == one.address
    assert asked == (known.observation(one.model, NOW) != before)
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
    known.ownership.seen(Owned(uid="deploy", model=KEY, owner="", replicas=50))
    known.ownership.seen(Owned(uid="theirs", model=KEY, owner="deploy"))
    known.ownership.seen(Owned(uid="bare", model=KEY, owner=""))
    known.pod_seen(stranger)
    known.answered("uid-1", CALM, NOW)
    assert not counts(known, stranger)
    sight = known.observation(KEY, NOW)
    assert len(sight.pods) == 1
    assert sight.present == 1, "the size of their Deployment is not the model's"
    assert known.capacity(KEY) == Capacity(revision="a", startup_seconds=40.0)
    assert known.counts == (1, 1)


def test_strangers_make_nobody_asked_more_rarely() -> None:
    known = fleet([pod(1)])
    before = known.observation(KEY, NOW)
    for number in range(int(10 * MOST_POLLS_PER_SECOND)):
        known.pod_seen(pod(2 + number, owner=""))
    assert known.observation(KEY, NOW) == before


def test_in_whatever_order_the_objects_come_the_pod_counts_in_the_end() -> None:
    one = pod(1)

    def parts(known: ClusterState) -> list[Callable[[], None]]:
        return [
            lambda: known.model_seen(MODEL),
            lambda: known.ownership.seen(replace(DEPLOYMENT, replicas=1)),
            lambda: known.ownership.seen(REPLICA_SET),
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
            lambda known: known.ownership.gone(replace(DEPLOYMENT, replicas=1)), id="deployment"
        ),
        pytest.param(lambda known: known.ownership.gone(REPLICA_SET), id="replica set"),
        pytest.param(
            lambda known: known.ownership.seen(replace(REPLICA_SET, owner="")), id="orphaned"
        ),
        pytest.param(
            lambda known: known.ownership.seen(replace(REPLICA_SET, owner="x", model=OTHER)),
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
    assert not known.observation(KEY, NOW).pods
    assert known.address("uid-1") == ""


def cost_of_a_list(count: int) -> int:
    """Steps of taking in a list of so many ReplicaSets, where as many pods have the label."""
    known = fleet([pod(number, owner=f"theirs-{number}") for number in range(count)])
    listed = [Owned(uid=f"theirs-{number}", model=KEY, owner="") for number in range(count)]

    by_uid = {one.uid: one for one in listed}
    cache = Cache(
        lambda found: by_uid[found["metadata"]["uid"]],
        seen=known.ownership.seen,
        gone=known.ownership.gone,
    )

    def take_in() -> None:
        for uid in by_uid:
            cache.add({"metadata": {"uid": uid}})
        cache.end_list(set(by_uid), "8")
        cache.end_list(set(), "9")

    return steps(take_in)


def test_pods_and_replica_sets_by_the_thousand_are_taken_in_at_once() -> None:
    few, many = cost_of_a_list(500), cost_of_a_list(2000)
    assert many < 6 * few, "sixteen times as long where each concerns every pod"


def test_whatever_changes_pods_are_whose_they_would_be_if_all_were_judged_anew() -> None:
    chance = random.Random(17)
    models = [KEY, OTHER]
    between = ["d1", "d2", "r1", "r2", "r3"]
    for _ in range(50):
        known = Ownership()
        is_there: dict[ModelKey, str] = {}
        owned: dict[str, Owned] = {}
        pods: dict[str, tuple[ModelKey, str]] = {}
        for _ in range(60):
            key, uid = chance.choice(models), chance.choice(between)
            one = f"p{chance.randrange(6)}"
            match chance.randrange(6):
                case 0:
                    is_there[key] = chance.choice(["m1", "m2"])
                    known.model_seen(key, is_there[key])
                case 1:
                    is_there.pop(key, None)
                    known.model_gone(key)
                case 2:
                    above = ["m1", "m2", ""] if uid.startswith("d") else ["d1", "d2", "r1", ""]
                    owned[uid] = Owned(uid=uid, model=key, owner=chance.choice(above))
                    known.seen(owned[uid])
                case 3:
                    known.gone(owned.pop(uid, Owned(uid=uid, model=key, owner="")))
                case 4:
                    if one in pods and pods[one][0] != key:
                        known.pod_gone(pods[one][0], one)
                    pods[one] = key, chance.choice([*between, ""])
                    known.pod_seen(key, one, pods[one][1])
                case _:
                    known.pod_gone(pods.pop(one, (key, ""))[0], one)
            anew = Ownership()
            for at, named in is_there.items():
                anew.model_seen(at, named)
            for part in owned.values():
                anew.seen(part)
            for pod_uid, (at, owner) in pods.items():
                anew.pod_seen(at, pod_uid, owner)
            assert [known.pods_of(at) for at in models] == [anew.pods_of(at) for at in models]
            assert known.sizes() == anew.sizes()
