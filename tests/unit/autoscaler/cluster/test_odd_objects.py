"""What cannot be read is left out and counted; all others are followed."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.configuration import Configuration

from batchedmodel_autoscaler.cluster.objects import read_model, read_pod
from batchedmodel_autoscaler.cluster.resources import MODELS, PODS
from batchedmodel_kube.client import Client, Event, EventType
from batchedmodel_kube.informer import Cache

_GOOD: Mapping[str, Any] = {"metadata": {"namespace": "team", "name": "minilm", "uid": "1"}}


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"metadata": None},
        {"metadata": {"name": "x"}},
        {**_GOOD, "spec": {"batching": [1]}},
        {**_GOOD, "spec": {"batching": {"maxBatchSize": "many"}}},
        {**_GOOD, "spec": 7},
    ],
)
def test_an_object_that_is_not_as_it_should_be_is_left_out(odd: Mapping[str, Any]) -> None:
    seen: list[object] = []
    cache = Cache(read_model, seen=seen.append, gone=seen.append)
    for found in (odd, _GOOD):
        cache.take(Event(type=EventType.ADDED, found=found, version="1"))
    assert seen == [read_model(_GOOD)]
    assert cache.left_out == 1


def test_what_is_deep_where_nobody_looks_costs_nothing() -> None:
    deep = b"[" * 5_000 + b"]" * 5_000
    model = (
        b'{"metadata":{"namespace":"team","name":"m","uid":"1","managedFields":' + deep + b"},"
        b'"spec":{"pod":{"volumes":' + deep + b'},"batching":{"maxBatchSize":8}}}'
    )
    assert read_model(MODELS.read(model)).key.name == "m"
    pod = (
        b'{"metadata":{"namespace":"team","name":"p","uid":"1","creationTimestamp":'
        b'"2026-01-01T00:00:00Z","labels":{"batchedmodel.dev/name":"m","other":"x"}},'
        b'"spec":{"x":' + deep + b'},"status":{"podIP":"10.0.0.1","phase":"Running"}}'
    )
    found = PODS.read(pod)
    assert "spec" not in found
    assert read_pod(found).address == "10.0.0.1"


def test_what_is_told_of_a_model_is_read_from_the_text_that_is_watched() -> None:
    model = {
        **_GOOD,
        "spec": {
            "autoscaling": {"maxReplicas": 7, "targetQueueLength": 3},
            "batching": {"maxBatchSize": 8, "maxConcurrentBatches": 3},
        },
        "status": {"conditions": [{"type": "Ready", "status": "False", "message": "no pod"}]},
    }
    read = read_model(MODELS.read(json.dumps(model).encode()))
    assert read == read_model(model)
    assert (read.max_replicas, read.conditions) == (7, (("Ready", False),))


def test_conditions_that_are_too_large_cost_a_model_no_metrics() -> None:
    large = [{"type": "Ready", "status": "True", "message": "<" * 20_000}]
    model = {**_GOOD, "spec": {"batching": {"maxBatchSize": 8}}, "status": {"conditions": large}}
    read = read_model(MODELS.read(json.dumps(model).encode()))
    assert (read.target.queue_length, read.conditions) == (8, ())


async def test_of_a_page_nothing_large_is_held() -> None:
    reference = {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "1"}

    def pod(name: str, owners: int) -> Mapping[str, Any]:
        return {"metadata": {"name": name, "ownerReferences": [reference] * owners}}

    async def answer(_: web.Request) -> web.Response:
        pods = [pod("one", 1), pod("many", 1_000)]
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": pods})

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    async with TestServer(application) as server:
        client = Client(Configuration(host=str(server.make_url(""))))
        page = [event.found async for event in client.list(PODS)]
        await client.close()
    assert page == [pod("one", 1), {"metadata": {"name": "many"}}, {}]
    assert client.left_out == 0


def test_a_model_with_much_behaviour_and_many_tenants_is_followed() -> None:
    behavior = {"scaleUp": {"policies": [{"type": "Pods", "value": 1}] * 9_000}}
    weights = {f"tenant-{number}": 1 for number in range(9_000)}
    model = {
        **_GOOD,
        "spec": {
            "autoscaling": {"targetQueueLength": 3, "behavior": behavior},
            "batching": {"maxBatchSize": 8, "tenants": {"weights": weights}},
        },
    }
    found = MODELS.read(json.dumps(model).encode())
    assert read_model(found).target.queue_length == 3
