"""The benchmark's devices and rows that nobody tuned for, and the planner among the rivals."""

import math
from concurrent.futures import Future
from dataclasses import replace

import pytest

from batchedmodel_cli.simulator.traces import Trace
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import ProfileExtent
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.batching.decisions import Slots
from batchedmodel_scheduling.queue.items import Item, ItemId
from rival_policies.receding import Receding
from scheduling_bench import troubled as trials_of_troubled
from scheduling_bench import unseen_trials
from scheduling_bench.devices import Kneed, Stepped, Tiled, warmed_up
from scheduling_bench.unseen import EVEN, drawn, fair_rate, troubled, written_down
from scheduling_bench.unseen_trials import Served, try_row

TRACE = Trace(times=(0, 5, 9), lengths=(30, 400, 90), priorities=())
FREE = Slots(depth=1, in_flight=0)
TUNED_ON = {*range(4001, 4013)}


def test_a_plateau_ends_at_its_edge_and_beyond_the_last_it_goes_on_in_proportion() -> None:
    device = Stepped(edges=(4, 8), levels=(1.0, 3.0), rule=CostRule.ROWS)
    assert [device.seconds([1] * rows) for rows in (1, 4, 5, 8, 16)] == [1.0, 1.0, 3.0, 3.0, 6.0]


def test_a_tile_that_is_begun_is_paid_for() -> None:
    device = Tiled(fixed=1.0, per_tile=0.5, tile=10, rule=CostRule.PACKED)
    assert [device.seconds(lengths) for lengths in ([10], [10, 1], [30])] == [1.5, 2.0, 2.5]


def test_a_device_with_a_knee_is_flat_before_it() -> None:
    device = Kneed(flat=2.0, knee=100, rule=CostRule.PADDED)
    assert [device.seconds(lengths) for lengths in ([50], [50, 3], [50] * 4)] == [2.0, 2.0, 4.0]


def test_of_a_slow_device_no_batch_is_measured_that_is_longer_than_a_few_of_the_shortest() -> None:
    slow = Kneed(flat=1.0, knee=4, rule=CostRule.ROWS)
    known = warmed_up(slow, CostRule.ROWS, max_rows=64, longest=1, noise=0.0, seed=1)
    assert [point.rows for point in known.points] == [1, 4, 11, 16]
    few = warmed_up(slow, CostRule.ROWS, max_rows=64, longest=1, noise=0.0, seed=1, partial=True)
    assert [point.rows for point in few.points] == [1, 4]


def test_the_fair_rate_is_that_of_the_largest_batch_that_fits_twice_into_the_target() -> None:
    row = replace(written_down(TRACE)[0], target_seconds=0.016)
    assert row.lengths == EVEN
    assert fair_rate(row) == pytest.approx(32 / 0.007)


def test_a_drawn_row_is_the_same_for_the_same_seed_and_its_target_is_possible() -> None:
    for seed in TUNED_ON:
        row = drawn(seed, TRACE)
        assert row == drawn(seed, TRACE)
        assert row.target_seconds > 2 * row.curve.seconds([1])
        assert math.isfinite(row.rate)


def test_no_drawn_row_is_reported_that_was_tuned_on() -> None:
    assert TUNED_ON.isdisjoint(unseen_trials.JUDGED)
    assert len(unseen_trials.JUDGED) == 2 * len(written_down(TRACE))


def test_a_row_that_slows_down_does_so_half_way() -> None:
    row = next(row for row in written_down(TRACE) if row.slows_down)
    assert row.disturbances(1000).drift == ((500 / row.rate, 1.4),)


def test_a_troubled_device_has_every_trouble_and_a_target_that_stays_possible() -> None:
    for seed in TUNED_ON:
        row = troubled(seed)
        assert row == troubled(seed)
        assert row.target_seconds > 1.4 * row.curve.seconds([1])
        troubles = row.disturbances(1000)
        assert (troubles.noise, troubles.straggler_probability) == (0.05, 0.01)
        assert troubles.straggler_factor == 5.0
        assert troubles.drift == ((500 / row.rate, 1.4),)


def test_of_troubled_devices_the_worst_is_judged() -> None:
    shares = [dict.fromkeys(ProfileExtent, 120.0), dict.fromkeys(ProfileExtent, 90.0)]
    futures: list[Future[trials_of_troubled.Shares]] = []
    for one in shares:
        futures.append(Future())
        futures[-1].set_result(one)
    figures = trials_of_troubled.report(trials_of_troubled.Trials(shares=futures))
    judged = [figure for figure in figures if figure.goal]
    assert [figure.value for figure in judged] == [90.0] * 3
    assert not any(figure.holds for figure in judged)


@pytest.mark.slow
def test_everybody_meets_the_same_requests_and_is_judged_by_the_later_ones() -> None:
    tried = try_row(written_down(TRACE)[0], 1, 300)
    assert {"ours", "told", "nexus", "plan for rows"} <= tried.keys()
    assert all(0 <= served.rows <= 1 for served in tried.values())
    assert all(0 < served.first <= tried["clairvoyant"].first for served in tried.values())


