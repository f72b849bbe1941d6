"""Kubernetes' arithmetic, against results worked out by hand from its rules."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling_loop.hpa import (
    SYNC_SECONDS,
    Autoscaler,
    Memory,
    Policy,
    read_autoscaler,
    read_behavior,
    recommended,
    step,
)

PLAIN = Autoscaler(min_replicas=1, max_replicas=20)


def behaved(
    up: dict[str, object] | None = None, down: dict[str, object] | None = None
) -> Autoscaler:
    """With rules in both directions; what is not given is Kubernetes' default."""
    found = {"scaleUp": up or {}, "scaleDown": down or {}}
    return Autoscaler(min_replicas=1, max_replicas=20, behavior=read_behavior(found))


def policy(form: str, value: int, seconds: int) -> dict[str, object]:
    return {"type": form, "value": value, "periodSeconds": seconds}


def sizes(autoscaler: Autoscaler, values: list[float | None], present: int) -> list[int]:
    """The size after each look, one every fifteen seconds."""
    memory, found = Memory(), []
    for number, value in enumerate(values):
        made = step(
            autoscaler, memory, value=value, present=present, now=1000 + number * SYNC_SECONDS
        )
        memory, present = made.memory, made.replicas
        found.append(present)
    return found


@pytest.mark.parametrize(
    ("value", "target", "present", "expected"),
    [
        pytest.param(33, 32, 1, 1, id="3 percent above"),
        pytest.param(35.2, 32, 1, 1, id="exactly the tolerance above"),
        pytest.param(35.3, 32, 1, 2, id="just beyond it"),
        pytest.param(100, 32, 1, 4, id="3.125 is rounded up"),
        pytest.param(96, 32, 1, 3, id="3 is not"),
        pytest.param(288, 32, 10, 10, id="exactly the tolerance below"),
        pytest.param(287, 32, 10, 9, id="just beyond it, 8.97"),
        pytest.param(260, 32, 9, 9, id="9.7 percent below"),
        pytest.param(0, 32, 3, 0, id="nothing"),
        pytest.param(11, 1, 10, 10, id="one more than ten is within the tolerance"),
        pytest.param(10, 1, 9, 10, id="one more than nine is not"),
        pytest.param(0.0004, 1, 1, 0, id="finer than a thousandth is not seen"),
    ],
)
def test_a_metric_recommends_its_value_over_the_target_rounded_up(
    value: float, target: float, present: int, expected: int
) -> None:
    scaled = Autoscaler(min_replicas=1, max_replicas=20, average_value=target)
    assert recommended(scaled, value=value, present=present) == expected


def test_without_a_behaviour_it_doubles_or_goes_to_four_at_every_look() -> None:
    assert sizes(PLAIN, [18.0] * 5, 1) == [4, 8, 16, 18, 18]


def test_without_a_behaviour_the_highest_recommendation_of_five_minutes_counts_downwards() -> None:
    # The last recommendation of 8 is from second 1000; at 1300 it is exactly five minutes old.
    assert sizes(PLAIN, [8.0, *[3.0] * 21], 8) == [8] * 21 + [3]


def test_with_an_empty_behaviour_four_pods_or_a_doubling_may_come_in_fifteen_seconds() -> None:
    assert sizes(behaved(), [18.0] * 4, 1) == [5, 10, 18, 18]


def test_with_an_empty_behaviour_the_window_ends_a_look_earlier() -> None:
    assert sizes(behaved(), [8.0, *[3.0] * 21], 8) == [8] * 20 + [3, 3]


def test_a_policy_of_pods_counts_what_came_within_its_period() -> None:
    slow = behaved(up={"policies": [policy("Pods", 2, 60)]})
    assert sizes(slow, [9.0] * 9, 1) == [3, 3, 3, 3, 5, 5, 5, 5, 7]


def test_a_percentage_is_rounded_up_upwards_and_away_downwards() -> None:
    assert sizes(behaved(up={"policies": [policy("Percent", 10, 15)]}), [9.0] * 3, 1) == [2, 3, 4]
    shrinking = behaved(
        down={"stabilizationWindowSeconds": 0, "policies": [policy("Percent", 25, 15)]}
    )
    assert sizes(shrinking, [1.0] * 6, 10) == [7, 5, 3, 2, 1, 1]


@pytest.mark.parametrize(("select", "expected"), [("Max", 8), ("Min", 5), ("Disabled", 4)])
def test_of_two_policies_the_selected_one_counts(select: str, expected: int) -> None:
    both = [policy("Pods", 1, 15), policy("Percent", 100, 15)]
    assert sizes(behaved(up={"selectPolicy": select, "policies": both}), [20.0], 4) == [expected]


def test_upwards_the_lowest_recommendation_of_the_window_counts() -> None:
    careful = behaved(up={"stabilizationWindowSeconds": 30})
    assert sizes(careful, [3.0, 6.0, 5.0, 6.0, 6.0], 3) == [3, 3, 5, 5, 6]


def test_a_spike_within_the_window_leaves_no_trace() -> None:
    careful = behaved(up={"stabilizationWindowSeconds": 60})
    assert sizes(careful, [3.0, 20.0, 3.0, 3.0], 3) == [3, 3, 3, 3]


def test_its_first_look_counts_the_present_size_as_a_recommendation() -> None:
    assert sizes(PLAIN, [1.0, 1.0], 5) == [5, 5]


