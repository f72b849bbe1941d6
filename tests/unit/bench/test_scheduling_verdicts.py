"""What a run was worth, by length and by priority."""

import pytest

from batchedmodel_cli.simulator.engine import Run
from batchedmodel_cli.simulator.workload import requests
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.queue.items import Priority
from scheduling_bench.verdicts import verdict

MILLISECOND = 1_000_000
REQUESTS = requests(
    [n * 10 * MILLISECOND for n in range(6)],
    [5, 50, 500, 5, 50, 500],
    0.05,
    priorities=[Priority.HIGH, *[Priority.NORMAL] * 4, Priority.LOW],
)
# On time to the nanosecond, late, shed, refused, expired, on time.
RUN = Run(
    released=[10 * MILLISECOND, 20 * MILLISECOND, -1, -1, -1, 20 * MILLISECOND],
    finished=[50 * MILLISECOND, 90 * MILLISECOND, -1, -1, -1, 90 * MILLISECOND],
    ended=[
        Outcome.COMPLETED,
        Outcome.COMPLETED,
        Outcome.SHED,
        Rejection.QUEUE_FULL,
        Outcome.EXPIRED,
        Outcome.COMPLETED,
    ],
)


def test_buckets_and_priorities_are_judged_apart() -> None:
    found = verdict(REQUESTS, RUN, edges=(10, 100))
    assert found.by_length == {10: 0.5, 100: 0.25}
    assert found.worst_to_best_length == pytest.approx(0.5)
    assert found.by_priority == {Priority.HIGH: 1, Priority.NORMAL: 0, Priority.LOW: 1}


def test_late_are_counted_among_those_that_were_taken() -> None:
    assert verdict(REQUESTS, RUN).late_after_admission_share == pytest.approx(2 / 5)
    refused = Run(released=[-1], finished=[-1], ended=[Rejection.QUEUE_FULL])
    found = verdict(REQUESTS[:1], refused)
    assert (found.late_after_admission_share, found.worst_to_best_length) == (0, 0)
