"""Behaviours in the form of autoscaling/v2."""

from batchedmodel_scheduling.autoscaling.behavior import Policy, PolicyType, Select, read_behavior


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