def test_without_a_metric_it_holds_and_forgets_nothing() -> None:
    memory = Memory(recommendations=((990.0, 7),), changes=((990.0, 2),))
    held = step(behaved(), memory, value=None, present=7, now=1000.0)
    assert (held.replicas, held.memory) == (7, memory)


@pytest.mark.parametrize(("present", "expected"), [(0, 0), (25, 20)])
def test_a_size_of_nobodys_making(present: int, expected: int) -> None:
    assert step(PLAIN, Memory(), value=5.0, present=present, now=0.0).replicas == expected


@pytest.mark.parametrize(
    ("value", "present", "expected"),
    [
        pytest.param(18.0, 1, 4, id="the rate"),
        pytest.param(30.0, 15, 20, id="the bounds"),
        pytest.param(1.0, 5, 5, id="the window"),
        pytest.param(4.0, 3, 4, id="nothing"),
    ],
)
def test_it_is_limited_by(value: float, present: int, expected: int) -> None:
    assert step(PLAIN, Memory(), value=value, present=present, now=0.0).replicas == expected


# Properties.

_VALUES = st.lists(
    st.one_of(st.none(), st.floats(min_value=0, max_value=40)), min_size=1, max_size=40
)
_POLICIES = st.lists(
    st.builds(
        policy,
        st.sampled_from(["Pods", "Percent"]),
        st.integers(min_value=1, max_value=200),
        st.integers(min_value=1, max_value=300),
    ),
    min_size=1,
    max_size=3,
)
_RULES = st.fixed_dictionaries(
    {
        "stabilizationWindowSeconds": st.integers(min_value=0, max_value=600),
        "selectPolicy": st.sampled_from(["Max", "Min", "Disabled"]),
        "policies": _POLICIES,
    }
)
_AUTOSCALERS = st.one_of(st.just(PLAIN), st.builds(behaved, up=_RULES, down=_RULES))
_SIZES = st.integers(min_value=1, max_value=20)


@given(_AUTOSCALERS, _VALUES, _SIZES)
def test_a_size_never_leaves_the_bounds(
    autoscaler: Autoscaler, values: list[float | None], present: int
) -> None:
    assert all(1 <= size <= 20 for size in sizes(autoscaler, values, present))


@pytest.mark.slow
@given(_AUTOSCALERS, _VALUES, _SIZES)
def test_a_step_goes_at_most_as_far_as_was_ever_recommended(
    autoscaler: Autoscaler, values: list[float | None], present: int
) -> None:
    memory, lowest, highest = Memory(), present, present
    for number, value in enumerate(values):
        if value is not None:
            wanted = recommended(autoscaler, value=value, present=present)
            lowest, highest = min(lowest, max(1, wanted)), max(highest, wanted)
        made = step(autoscaler, memory, value=value, present=present, now=number * SYNC_SECONDS)
        memory, present = made.memory, made.replicas
        assert lowest <= present <= highest


@pytest.mark.slow
@given(_AUTOSCALERS, st.floats(min_value=1, max_value=20), _SIZES)
def test_a_metric_that_stays_is_approached_from_one_side(
    autoscaler: Autoscaler, value: float, present: int
) -> None:
    found = [present, *sizes(autoscaler, [value] * 60, present)]
    moves = [b - a for a, b in itertools.pairwise(found)]
    assert all(move >= 0 for move in moves) or all(move <= 0 for move in moves)


@given(_RULES, _RULES, _VALUES, _SIZES)
def test_no_window_is_outlived_by_what_is_remembered(
    up: dict[str, object], down: dict[str, object], values: list[float | None], present: int
) -> None:
    autoscaler, memory = behaved(up, down), Memory()
    for number, value in enumerate(values):
        made = step(autoscaler, memory, value=value, present=present, now=number * SYNC_SECONDS)
        memory, present = made.memory, made.replicas
    assert len(memory.recommendations) <= 600 / SYNC_SECONDS + 2
    assert len(memory.changes) <= 300 / SYNC_SECONDS + 2


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), ("500m", 0.5), ("32", 32.0)])
def test_a_target_may_be_in_thousandths(text: str, value: float) -> None:
    metric = {"object": {"target": {"type": "AverageValue", "averageValue": text}}}
    assert read_autoscaler({"maxReplicas": 3, "metrics": [metric]}).average_value == value


def test_what_is_absent_has_kubernetes_defaults() -> None:
    found = read_behavior({"scaleDown": {"selectPolicy": "Min"}})
    assert (found.up.window_seconds, found.up.select) == (0, "Max")
    assert [policy.value for policy in found.up.policies] == [4, 100]
    assert (found.down.window_seconds, found.down.select) == (300, "Min")
    assert found.down.policies == (Policy(type="Percent", value=100, period_seconds=15),)
    assert (found.up.tolerance, found.down.tolerance) == (0.1, 0.1)


def test_what_is_given_is_read_field_by_field() -> None:
    given = {
        "stabilizationWindowSeconds": 30,
        "tolerance": 0.05,
        "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}],
    }
    found = read_behavior({"scaleUp": given}).up
    assert (found.window_seconds, found.tolerance) == (30, 0.05)
    assert found.policies == (Policy(type="Pods", value=2, period_seconds=60),)
