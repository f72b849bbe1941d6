"""What a run was worth."""

import pytest

from batchedmodel_cli.simulator.engine import Run
from batchedmodel_cli.simulator.verdicts import verdict
from batchedmodel_cli.simulator.workload import requests
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.queue.items import Priority

MILLISECOND = 1_000_000
TIMES = [n * 10 * MILLISECOND for n in range(6)]
REQUESTS = requests(
    TIMES,
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
    batches=[1, 2],
    busy=45 * MILLISECOND,
    until=90 * MILLISECOND,
)


def test_every_share_counts_what_it_says() -> None:
    found = verdict(REQUESTS, RUN)
    assert found.in_time_share == pytest.approx(2 / 6)
    assert found.refused_share == pytest.approx(1 / 6)
    assert found.shed_share == pytest.approx(1 / 6)
    assert found.expired_share == pytest.approx(1 / 6)
    assert found.late_share == pytest.approx(1 / 6)
    assert found.longest_in_time_share == pytest.approx(1 / 2), "of the two of length 500"


def test_goodput_is_per_second_until_the_last_answer_in_time() -> None:
    assert verdict(REQUESTS, RUN).goodput == pytest.approx(2 / 0.09)


def test_goodput_does_not_count_the_time_that_patient_callers_would_have_waited() -> None:
    patient = requests(TIMES, [5] * 6, 30.0)
    assert verdict(patient, RUN).goodput == pytest.approx(3 / 0.09)


def test_goodput_is_per_second_until_the_last_arrival_where_nothing_came_later() -> None:
    run = Run(
        released=[0, *[-1] * 5],
        finished=[10 * MILLISECOND, *[-1] * 5],
        ended=[Outcome.COMPLETED, *[Rejection.QUEUE_FULL] * 5],
    )
    assert verdict(REQUESTS, run).goodput == pytest.approx(1 / 0.05)


def test_latency_is_of_completed_requests() -> None:
    latency = verdict(REQUESTS, RUN).latency
    assert latency is not None
    assert latency.mean == pytest.approx((0.05 + 0.08 + 0.04) / 3)
    assert latency.p50 == pytest.approx(0.05)
    assert latency.p50 <= latency.p95 <= latency.p99 <= 0.08


def test_devices_share_their_busy_time() -> None:
    assert verdict(REQUESTS, RUN).busy_share == pytest.approx(0.5)
    assert verdict(REQUESTS, RUN, pods=2).busy_share == pytest.approx(0.25)
    assert verdict(REQUESTS, RUN).mean_batch == pytest.approx(1.5)


def test_a_run_in_which_nothing_was_served_has_no_latency() -> None:
    found = verdict(REQUESTS[:1], Run(released=[-1], finished=[-1], ended=[Rejection.QUEUE_FULL]))
    assert found.latency is None
    assert (found.in_time_share, found.goodput, found.busy_share, found.mean_batch) == (0, 0, 0, 0)
    assert found.longest_in_time_share == 0
