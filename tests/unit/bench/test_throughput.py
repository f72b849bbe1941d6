"""The benchmark of the data path: its devices, its requests, and how it judges what it found."""

import asyncio
import os
import time
from collections import defaultdict
from dataclasses import replace

import pytest

from batchedmodel_cli.simulator.engine import NANOSECONDS
from batchedmodel_contract.inference.tensors import HEADER_LENGTH
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_sidecar.protocols.v2 import read_body
from bench_report import Figure
from load_generator import Errors, Latency, LoadResult
from process_cpu import cpu_seconds
from same_arrivals import finished, latencies, microseconds, poisson
from scheduling_bench.affine import Affine
from throughput_figures import Found, Loaded, figures_of
from throughput_loads import BUSY, FIRST, LARGE, LONE, ONE_ROW, SECOND, SHAPES, SINGLE

SETTINGS = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=4)
CURVE = Affine(fixed=0.010, per_row=0.001)
FIRST_BUSY, SECOND_BUSY = BUSY


def result(rate: float, milliseconds: float = 5.0) -> LoadResult:
    latency = Latency(**dict.fromkeys(("mean", "p50", "p90", "p99", "p999", "max"), milliseconds))
    return LoadResult(
        requests=100,
        ok=100,
        statuses={200: 100},
        errors=Errors(connect=0, reset=0, timeout=0, protocol=0),
        seconds=1.0,
        rate=rate,
        latency=replace(latency, p50=milliseconds * 1e3, p99=milliseconds * 1e3),
        late_sends=0,
        bytes_received=0,
        cpu_share=0.1,
    )


def found(bare: float, second: float) -> Found:
    """One round in which everything but device 2 is at its best."""
    loads = defaultdict(list)
    for closed in (*BUSY, *LONE, SINGLE, *SHAPES, LARGE):
        rate = closed.device.limit / closed.ask.rows
        loads[closed.name].append(Loaded(result=result(rate), cpu_microseconds=100.0))
    loads[SECOND_BUSY.name] = [Loaded(result=result(second), cpu_microseconds=80.0)]
    for device in (FIRST, SECOND):
        loaded = Loaded(result=result(500.0, 6.0), cpu_microseconds=300.0, least=(5.5, 6.0))
        loads[f"{device.name}, 500/s"].append(loaded)
    return Found(
        loads=loads,
        bare=[Loaded(result=result(bare), cpu_microseconds=100.0)],
        bare_alone={
            name: [result(150.0, 0.5)]
            for name in ("device 1, lone request", "device 2, lone request")
        },
        bare_open={"device 1": [result(500.0, 0.5)], "device 2": [result(500.0, 0.5)]},
        halved=[],
        probes=[result(250.0, 4.0)],
        probes_alone=[result(250.0, 0.5)],
        idle=[0.001],
        busy=[0.5],
    )


def figure(figures: list[Figure], beginning: str) -> Figure:
    named = [figure for figure in figures if figure.name == beginning]
    (one,) = named or [one for one in figures if one.name.startswith(beginning)]
    return one


def test_limits_are_those_of_the_formulas() -> None:
    assert pytest.approx(3902.4, abs=0.1) == FIRST.limit
    assert pytest.approx(12307.7, abs=0.1) == SECOND.limit
    assert {device.settings.policy for device in (FIRST, SECOND)} == {PolicyName.DEADLINE}
    assert FIRST.settings == BatchSettings(max_batch_size=32)


@pytest.mark.parametrize("closed", [*BUSY, *SHAPES, LARGE], ids=lambda closed: closed.name)
def test_requests_hold_the_rows_that_they_are_counted_for(closed: object) -> None:
    assert isinstance(closed, type(FIRST_BUSY))
    headers = closed.ask.headers or {}
    _, (tensor,) = read_body(closed.ask.body, headers.get(HEADER_LENGTH), "inputs")
    assert tensor.shape[0] == closed.ask.rows


def test_images_are_600_kilobytes() -> None:
    assert len(SHAPES[-1].ask.body) == pytest.approx(600_000, rel=0.01)
    assert len(ONE_ROW.body) < 100


def test_large_bodies_have_13_mebibytes_of_json() -> None:
    assert len(LARGE.ask.body) == pytest.approx(13 * 2**20, rel=0.001)
    assert LARGE.ask.headers is None


