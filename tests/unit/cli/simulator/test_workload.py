"""Requests out of times, lengths and targets; lengths, and the streams that all is drawn from."""

import math

import numpy as np
import pytest

from batchedmodel_cli.simulator.arrivals import Poisson, Replay
from batchedmodel_cli.simulator.workload import (
    Constant,
    Lognormal,
    Recorded,
    requests,
    stream,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_scheduling.queue.items import Priority
from scheduling_bench.bursts import Mmpp
from scheduling_bench.workload import Workload

LENGTHS = Lognormal(mu=4, sigma=1, lowest=1, highest=512)


def test_a_caller_waits_until_the_timeout_if_lateness_is_served() -> None:
    (request,) = requests([10], [3], 0.05, request_timeout_seconds=2)
    assert (request.due, request.deadline) == (50_000_010, 2_000_000_010)


def test_a_caller_waits_until_its_target_if_lateness_is_refused() -> None:
    (request,) = requests([10], [3], 0.05, refuse=True)
    assert (request.due, request.deadline) == (50_000_010, 50_000_010)


def test_nothing_is_due_after_its_deadline() -> None:
    (request,) = requests([10], [3], 5.0, request_timeout_seconds=2)
    assert request.due == request.deadline == 2_000_000_010


def test_priorities_go_with_their_requests() -> None:
    listed = requests([1, 2], [3, 4], 0.05, priorities=[Priority.LOW, Priority.HIGH])
    assert [request.priority for request in listed] == [Priority.LOW, Priority.HIGH]


def test_equal_seeds_draw_equal_requests() -> None:
    workload = Workload(arrivals=Mmpp(), lengths=LENGTHS, target_seconds=0.05)
    assert workload.draw(1, 200, 100) == workload.draw(1, 200, 100)
    assert workload.draw(1, 200, 100) != workload.draw(2, 200, 100)


def test_other_arrivals_leave_the_lengths_as_they_are() -> None:
    smooth = Workload(arrivals=Poisson(), lengths=LENGTHS, target_seconds=0.05).draw(1, 200, 100)
    bursty = Workload(arrivals=Mmpp(), lengths=LENGTHS, target_seconds=0.05).draw(1, 200, 900)
    assert [request.length for request in smooth] == [request.length for request in bursty]


def test_a_replayed_length_stays_with_its_time() -> None:
    workload = Workload(
        arrivals=Replay(recorded=(0, 10, 40)),
        lengths=Recorded(recorded=(7, 8, 9)),
        target_seconds=0.05,
    )
    drawn = workload.draw(1, 6, 1e9 / 20)
    assert [(request.at, request.length) for request in drawn] == [
        (0, 7), (10, 8), (40, 9), (60, 7), (70, 8), (100, 9),
    ]  # fmt: skip


def test_constant_lengths_are_equal() -> None:
    assert Constant(length=3).draw(4, stream(1, "lengths")) == [3, 3, 3, 3]


def test_lognormal_lengths_are_whole_and_stay_within_their_bounds() -> None:
    source = Lognormal(mu=math.log(90), sigma=0.9, lowest=8, highest=512)
    drawn = source.draw(50_000, stream(1, "lengths"))
    assert (min(drawn), max(drawn)) == (8, 512)
    assert np.median(drawn) == pytest.approx(90, rel=0.03)
    assert all(type(length) is int for length in drawn[:100])


def test_recorded_lengths_keep_their_order_and_begin_anew() -> None:
    assert Recorded(recorded=(4, 9, 2)).draw(5, stream(1, "lengths")) == [4, 9, 2, 4, 9]


def test_there_must_be_a_recorded_length() -> None:
    with pytest.raises(InvalidInput, match="trace: must hold at least one length"):
        Recorded(recorded=())


@pytest.mark.parametrize("source", [Constant(), Lognormal(mu=1, sigma=1, lowest=1, highest=9)])
def test_nothing_is_drawn_for_nobody(source: Constant | Lognormal) -> None:
    assert source.draw(0, stream(1, "lengths")) == []


def test_a_stream_repeats_for_an_equal_seed_and_name() -> None:
    assert stream(7, "arrivals").random(5).tolist() == stream(7, "arrivals").random(5).tolist()


def test_another_name_or_seed_is_another_stream() -> None:
    names = [(7, "arrivals"), (7, "lengths"), (8, "arrivals"), (70, "arrivals"), (-7, "arrivals")]
    assert len({stream(seed, name).random() for seed, name in names}) == len(names)


def test_a_stream_is_the_same_on_every_machine() -> None:
    assert stream(1, "arrivals").integers(1_000_000, size=3).tolist() == [638056, 68635, 154535]
