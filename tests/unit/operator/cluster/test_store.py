"""The operator's cache: small records by name and by label, told only where they change."""

import json
from typing import Any

import pytest

from batchedmodel_kube.client import Event, EventType
from batchedmodel_kube.errors import Forbidden, Unreachable
from batchedmodel_kube.names import NAME_LABEL
from batchedmodel_operator.cluster.objects import reader_of
from batchedmodel_operator.cluster.store import Record, Store, Watch
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import CHILDREN, Kind
from support.operator_world import SIMULATED, World


class Told:
    """A store, and the names of the records that it told of."""

    def __init__(self, *namespaces: str) -> None:
        self.names: list[str] = []
        self.store = Store(namespaces, lambda record: self.names.append(record.name))

    def watch(self, kind: Kind) -> Watch:
        return next(one for one in self.store.watches if one.kind is kind)

    def event(self, kind: Kind, body: Any, type: EventType = EventType.MODIFIED) -> None:
        version = body["metadata"]["resourceVersion"]
        self.watch(kind).cache.take(Event(type=type, found=read(kind, body), version=version))


def read(kind: Kind, body: Any) -> Body:
    return reader_of(kind)(json.dumps(body).encode())


def model(version: int, generation: int = 1, seen: int = 1) -> dict[str, Any]:
    place = {"name": "minilm", "namespace": "team", "uid": "m"}
    return {
        "metadata": {**place, "resourceVersion": str(version), "generation": generation},
        "spec": SIMULATED,
        "status": {"observedGeneration": seen},
    }


async def test_a_record_takes_less_than_six_kilobytes() -> None:
    world = World({**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}})
    await world.settle()
    world.start_pod("1")
    world.all_ready()
    await world.settle()
    sizes = {
        kind: len(Record.of(Kind(kind), read(Kind(kind), body)).text)
        for (kind, _, _), body in world.cluster.objects.items()
        if kind != Kind.EVENT
    }
    assert set(CHILDREN) < set(sizes)
    assert max(sizes.values()) < 6_000


def test_a_write_of_ours_is_known_at_once_and_an_earlier_event_changes_nothing() -> None:
    told = Told()
    told.event(Kind.BATCHED_MODEL, model(5))
    told.names.clear()
    told.store.wrote(Kind.BATCHED_MODEL, read(Kind.BATCHED_MODEL, model(9)))
    told.event(Kind.BATCHED_MODEL, model(8, generation=2))
    body = told.store.get(Kind.BATCHED_MODEL, "team", "minilm")
    assert body is not None
    assert body["metadata"]["resourceVersion"] == "9"
    assert not told.names


def test_an_edit_that_comes_with_the_answer_to_a_write_of_ours_is_news() -> None:
    told = Told()
    told.event(Kind.BATCHED_MODEL, model(5))
    told.names.clear()
    told.store.wrote(Kind.BATCHED_MODEL, read(Kind.BATCHED_MODEL, model(9, generation=2)))
    assert told.names == ["minilm"]


def test_a_kind_that_cannot_be_listed_is_unseen_and_no_other_is() -> None:
    told = Told()
    for watch in told.store.watches:
        watch.cache.end_list(set(), "1")
    assert not told.store.unseen("team")
    told.watch(Kind.POD).cache.failed(Unreachable("reset"))
    assert not told.store.unseen("team"), "what was listed before is still known"
    told.watch(Kind.POD).cache.failed(Forbidden("pods is forbidden"))
    assert told.store.unseen("team").keys() == {Kind.POD}
    first, second = (told.store.unseen("team")[Kind.POD] for _ in range(2))
    assert first is not second, "a raised error keeps its tracebacks"
    assert str(second) == "pods is forbidden"


def test_of_listed_namespaces_each_is_watched_and_classes_once() -> None:
    told = Told("a", "b")
    paths = [str(one.collection) for one in told.store.watches if one.kind is Kind.POD]
    assert paths == ["/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods"]
    assert sum(one.kind is Kind.MODEL_CLASS for one in told.store.watches) == 1


def test_a_pod_that_gets_another_label_is_news_for_both_models() -> None:
    told = Told()
    owner = {"kind": "ReplicaSet", "uid": "r", "controller": True}
    metadata = {"name": "p", "namespace": "team", "uid": "p", "ownerReferences": [owner]}

    def labelled(name: str, version: str) -> Body:
        labels = {NAME_LABEL: name}
        return {"metadata": {**metadata, "labels": labels, "resourceVersion": version}}

    told.event(Kind.POD, labelled("one", "1"))
    told.event(Kind.POD, labelled("two", "2"))
    assert len(told.names) == 3
    assert not told.store.owned(Kind.POD, "team", "one", {"r"})
    assert len(told.store.owned(Kind.POD, "team", "two", {"r"})) == 1
    assert not told.store.owned(Kind.POD, "team", "two", {"another's"})
    told.event(Kind.POD, labelled("two", "3"), EventType.DELETED)
    assert not told.store.owned(Kind.POD, "team", "two", {"r"})


async def test_a_kind_that_cannot_be_listed_stops_nothing_else() -> None:
    world = World({**SIMULATED, "replicas": 2})
    world.cluster.hidden[Kind.SERVICE] = Forbidden("services is forbidden: cannot list")
    with pytest.raises(Forbidden):
        await world.look()
    assert world.has(Kind.DEPLOYMENT)
    assert not world.has(Kind.SERVICE)
    assert world.verdict("Reconciled") == ("False", "Forbidden")
    assert "cannot list" in world.condition("Reconciled")["message"]


async def test_where_pods_cannot_be_listed_batch_settings_go_on_and_no_pod_is_replaced() -> None:
    world = World({**SIMULATED, "replicas": 2})
    await world.settle()
    before, ready = world.child(Kind.DEPLOYMENT)["spec"], world.verdict("Ready")
    settings = world.settings()
    world.cluster.hidden[Kind.POD] = Unreachable("it is not listed yet")
    world.spec(
        {"model": {"handler": "simulated", "env": {"A": "b"}}, "batching": {"maxBatchSize": 7}}
    )
    with pytest.raises(Unreachable):
        await world.look()
    assert world.settings() != settings
    assert world.child(Kind.DEPLOYMENT)["spec"] == before
    assert world.verdict("Ready") == ready
    assert world.verdict("Reconciled") == ("False", "ApiError")