@pytest.mark.parametrize(
    ("bare", "second", "goal", "holds"),
    [
        (20_000, 11_940, "at least 97", True),
        (20_000, 11_930, "at least 97", False),
        (9_000, 9_001, "at least 73.12", True),
        (9_000, 8_999, "at least 73.12", False),
    ],
)
def test_the_second_device_is_held_to_its_limit_or_to_the_bare_server(
    bare: float, second: float, goal: str, holds: bool
) -> None:
    figures = figures_of(found(bare, second))
    judged = figure(figures, "device 2, closed loop 512: share of the limit")
    assert (judged.goal, judged.holds) == (goal, holds)
    assert figure(figures, "bare server, closed").value == bare
    share = figure(figures, "device 2, closed loop 512: share of the bare")
    assert share.value == pytest.approx(100 * second / bare)


def test_what_is_added_is_counted_from_what_the_device_alone_takes() -> None:
    figures = figures_of(found(20_000, 12_000))
    assert figure(figures, "device 1, 500/s: added to the median").value == pytest.approx(0.5)
    assert figure(figures, "device 1, 500/s: added to the 99th percentile").value == pytest.approx(
        0.0
    )
    lone = figure(figures, "device 2, lone request: added to the median")
    assert lone.value == pytest.approx(5.0 - 2.05)
    assert lone.holds is False
    assert figure(
        figures, "device 2, lone request: median of the bare server"
    ).value == pytest.approx(0.5)
    lists = figure(figures, "device 1, lists of 32 rows: share")
    assert lists.value == pytest.approx(100.0)
    assert lists.goal is None


def test_the_loop_may_be_late_by_5_ms_at_most_under_large_bodies() -> None:
    some = found(20_000, 12_000)
    lag = "13 MiB JSON bodies: lag of the loop, p99"
    assert figure(figures_of(some), lag).value == pytest.approx(4.0)
    judged = figure(figures_of(some), "13 MiB JSON bodies: added to that lag")
    assert (judged.value, judged.unit, judged.holds) == (3.5, "ms", True)
    assert figure(figures_of(some), "no bodies: lag of the loop, p99").value == pytest.approx(0.5)
    some.probes.extend([result(250.0, 6.0), result(250.0, 7.0)])
    some.probes_alone.extend([result(250.0, 0.5)] * 2)
    judged = figure(figures_of(some), "13 MiB JSON bodies: added to that lag")
    assert (judged.value, judged.goal, judged.holds) == (5.5, "at most 5", False)


def test_what_a_request_costs_is_held_to_what_it_costs_the_bare_server() -> None:
    judged = figure(figures_of(found(20_000, 12_000)), "device 2, closed loop 512: CPU over")
    assert (judged.value, judged.goal, judged.holds) == (0.8, "at most 0.9", True)


def test_half_a_core_each_is_judged_where_it_could_be_had() -> None:
    some = found(20_000, 12_000)
    name = "device 1, closed loop 256, half a core each: share"
    assert not [one for one in figures_of(some) if one.name.startswith(name)]
    some.halved.append(result(FIRST.limit / 2))
    assert figure(figures_of(some), name).holds is False


def test_what_failed_is_counted_over_all_loads() -> None:
    some = found(20_000, 12_000)
    some.loads[FIRST_BUSY.name][0] = replace(
        some.loads[FIRST_BUSY.name][0], result=replace(result(3000), ok=93)
    )
    failed = figure(figures_of(some), "requests that failed")
    assert (failed.value, failed.holds) == (7, False)


def test_the_simulated_device_serves_what_came_together_in_one_batch() -> None:
    together = [0, 0, 0, NANOSECONDS]
    ended = finished(CURVE, SETTINGS, together)
    # The first leaves alone, for nothing says that others come at the same moment.
    assert latencies(together, ended).tolist() == pytest.approx([0.013, 0.013, 0.013, 0.011])


def test_arrivals_are_the_same_for_the_same_name_and_in_whole_microseconds() -> None:
    times = poisson(500.0, 2.0, seed=1, name="a")
    assert times == poisson(500.0, 2.0, seed=1, name="a") == sorted(times)
    assert times != poisson(500.0, 2.0, seed=1, name="b")
    assert [at * 1000 for at in microseconds(times)] == times


def test_the_cpu_of_a_process_is_that_of_its_threads() -> None:
    before, since = cpu_seconds(os.getpid()), time.process_time()
    asyncio.run(asyncio.to_thread(sum, range(10_000)))
    sum(range(3_000_000))
    spent = cpu_seconds(os.getpid()) - before
    assert spent == pytest.approx(time.process_time() - since, abs=0.02)
