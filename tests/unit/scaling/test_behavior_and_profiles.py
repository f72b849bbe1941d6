"""Behaviours in the form of autoscaling/v2, and those that have a name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.scaling_profiles import ScalingProfile, scaling_behavior
from batchedmodel_contract.spec import ScalingMetric
from batchedmodel_scheduling.scaling.behavior import Policy, PolicyType, Select, read_behavior


def test_what_is_absent_has_kubernetes_defaults() -> None:
    found = read_behavior({"scaleDown": {"selectPolicy": "Min"}})
    assert (found.up.window_seconds, found.up.select) == (0, Select.MAX)
    assert [policy.value for policy in found.up.policies] == [4, 100]
    assert (found.down.window_seconds, found.down.select) == (300, Select.MIN)
    assert found.down.policies == (Policy(type=PolicyType.PERCENT, value=100, period_seconds=15),)
    assert (found.up.tolerance, found.down.tolerance) == (0.1, 0.1)


def test_what_is_given_is_read_field_by_field() -> None:
    given = {
        "stabilizationWindowSeconds": 30,
        "tolerance": 0.05,
        "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}],
    }
    found = read_behavior({"scaleUp": given}).up
    assert (found.window_seconds, found.tolerance) == (30, 0.05)
    assert found.policies == (Policy(type=PolicyType.PODS, value=2, period_seconds=60),)


_PROFILES = st.sampled_from(ScalingProfile)
_METRICS = st.sampled_from(ScalingMetric)


@given(_PROFILES, _METRICS, st.floats(min_value=0, max_value=20_000))
def test_every_profile_is_one_that_kubernetes_takes(
    profile: ScalingProfile, metric: ScalingMetric, startup: float
) -> None:
    found = read_behavior(scaling_behavior(profile, metric, startup))
    for rules in (found.up, found.down):
        assert 0 <= rules.window_seconds <= 3600
        assert rules.policies
        for policy in rules.policies:
            assert policy.value > 0
            assert 1 <= policy.period_seconds <= 1800


@given(_PROFILES, st.floats(min_value=0, max_value=1700))
def test_nothing_is_taken_away_before_what_was_ordered_can_serve(
    profile: ScalingProfile, startup: float
) -> None:
    found = read_behavior(scaling_behavior(profile, ScalingMetric.LOAD, startup))
    assert found.down.window_seconds >= round(startup)


@pytest.mark.parametrize("profile", ScalingProfile)
def test_a_queue_orders_no_faster_than_pods_start(profile: ScalingProfile) -> None:
    found = read_behavior(scaling_behavior(profile, ScalingMetric.QUEUE_LENGTH, 90.0))
    assert {policy.period_seconds for policy in found.up.policies} == {90}
    assert [policy.value for policy in found.down.policies] == [1]
