"""Requests out of times, lengths and targets."""

from batchedmodel_scheduling.core.policy import Priority
from batchedmodel_scheduling.simulator.arrivals import Mmpp, Poisson, Replay
from batchedmodel_scheduling.simulator.lengths import Lognormal, Recorded
from batchedmodel_scheduling.simulator.workload import Workload, requests

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
