"""The benchmark of the scheduler: that its figures are of what they say, on very short runs."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import TypeVar

import pytest

import scheduling
from batchedmodel_cli.simulator.traces import Trace, read_trace
from batchedmodel_cli.simulator.workload import Recorded, stream
from bench_report import at_least
from scheduling_bench import (
    callers,
    costs,
    equal_lengths,
    estimator,
    latency,
    mixed_lengths,
    overload,
)
from scheduling_bench.scenarios import EDGES, Edged, Plan, beginning, equal, mixed
from scheduling_bench.summaries import half_width, over_seeds
from scheduling_bench.trials import (
    best_rate,
    clairvoyant_cap99,
    enough,
    our_cap99,
    ours,
    plant_of,
    requests_of,
    served,
)

SHORT = Plan(seeds=(1, 2), requests=300, tolerance=0.01)
# The policy's constants were chosen on these.
TUNED_ON = {*range(1, 11), 101}


def up_to(limit: float, asked: list[float]) -> Callable[[float], bool]:
    def holds(rate: float) -> bool:
        asked.append(rate)
        return rate <= limit

    return holds


Result = TypeVar("Result")


def done(result: Result) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(result)
    return future


def test_no_seed_is_reported_that_was_tuned_on() -> None:
    assert TUNED_ON.isdisjoint(scheduling.FULL.seeds)
    assert set(scheduling.QUICK.seeds) <= set(scheduling.FULL.seeds)


def test_the_interval_of_a_mean_follows_students_t() -> None:
    assert half_width([1.0, 3.0]) == pytest.approx(12.706)
    assert half_width([1.0] * 10) == 0.0
    assert math.isnan(half_width([1.0]))


def test_the_mean_over_seeds_is_held_against_the_goal_and_the_interval_is_beside_it() -> None:
    mean, interval = over_seeds("share", [95.0, 99.0], "%", at_least, 96)

    assert (mean.value, mean.holds) == (97.0, True)
    assert (interval.name, interval.goal) == ("share, +-", None)
    assert interval.value == pytest.approx(25.412)


def test_one_value_has_no_interval() -> None:
    assert [figure.name for figure in over_seeds("gain", [1.2], "x")] == ["gain"]


def test_the_best_of_several_is_found_and_a_worse_one_costs_one_trial() -> None:
    first: list[float] = []
    worse: list[float] = []
    better: list[float] = []
    found = best_rate(
        [up_to(100, first), up_to(90, worse), up_to(120, better)], 95.0, tolerance=0.01
    )

    assert 118.8 <= found <= 120
    assert len(worse) == 1


def test_lengths_are_moved_to_the_upper_edge_of_their_bucket() -> None:
    edged = Edged(of=Recorded(recorded=(1, 32, 33, 512, 600)), edges=EDGES)

    assert edged.draw(5, stream(1, "lengths")) == [32, 32, 64, 512, 512]


def test_what_ours_serves_is_a_share_of_what_the_clairvoyant_serves() -> None:
    scenario = equal("A", "Poisson", 760)

    bound = clairvoyant_cap99(scenario, 1, SHORT)
    best = our_cap99(scenario, 1, SHORT, bound)

    assert 0.7 * bound < best.rate <= 1.01 * bound
    assert best.verdict.on_time_share >= 0.99


@pytest.mark.parametrize("rate", [300.0, 700.0, 800.0, 1600.0])
def test_a_run_ends_early_only_where_its_end_would_have_said_the_same(rate: float) -> None:
    scenario = equal("A", "Poisson", 760)
    whole = served(scenario, 3, 300, rate)

    requests = requests_of(scenario, 3, 300, rate)
    found = enough(scenario, requests, ours(scenario), plant_of(scenario, 3))

    assert found == (whole if whole.on_time_share >= 0.99 else None)


@pytest.mark.slow
def test_a_cell_gives_the_same_figures_whenever_it_is_tried() -> None:
    cell = replace(equal_lengths.CELLS[0], noisy_goal=80.0)

    tried = equal_lengths.try_cell(cell, 2, SHORT)

    assert tried == equal_lengths.try_cell(cell, 2, SHORT)
    assert set(tried.loads) == {1.0, 1.5, 3.0}
    assert tried.noisy_share is not None
    assert set(tried.noisy_loads) == {1.0, 1.5, 3.0}


@pytest.mark.slow
def test_lateness_on_a_noisy_device_is_reported_at_every_load_and_held_to_no_goal() -> None:
    quiet = equal_lengths.CELLS[0]
    noisy = replace(quiet, noisy_goal=80.0)
    window = mixed_lengths.Cell(scenario=mixed(50, "Poisson", 310), expected=1.5)
    equal_trials = [(noisy, [done(equal_lengths.try_cell(noisy, 2, SHORT))])]
    of_windows = mixed_lengths.Tried(
        ours=1.0, other=1.0, loads={1.0: served(quiet.scenario, 2, 300, 500.0)}
    )
    rows = overload.report(equal_trials, [(window, [done(of_windows)])])

    named = {row.name: row for row in rows if "5 % noise" in row.name}
    assert list(named) == [
        f"late after admission, worst run at {load}, 5 % noise, no goal"
        for load in ("cap99", "1.5x", "3x")
    ]
    assert all(row.goal is None and 0 <= row.value < 100 for row in named.values())


def test_callers_who_are_not_alike_are_reported_apart_without_goals() -> None:
    trials = callers.Trials(
        priorities=[done(callers.in_time_by_priority(seed, SHORT)) for seed in SHORT.seeds],
        hurried=[done(callers.hurried(seed, SHORT)) for seed in SHORT.seeds],
    )
    rows = [row for row in callers.report(trials) if not row.name.endswith("+-")]

    assert [row.name.rsplit(": ", 1)[1] for row in rows[:3]] == [
        "high in time",
        "normal in time",
        "low in time",
    ]
    assert [row.name.rsplit(", ", 1)[1] for row in rows[3:]] == ["refused", "in time"]
    assert all(row.goal is None and 0 <= row.value <= 100 for row in rows)
    assert rows[3].value + rows[4].value <= 100


@pytest.mark.slow
def test_packed_lengths_at_light_load_are_held_against_greedy() -> None:
    with ThreadPoolExecutor(1) as pool:
        trials = latency.submit(pool, replace(SHORT, seeds=(1,)))
    packed = replace(mixed(50, "Poisson", 1000, packed=True), edges=())
    one = latency.ratio(packed, 1, SHORT, 0.3)
    last = latency.report(trials)[-1]

    assert last.name == "packed 50 ms Poisson at 30 %: mean latency against Greedy"
    assert last.value == pytest.approx(100 * (one - 1))
    assert last.goal is None


def test_a_target_that_the_device_cannot_meet_has_no_capacity() -> None:
    hopeless = replace(equal("A", "Poisson", 760), target_seconds=0.005)

    with pytest.raises(ValueError, match="no rate has 99% on time"):
        our_cap99(hopeless, 1, SHORT, 1.0)


@pytest.mark.slow
def test_ours_is_compared_with_windows_that_drop_and_that_do_not() -> None:
    cell = mixed_lengths.Cell(scenario=mixed(50, "Poisson", 310), expected=1.5, overloads=(2.0,))

    tried = mixed_lengths.against_windows(cell, 1, SHORT)

    assert 0 < tried.other < tried.ours
    assert tried.loads[2.0].on_time_share < tried.loads[1.0].on_time_share


def test_every_request_is_of_the_same_length_on_a_device_that_pays_for_rows() -> None:
    assert {each.length for each in requests_of(equal("C", "MMPP", 139), 1, 50, 100.0)} == {1}


def test_a_prediction_is_held_against_the_exact_time_also_after_the_change() -> None:
    assert estimator.error_p95(1, SHORT) < 20
    assert estimator.batches_until_close(1, replace(SHORT, requests=2000), 1.4) >= 1


def test_the_excerpt_of_the_azure_trace_is_complete() -> None:
    trace = read_trace(scheduling.AZURE_CONVERSATION.read_text(encoding="utf-8"))

    assert len(trace.times) == 19_366
    assert trace.times[-1] == 3501_722_000_000
    assert sum(trace.lengths) / len(trace.lengths) == pytest.approx(1155, abs=1)


def test_the_beginning_of_a_trace_keeps_times_and_lengths_together() -> None:
    trace: Trace = read_trace("seconds,length\n0,5\n1,6\n2,7\n")

    assert beginning(trace, 2) == read_trace("seconds,length\n0,5\n1,6\n")


def ticking() -> Callable[[], float]:
    """A clock by which every call takes a second."""
    ticks: Iterator[int] = count()
    return lambda: float(next(ticks))


@pytest.mark.slow
def test_calls_are_timed_only_while_the_queue_is_about_as_long_as_wished() -> None:
    found = costs.durations(costs.QUEUES[0], 1, ticking())

    assert set(found.decisions) == set(found.polls) == set(found.offers) == {1.0}
    assert 50 < len(found.decisions) < len(found.polls)


def test_a_queue_at_which_nothing_was_timed_reaches_no_goal() -> None:
    fast = costs.Durations(decisions=[1e-6], polls=[1e-6], offers=[1e-6])
    never = costs.Durations(decisions=[], polls=[], offers=[])

    assert [row.holds for row in costs.rows({"10": fast})] == [True, True, None, True]
    assert [row.holds for row in costs.rows({"10": fast, "80": never})] == [
        *(True, True, None),
        *(False, False, None),
        False,
    ]
