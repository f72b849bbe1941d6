"""Arrival processes."""

import numpy as np
import pytest

from batchedmodel_cli.simulator.arrivals import Arrivals, Gamma, Poisson, Replay
from batchedmodel_cli.simulator.workload import stream
from batchedmodel_contract.invalid_input import InvalidInput
from scheduling_bench.bursts import Clumps, Mmpp

PROCESSES: list[Arrivals] = [
    Poisson(),
    Gamma(cv=4),
    Mmpp(),
    Clumps(),
    Replay(recorded=(5, 7, 8, 20, 25)),
]
each_process = pytest.mark.parametrize("process", PROCESSES, ids=lambda p: type(p).__name__)


def drawn(process: Arrivals, count: int, rate: float, seed: int = 1) -> np.ndarray:
    return np.array(process.times(count, rate, stream(seed, "arrivals")))


def counted(times: np.ndarray, seconds: float) -> np.ndarray:
    """Arrivals in each window of so many seconds."""
    return np.bincount((times / (seconds * 1e9)).astype(int))[:-1]


@each_process
def test_times_ascend_and_have_the_mean_rate(process: Arrivals) -> None:
    times = drawn(process, 200_000, 500)
    assert len(times) == 200_000
    assert times[0] >= 0
    assert np.all(np.diff(times) >= 0)
    assert 200_000 / (times[-1] / 1e9) == pytest.approx(500, rel=0.03)


@each_process
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_draw_may_be_short(process: Arrivals, count: int) -> None:
    assert len(drawn(process, count, 500)) == count


@each_process
def test_a_draw_repeats_for_an_equal_stream_only(process: Arrivals) -> None:
    again = drawn(process, 1000, 500)
    assert np.array_equal(drawn(process, 1000, 500), again)
    if not isinstance(process, Replay):
        assert not np.array_equal(drawn(process, 1000, 500, seed=2), again)


@pytest.mark.parametrize("process", [Poisson(), Gamma(cv=4)])
def test_another_rate_only_scales_the_pattern(process: Arrivals) -> None:
    slow, fast = drawn(process, 1000, 100), drawn(process, 1000, 200)
    assert np.allclose(slow, 2 * fast, atol=2)


@pytest.mark.parametrize(("cv", "process"), [(1, Poisson()), (1, Gamma(cv=1)), (4, Gamma(cv=4))])
def test_gaps_vary_as_said(cv: float, process: Arrivals) -> None:
    gaps = np.diff(drawn(process, 200_000, 500))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_the_two_states_of_mmpp_differ_by_the_ratio() -> None:
    in_windows = counted(drawn(Mmpp(ratio=5, sojourn_seconds=50), 200_000, 300), 1)
    assert np.quantile(in_windows, 0.2) == pytest.approx(100, rel=0.1)
    assert np.quantile(in_windows, 0.8) == pytest.approx(500, rel=0.1)


def test_mmpp_is_as_often_in_one_state_as_in_the_other() -> None:
    in_windows = counted(drawn(Mmpp(ratio=5, sojourn_seconds=0.5), 300_000, 300), 0.1)
    assert np.mean(in_windows > 30) == pytest.approx(0.5, abs=0.03)


def test_clumps_have_the_mean_size_and_spread() -> None:
    times = drawn(Clumps(mean_size=8, spread_seconds=0.001), 80_000, 8)
    begins = np.flatnonzero(np.diff(times, prepend=-(10**9)) > 1_000_000)
    assert len(times) / len(begins) == pytest.approx(8, rel=0.03)
    ends = np.append(begins[1:], len(times)) - 1
    widths = times[ends] - times[begins]
    # Groups that follow each other within the spread look like one.
    assert np.quantile(widths, 0.99) <= 1_000_000


def test_a_replay_keeps_the_pattern_and_begins_anew_at_its_end() -> None:
    times = drawn(Replay(recorded=(100, 110, 140)), 7, 1e9 / 40)
    assert times.tolist() == [0, 20, 80, 120, 140, 200, 240]


@pytest.mark.parametrize("recorded", [(), (5,), (5, 5)])
def test_a_replay_needs_two_different_times(recorded: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="trace: must have arrivals at two different times"):
        Replay(recorded=recorded)
