"""What one batch may hold, and what a policy shows of its adaptation."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.batching.decisions import MemoryCap, limits
from batchedmodel_scheduling.batching.policy import Recent, Signals, signals, sustainable_rate
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.ready_queue import Limits
from support.examples import examples
from support.scheduling import cost_of, row_profile
from support.strategies import an_item

SETTINGS = BatchSettings(max_batch_size=8, target_seconds=0.1)
any_limits = st.builds(
    Limits,
    rows=st.integers(1, 8),
    cost=st.none() | st.integers(1, 90),
    rule=st.sampled_from(CostRule),
)
lengths_of_items = st.lists(st.integers(1, 30), min_size=1, max_size=12)


# Limits


@settings(max_examples=examples(100))
@given(any_limits, lengths_of_items)
def test_a_batch_holds_the_longest_start_that_keeps_the_bounds(
    bounds: Limits, lengths: list[int]
) -> None:
    def allowed(count: int) -> bool:
        fits = bounds.cost is None or cost_of(bounds.rule, lengths[:count]) <= bounds.cost
        return count == 1 or (count <= bounds.rows and fits)

    wanted = max(count for count in range(1, len(lengths) + 1) if allowed(count))
    assert bounds.fitting(lengths) == wanted
    assert bounds.fitting([]) == 0


@settings(max_examples=examples(100))
@given(any_limits, lengths_of_items)
def test_a_batch_is_full_when_not_even_its_shortest_fits_once_more(
    bounds: Limits, lengths: list[int]
) -> None:
    batch = lengths[: bounds.fitting(lengths)]
    larger = [*batch, min(batch)]
    fits = bounds.cost is None or cost_of(bounds.rule, larger) <= bounds.cost
    assert bounds.full(batch) == (len(batch) == bounds.rows or not fits)


@pytest.mark.parametrize(
    ("rule", "longest", "rows"),
    [
        (CostRule.PADDED, 30, 3),
        (CostRule.PACKED, 30, 3),
        (CostRule.PADDED, 1, 8),
        (CostRule.PADDED, 500, 1),
        (CostRule.ROWS, 500, 8),
    ],
)
def test_the_longest_decides_how_many_go_together(rule: CostRule, longest: int, rows: int) -> None:
    assert Limits(rows=8, cost=100, rule=rule).rows_of(longest) == rows


def test_the_tighter_of_the_users_bound_and_the_servers_holds() -> None:
    bounded = replace(SETTINGS, max_batch_tokens=100)
    assert limits(bounded, MemoryCap(cost=60), CostRule.PADDED).cost == 60
    assert limits(bounded, MemoryCap(cost=200), CostRule.PADDED).cost == 100
    assert limits(SETTINGS, MemoryCap(cost=None), CostRule.PADDED).cost is None


def test_a_device_that_pays_for_rows_has_no_bound_of_tokens() -> None:
    bounded = replace(SETTINGS, max_batch_tokens=100)
    assert limits(bounded, MemoryCap(cost=None), CostRule.ROWS).cost is None
    assert limits(bounded, MemoryCap(cost=6), CostRule.ROWS).cost == 6


@pytest.mark.parametrize("rule", list(CostRule))
def test_a_server_that_knows_of_no_cost_is_bounded_in_rows(rule: CostRule) -> None:
    bounds = limits(SETTINGS, MemoryCap(cost=None, rows=3), rule)
    assert (bounds.rows, bounds.cost) == (3, None)
    assert bounds.rows_of(500) == 3
    assert limits(SETTINGS, MemoryCap(cost=None, rows=99), rule).rows == SETTINGS.max_batch_size


# Signals


def shown(target: float | None = 0.1, profiled: bool = True) -> Signals:
    """10 ms and 5 ms a row, hand-off 1 ms."""
    times = BatchTimes(row_profile(0.010, 0.005, range(1, 9)) if profiled else None)
    return signals(Recent(), times, 0.001, replace(SETTINGS, target_seconds=target))


def test_what_arrives_behind_a_batch_must_be_answered_within_two_of_them() -> None:
    assert sustainable_rate([0.0, 0.02, 0.03, 0.06], 0.08) == pytest.approx(2 / 0.03)
    assert sustainable_rate([0.0, 0.02, 0.03, 0.06], None) == pytest.approx(2 / 0.03)
    assert sustainable_rate([0.0, 0.02, 0.03, 0.03], 0.06) == pytest.approx(3 / 0.03)
    assert sustainable_rate([0.0, 0.02, 0.03, 0.06], 0.03) == 0.0


def test_the_signals_are_those_of_the_profile_with_its_margin() -> None:
    margin = 1.03
    found = shown()
    assert found.smallest_feasible_target_seconds == pytest.approx(0.001 + 0.015 * margin)
    assert found.target_feasible
    # 7 rows take 45 ms; 8 rows twice are 3 ms too long.
    assert found.sustainable_rate == pytest.approx(7 / (0.045 * margin))


@pytest.mark.parametrize(("target", "feasible"), [(None, None), (0.017, True), (0.016, False)])
def test_a_target_is_feasible_if_a_lone_row_meets_it(
    target: float | None, feasible: bool | None
) -> None:
    assert shown(target).target_feasible is feasible


def test_a_longer_target_never_sustains_less() -> None:
    rates = [shown(target / 1000).sustainable_rate or 0.0 for target in range(10, 150, 5)]
    assert all(first <= second for first, second in pairwise(rates))
    assert rates[0] == 0.0
    assert shown(None).sustainable_rate == pytest.approx(rates[-1])


@pytest.mark.parametrize(
    ("target", "share"),
    [
        pytest.param(None, 1.0, id="full batches without a target"),
        pytest.param(0.110, 1.0, id="time enough for full ones"),
        pytest.param(0.095, (7 / 0.045) / (8 / 0.050), id="7 of 8 rows"),
        pytest.param(0.017, None, id="not even one row beside another"),
    ],
)
def test_a_target_that_allows_small_batches_only_leaves_a_share_of_what_full_ones_do(
    target: float | None, share: float | None
) -> None:
    assert shown(target).sustainable_share == (None if share is None else pytest.approx(share))


def test_without_a_profile_nothing_is_said_about_the_device() -> None:
    found = shown(profiled=False)
    assert found.target_feasible is None
    assert found.sustainable_rate is None
    assert found.sustainable_share is None
    assert found.smallest_feasible_target_seconds is None


def test_averages_begin_with_the_first_batch_and_follow_the_later_ones() -> None:
    recent = Recent()
    recent.observe([an_item(n, arrived=n, due=6.0, length=10) for n in (1, 2, 3)], 4.0, ends=6.5)
    assert (recent.batch_size, recent.wait, recent.lateness, recent.length) == (3, 2.0, 0.5, 10)
    recent.observe([an_item(4, arrived=9.0, due=11.0, length=20)], 9.0, ends=10.0)
    assert recent.batch_size == pytest.approx(2.8)
    assert recent.wait == pytest.approx(1.8)
    assert recent.lateness == pytest.approx(0.45)
    assert recent.length == pytest.approx((0.9 * 30 + 0.1 * 20) / 2.8)  # of a row, not of a batch
