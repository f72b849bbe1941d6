"""Of a model that names a class the autoscaler takes what the operator made of both."""

import json
from typing import Any

from batchedmodel_autoscaler.cluster.objects import Model, read_model
from batchedmodel_autoscaler.cluster.resources import MODELS


def read(spec: Any, **effective: Any) -> Model:
    metadata = {"namespace": "team", "name": "m", "uid": "1"}
    status = {"effective": {"autoscaling": effective}}
    return read_model(
        MODELS.read(json.dumps({"metadata": metadata, "spec": spec, "status": status}).encode())
    )


def test_a_target_that_follows_the_class_is_the_one_in_force() -> None:
    spec = {"className": "gpu", "autoscaling": {"metric": "QueueLength"}}
    assert read(spec, targetQueueLength=64).target.queue_length == 64
    assert read(spec).target.queue_length == 32


def test_what_the_manifest_says_wins() -> None:
    spec = {"className": "gpu", "autoscaling": {"targetQueueLength": 7}}
    assert read(spec, targetQueueLength=64).target.queue_length == 7


def test_a_model_without_a_class_is_read_by_its_manifest_alone() -> None:
    assert read({"batching": {"maxBatchSize": 8}}, targetQueueLength=64).target.queue_length == 8
