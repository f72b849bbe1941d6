"""What is told of each model to Prometheus."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from batchedmodel_autoscaler import model_metrics as names
from batchedmodel_autoscaler.cluster.objects import MOST_CONDITIONS, ModelKey, read_model
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from support.autoscaler_world import CALM, MODEL, busy, fleet, pod

NOW = 1000.0
Labels = tuple[tuple[str, str], ...]
OURS: Labels = (("model", "minilm"), ("namespace", "team"))


def told(state: ClusterState, now: float = NOW) -> dict[tuple[str, Labels], float]:
    """Every series with its value."""
    text = asyncio.run(names.exposition(state, lambda: now))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_busy_model_tells_its_replicas_its_queue_and_its_share_of_capacity() -> None:
    state = fleet([pod(1), pod(2)], present=3)
    state.model_seen(replace(MODEL, max_replicas=8, conditions=(("Ready", True),)))
    state.answered("uid-1", busy(1.2, queue_length=10, outstanding=30), NOW)
    state.answered("uid-2", busy(0.6, queue_length=4, outstanding=8), NOW)
    found = told(state)
    assert {name for name, _ in found} == {*names.FAMILIES}
    assert found[names.REPLICAS, OURS] == 3
    assert found[names.READY_REPLICAS, OURS] == 2
    assert found[names.SILENT_REPLICAS, OURS] == 0
    assert found[names.MAX_REPLICAS, OURS] == 8
    assert found[names.QUEUE_LENGTH, OURS] == 14
    assert found[names.OUTSTANDING, OURS] == 38
    assert found[names.UTILIZATION, OURS] == pytest.approx(0.9, rel=0.02)
    assert found[names.TARGET_UTILIZATION, OURS] == 0.8
    assert found[names.CONDITION, (*OURS, ("type", "Ready"))] == 1
    assert found[names.REQUIRED_REPLICAS, OURS] == 3


def test_what_cannot_be_known_has_no_series() -> None:
    state = fleet([pod(1)])
    found = {name for name, _ in told(state)}
    assert found == {
        names.REPLICAS,
        names.READY_REPLICAS,
        names.SILENT_REPLICAS,
        names.QUEUE_LENGTH,
        names.OUTSTANDING,
        names.TARGET_UTILIZATION,
    }
    assert told(state)[names.SILENT_REPLICAS, OURS] == 1
    state.answered("uid-1", replace(CALM, profile_known=False), NOW)
    found = {name for name, _ in told(state)}
    assert names.REQUIRED_REPLICAS in found
    assert names.UTILIZATION not in found, "nobody knows what its pods can do"


def test_a_pod_that_falls_silent_is_counted_and_nothing_is_guessed() -> None:
    state = fleet([pod(1)])
    state.answered("uid-1", busy(0.5), NOW)
    found = told(state, NOW + 30)
    assert found[names.SILENT_REPLICAS, OURS] == 1
    assert (names.REQUIRED_REPLICAS, OURS) not in found


def test_the_series_of_a_model_go_with_it_and_others_stay() -> None:
    state = fleet()
    other = replace(MODEL, key=ModelKey("team", "other"), uid="other")
    state.model_seen(other)
    assert {dict(labels)["model"] for _, labels in told(state)} == {"minilm", "other"}
    state.model_gone(MODEL)
    assert {dict(labels)["model"] for _, labels in told(state)} == {"other"}
    state.model_gone(other)
    assert told(state) == {}


def test_a_model_has_a_bounded_number_of_conditions_all_of_them_words() -> None:
    listed = [{"type": 'a"}\n', "status": "True"}]
    listed += [{"type": f"Own{'x' * number}", "status": "Unknown"} for number in range(100)]
    found = read_model(
        {
            "metadata": {"namespace": "team", "name": "minilm", "uid": "uid"},
            "spec": {"autoscaling": {"maxReplicas": 4}},
            "status": {"conditions": listed},
        }
    )
    assert found.max_replicas == 4
    assert len(found.conditions) == MOST_CONDITIONS - 1
    assert not any(holds for _, holds in found.conditions)
