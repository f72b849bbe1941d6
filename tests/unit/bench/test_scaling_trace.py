"""The trace's benchmark offers what it says, and its pods tell what they serve."""

from typing import cast

import pytest

from autoscaling import DEFAULT, QUEUE, setup_of
from autoscaling_loop.loop import Result, ideal_replicas
from autoscaling_loop.pods import Device
from batchedmodel_autoscaler.polling.stats_document import stats_from_mapping
from batchedmodel_contract.processes.stats import BUCKETS, SidecarStats
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.workload import ScalingMetric
from replayed_pods import Replay
from scaling_trace import (
    FULL,
    QUICK,
    WAYS,
    Plan,
    figures_of,
    ideal_seconds,
    load_of,
    manifest_of,
    names_of,
)

PLANS = pytest.mark.parametrize("plan", [FULL, QUICK], ids=["full", "quick"])
DEVICE = cast("Device", DEFAULT.device)
STARTUP = 30.0


def replay(*amounts: float, pods: int = 2) -> Replay:
    """One model's pods, and a load second by second."""
    return Replay(DEVICE, amounts, {"model": [f"pod-{number}" for number in range(pods)]})


def told(found: Replay, pod: str) -> SidecarStats:
    """As the autoscaler reads it."""
    stats = found.stats(pod)
    assert stats is not None
    return stats_from_mapping(stats.to_mapping())


def work(found: Replay, *pods: str) -> float:
    """Offered to them together, on average of the last minute."""
    return sum(sum(told(found, pod).offered_work) for pod in pods) / (BUCKETS - 1)


@PLANS
def test_the_part_of_the_trace_needs_some_pods_and_not_always_as_many(plan: Plan) -> None:
    load = load_of(plan)
    setup = setup_of(DEFAULT, seed=0)
    sizes = {ideal_replicas(setup, load.at(second)) for second in range(int(load.seconds))}
    assert min(sizes) >= 2
    assert max(sizes) <= 10
    assert len(sizes) >= 2
    assert ideal_seconds(load) == pytest.approx(
        sum(ideal_replicas(setup, load.at(second)) for second in range(int(load.seconds)))
    )


@PLANS
def test_each_way_to_scale_has_as_many_models_and_right_manifests(plan: Plan) -> None:
    metrics = []
    for name, way in names_of(plan).items():
        scaling = read_manifest(manifest_of(name, way)).spec.autoscaling
        assert scaling is not None
        metrics.append(scaling.metric)
    assert metrics.count(ScalingMetric.LOAD) == plan.copies
    assert metrics.count(ScalingMetric.QUEUE_LENGTH) == 2 * plan.copies


def test_the_first_pods_have_served_for_long_when_time_begins() -> None:
    found = replay(1.2)
    assert found.now == 0.0
    assert told(found, "pod-0").age_seconds >= BUCKETS
    assert work(found, "pod-0", "pod-1") == pytest.approx(1.2, rel=0.05)
    assert found.served() == {"model": (0, 0)}


def test_the_load_is_followed_to_its_end_and_then_there_is_none() -> None:
    found = replay(*[1.2] * 30, *[0.4] * 30)
    found.advance(30.9)
    assert found.now == 30.0
    found.advance(200.0)
    [(offered, on_time)] = found.served().values()
    assert offered * DEVICE.work == pytest.approx(30 * 1.2 + 30 * 0.4, rel=0.03)
    assert on_time == offered
    assert work(found, "pod-0", "pod-1") == 0.0


def test_a_pod_that_is_born_takes_its_share_once_it_is_ready() -> None:
    found = replay(*[1.5] * 200)
    found.advance(10.0)
    found.born("model", "late", STARTUP)
    found.advance(39.0)
    assert not told(found, "late").model_ready
    assert work(found, "late") == 0.0
    found.advance(110.0)
    assert told(found, "late").model_ready
    assert work(found, "late") == pytest.approx(0.5, rel=0.05)


def test_a_pod_that_leaves_ends_and_is_told_of_once() -> None:
    found = replay(*[1.2] * 200)
    found.advance(10.0)
    found.leaving("pod-1")
    assert told(found, "pod-1").draining
    found.leaving("pod-1")
    found.advance(20.0)
    assert found.ended() == ["pod-1"]
    assert found.ended() == []
    assert found.stats("pod-1") is None
    found.leaving("pod-1")


def test_equal_models_are_not_served_alike() -> None:
    found = Replay(DEVICE, [2.0] * 60, {"a": ["first"], "b": ["second"]})
    found.advance(60.0)
    one, other = found.served().values()
    assert one != other


def _result(seconds: float, *sizes: int) -> Result:
    changes = [(15.0 * number, size) for number, size in enumerate(sizes)]
    return Result(
        offered=100, on_time=99, replica_seconds=seconds, ideal_seconds=90.0, sizes=changes
    )


@PLANS
def test_figures_are_held_against_the_simulation_and_against_the_queue(plan: Plan) -> None:
    real = {way.name: [_result(100.0, 4, 5)] for way in WAYS}
    real[DEFAULT.name] = [_result(130.0, 4, 5, 4)]
    simulated = {way.name: [_result(105.0, 4)] for way in WAYS}
    figures = {figure.name: figure for figure in figures_of(real, simulated, [1.0], plan)}
    assert all(plan.name in name for name in list(figures)[:-1])
    load, queue = (f"{plan.name}, {way.name}: " for way in (DEFAULT, QUEUE))
    off = "replica-seconds, off the simulated"
    assert figures[load + off].value == pytest.approx(100 * 25 / 105)
    held = (False, True) if plan is FULL else (None, None)
    assert (figures[load + off].holds, figures[queue + off].holds) == held
    assert (figures[load + "reversals"].value, figures[load + "reversals"].holds) == (1, False)
    assert figures[queue + "reversals"].goal is None
