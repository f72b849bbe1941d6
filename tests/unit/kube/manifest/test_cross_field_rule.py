"""Conditions over several fields: one meaning in Python and in CEL."""

from typing import Any

import pytest

from batchedmodel_kube.manifest.cross_field_rule import Condition, among, given, one_given, where
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.spec import Spec

SURGE = among("rollout.maxSurge", 0, "0%")
SCALED = given("autoscaling")
SOURCES = one_given("model.source.path", "model.source.pythonPackage")
FULL = where(lambda queue, batch: queue < 2 * batch, "{0} < 2 * {1}", *(
    "batching.maxQueueSize", "batching.maxBatchSize"
))  # fmt: skip


def spec(**sections: Any) -> Spec:
    return read_manifest(
        {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModel",
            "metadata": {"name": "a"},
            "spec": {"model": {"handler": "hf", "source": {"path": "x"}}, **sections},
        }
    ).spec


@pytest.mark.parametrize(
    ("condition", "cel"),
    [
        (SCALED, "has(self.autoscaling)"),
        (~SCALED, "!has(self.autoscaling)"),
        (~~SCALED, "has(self.autoscaling)"),
        (
            given("model.trustRemoteCode"),
            "((has(self.model.trustRemoteCode) ? self.model.trustRemoteCode : false))",
        ),
        (given("model.args"), "(has(self.model.args) && size(self.model.args) != 0)"),
        (
            SURGE,
            "(has(self.rollout) && has(self.rollout.maxSurge)"
            " && (self.rollout.maxSurge == 0 || self.rollout.maxSurge == '0%'))",
        ),
        (
            FULL,
            "(has(self.batching) && has(self.batching.maxQueueSize)"
            " && self.batching.maxQueueSize < 2 * (has(self.batching)"
            " && has(self.batching.maxBatchSize) ? self.batching.maxBatchSize : 32))",
        ),
        (
            SOURCES,
            "[(has(self.model.source) && has(self.model.source.path)),"
            " (has(self.model.source) && has(self.model.source.pythonPackage))]"
            ".exists_one(given, given)",
        ),
        (~(SCALED & given("replicas")), "!(has(self.autoscaling) && has(self.replicas))"),
        (SCALED | given("replicas"), "(has(self.autoscaling) || has(self.replicas))"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_cel_asks_whether_a_value_is_there_before_it_reads_it(
    condition: Condition, cel: str
) -> None:
    assert condition.cel == cel


def test_python_judges_the_same() -> None:
    assert SURGE.holds(spec(rollout={"maxSurge": "0%", "maxUnavailable": 1}))
    assert not SURGE.holds(spec())
    assert FULL.holds(spec(batching={"maxQueueSize": 40}))
    assert not FULL.holds(spec(batching={"maxQueueSize": 64}))
    assert not FULL.holds(spec())
    assert SOURCES.holds(spec())
    assert (SCALED | given("model.source")).holds(spec())
    assert not (SCALED & given("model.source")).holds(spec())
    assert (~SCALED).holds(spec())


def test_a_condition_that_could_not_fail_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        given("batching.maxBatchSize")
