"""How the HPA's behaviour follows from the profile and from how long pods take to start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling_loop.hpa import read_behavior
from batchedmodel_kube.manifest.workload import ScalingMetric, ScalingProfile
from batchedmodel_operator import render
from batchedmodel_operator.observed.state import model_from
from batchedmodel_operator.render.autoscaler import behavior
from support.operator_world import SIMULATED, manifest

FAST, BALANCED = ScalingProfile.FAST, ScalingProfile.BALANCED
LOAD, QUEUE = ScalingMetric.LOAD, ScalingMetric.QUEUE_LENGTH


@pytest.mark.parametrize(
    ("profile", "startup", "window"),
    [
        (BALANCED, None, 300),
        (BALANCED, 60.0, 300),
        (BALANCED, 133.0, 300),
        (BALANCED, 300.0, 660),
        (FAST, None, 120),
        (FAST, 20.0, 120),
        (FAST, 60.0, 180),
        (ScalingProfile.CONSERVATIVE, 600.0, 1260),
        (BALANCED, 7200.0, 3600),
    ],
)
def test_fewer_pods_must_do_for_twice_the_time_that_more_would_take(
    profile: ScalingProfile, startup: float | None, window: int
) -> None:
    assert behavior(profile, LOAD, startup)["scaleDown"]["stabilizationWindowSeconds"] == window


def test_once_starts_are_known_no_more_than_a_quarter_goes_in_a_minute() -> None:
    for profile in ScalingProfile:
        for policy in read_behavior(behavior(profile, LOAD, 30.0)).down.policies:
            most = 25 if policy.type == "Percent" else 1
            assert policy.value <= most
            assert policy.period_seconds >= 60


def periods(metric: ScalingMetric, startup: float | None) -> set[int]:
    return {
        one.period_seconds for one in read_behavior(behavior(FAST, metric, startup)).up.policies
    }


def test_by_a_queue_pods_are_ordered_once_in_the_time_that_they_take_to_start() -> None:
    for metric in (QUEUE, ScalingMetric.CONCURRENCY, ScalingMetric.QUEUE_TIME):
        assert periods(metric, None) == {15}
        assert periods(metric, 100.0) == {120}
        assert periods(metric, 900.0) == {300}


def test_by_load_and_by_cpu_nothing_is_ordered_twice_anyway() -> None:
    for metric in (LOAD, ScalingMetric.CPU):
        assert periods(metric, 100.0) == {15}


def test_what_is_learnt_of_the_pods_stands_in_the_hpa() -> None:
    body = manifest({**SIMULATED, "autoscaling": {"maxReplicas": 3}})
    body["metadata"] |= {"uid": "6a"}
    body["status"] = {"capacity": {"revision": "a", "startupSeconds": 300}}
    model = model_from(body)
    assert model.spec is not None
    assert model.spec.autoscaling is not None
    found = render.autoscaler(model, model.spec, model.spec.autoscaling)["spec"]["behavior"]
    assert found == behavior(BALANCED, LOAD, 300.0)


@given(
    st.sampled_from(ScalingProfile),
    st.sampled_from(ScalingMetric),
    st.none() | st.floats(min_value=0.1, max_value=100_000),
)
def test_an_api_server_takes_every_one(
    profile: ScalingProfile, metric: ScalingMetric, startup: float | None
) -> None:
    found = read_behavior(behavior(profile, metric, startup))
    for rules in (found.up, found.down):
        assert 0 <= rules.window_seconds <= 3600
        assert all(1 <= policy.period_seconds <= 1800 for policy in rules.policies)