def test_means_stand_beside_those_of_the_best_rival() -> None:
    """Of two rows one is better served by ours, and a rival that knows all is far from the best."""
    row = written_down(TRACE)[0]
    figures = unseen_trials.report(
        unseen_trials.Trials(
            rows=[(row, [tried(ours=0.6, nexus=0.5)]), (row, [tried(ours=0.4, nexus=0.3)])],
            recoveries=[done(1.0), done(2.0)],
        )
    )
    means = {figure.name: figure.value for figure in figures if figure.name.startswith("mean")}
    assert means == pytest.approx(
        {
            "mean over all measures: in time, ours": 50.0,
            "mean over all measures: in time, nexus": 40.0,
            "mean over equal rows: in time, of the best schedule's, ours": 62.5,
            "mean over equal rows: in time, of the best schedule's, nexus": 50.0,
        }
    )


def test_a_rival_is_ahead_by_what_is_sure_of_it() -> None:
    row = written_down(TRACE)[0]
    future: list[Future[unseen_trials.Tried]] = [Future(), Future()]
    for one, rows in zip(future, (0.55, 0.56), strict=True):
        one.set_result({"ours": served(0.5), "nexus": served(rows)})
    figure, *_ = unseen_trials.report(
        unseen_trials.Trials(rows=[(row, future)], recoveries=[done(1.0), done(2.0)])
    )
    assert figure.name.endswith("nexus surely ahead by")
    assert figure.value == pytest.approx(11 - 12.706)
    assert figure.holds


def served(rows: float) -> Served:
    return Served(rows=rows, work=0.5, first=rows)


def tried(*, ours: float, nexus: float) -> Future[unseen_trials.Tried]:
    future: Future[unseen_trials.Tried] = Future()
    policies = {"ours": served(ours), "nexus": served(nexus), "clairvoyant": served(0.8)}
    future.set_result(policies)
    return future


def test_what_few_points_cost_is_said_of_the_requests_behind_what_was_learnt() -> None:
    row = written_down(TRACE)[0]
    one: Future[unseen_trials.Tried] = Future()
    others = {"ours": served(0.5), "nexus": served(0.4)}
    one.set_result(others | {"few points": served(0.76), "told, later": served(0.8)})
    figures = unseen_trials.report(
        unseen_trials.Trials(rows=[(row, [one])], recoveries=[done(1.0), done(2.0)])
    )
    [figure] = [figure for figure in figures if "partial profile" in figure.name and figure.goal]
    assert figure.value == pytest.approx(95.0)
    assert not any(
        "few points" in figure.name or "told, later" in figure.name for figure in figures
    )


def done(seconds: float) -> Future[float]:
    future: Future[float] = Future()
    future.set_result(seconds)
    return future


# The plain planner


def an_item(number: int, due: float, length: int = 1) -> Item:
    return Item(id=ItemId(number), key="a", length=length, arrived=0.0, due=due, deadline=due)


def planner(*items: Item, padded: bool = True, by_work: bool = False) -> Receding:
    policy = Receding(
        BatchSettings(max_batch_size=8, length_buckets=(10, 100)),
        lambda lengths: (1.0 + 0.01 * len(lengths) * max(lengths)) / 1000,
        target=0.02,
        worth=float if by_work else lambda length: 1.0,
        padded=padded,
    )
    for item in items:
        assert policy.offer(item, 0.0) is None
    return policy


def released(policy: Receding, now: float = 0.0) -> list[int]:
    decision = policy.poll(now, FREE)
    assert decision.release is not None
    return [item.id for item in decision.release.items]


def test_the_planner_serves_by_due_time() -> None:
    policy = planner(an_item(1, 0.9, length=100), *(an_item(n, 0.5) for n in range(2, 6)))
    assert released(policy) == [2, 3, 4, 5]
    assert released(policy) == [1]


def test_the_planner_merges_buckets_where_that_takes_less_time() -> None:
    assert released(planner(an_item(1, 0.9, length=12), an_item(2, 0.5, length=5))) == [1, 2]


def test_the_planner_gives_up_what_takes_longest_for_its_worth() -> None:
    waiting = [an_item(1, 0.0025, length=100), *(an_item(n, 0.0026) for n in range(2, 6))]
    assert released(planner(*waiting)) == [2, 3, 4, 5]
    assert released(planner(*waiting, by_work=True)) == [1]


def test_a_packing_planner_fills_batches_in_order() -> None:
    waiting = [an_item(n, 0.5 + n, length=100) for n in range(1, 12)]
    assert released(planner(*waiting, padded=False)) == list(range(1, 9))


def test_the_planner_drops_what_would_be_late_alone() -> None:
    decision = planner(an_item(1, 0.001)).poll(0.0, FREE)
    assert [shed.item.id for shed in decision.shed] == [1]
    assert decision.release is None
