"""The last minute of offered work, second by second."""

from batchedmodel_contract.processes.stats import BUCKETS
from batchedmodel_sidecar.telemetry.work_meter import WorkMeter


def test_work_lies_in_the_second_in_which_it_came() -> None:
    meter = WorkMeter(100.0)
    meter.add(1.0, 100.2)
    meter.add(2.0, 100.9)
    meter.add(4.0, 102.0)
    assert meter.buckets(102.5)[-3:] == (3.0, 0.0, 4.0)


def test_a_minute_later_nothing_is_left_but_the_total() -> None:
    meter = WorkMeter(0.0)
    meter.add(1.0, 0.5)
    assert sum(meter.buckets(59.9)) == 1.0
    assert sum(meter.buckets(60.0)) == 0.0
    assert sum(meter.buckets(1e6)) == 0.0
    assert meter.total == 1.0


def test_the_oldest_second_comes_first() -> None:
    meter = WorkMeter(0.0)
    for second in range(90):
        meter.add(float(second), second + 0.5)
    assert meter.buckets(89.9) == tuple(float(second) for second in range(30, 90))
    assert len(meter.buckets(89.9)) == BUCKETS


def test_a_request_refused_unread_counts_as_an_average_one() -> None:
    meter = WorkMeter(0.0)
    meter.add_unseen(0.1)
    assert meter.total == 0.0, "nothing is known of the requests yet"
    meter.add(1.0, 0.2)
    meter.add(3.0, 0.3)
    meter.add_unseen(0.4)
    assert meter.total == 6.0
