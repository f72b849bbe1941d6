"""Routers in front of pods."""

from collections import Counter

from batchedmodel_scheduling.simulator.engine import Request, Router
from batchedmodel_scheduling.simulator.routers import (
    LeastOutstanding,
    PowerOfTwo,
    Random,
    RoundRobin,
)
from batchedmodel_scheduling.simulator.streams import stream

REQUEST = Request(at=0, length=1, due=1, deadline=1)


def chosen(router: Router, outstanding: list[int], times: int) -> list[int]:
    return [router.route(REQUEST, outstanding) for _ in range(times)]


def test_round_robin_takes_one_pod_after_the_other() -> None:
    assert chosen(RoundRobin(), [9, 0, 0], 4) == [0, 1, 2, 0]


def test_random_takes_every_pod_alike() -> None:
    counts = Counter(chosen(Random(stream(1, "router")), [9, 0, 0], 3000))
    assert set(counts) == {0, 1, 2}
    assert all(900 < count < 1100 for count in counts.values())


def test_least_outstanding_takes_the_emptiest_and_equals_in_turn() -> None:
    assert chosen(LeastOutstanding(), [3, 1, 2], 2) == [1, 1]
    assert chosen(LeastOutstanding(), [0, 0, 0], 4) == [0, 1, 2, 0]


def test_power_of_two_never_takes_the_fullest() -> None:
    counts = Counter(chosen(PowerOfTwo(stream(1, "router")), [5, 9, 7], 3000))
    assert set(counts) == {0, 2}
    assert 1800 < counts[0] < 2200


def test_one_pod_is_enough_for_power_of_two() -> None:
    assert chosen(PowerOfTwo(stream(1, "router")), [4], 2) == [0, 0]
