"""The flight recorder: the last rows, their end, and nothing that a replay should not meet."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_contract.processes.sidecar_api import ARRIVALS_COLUMNS
from batchedmodel_scheduling.queue.items import Priority
from batchedmodel_sidecar.telemetry.ledger import RecentArrivals

HIGH, NORMAL, LOW = Priority


def rows(recorder: RecentArrivals) -> list[tuple[str, ...]]:
    head, *found = csv.reader(io.StringIO(b"".join(recorder.csv()).decode()))
    assert tuple(head) == ARRIVALS_COLUMNS
    return [tuple(row) for row in found]


def test_each_row_of_a_call_is_noted_with_what_became_of_the_call() -> None:
    recorder = RecentArrivals(100.0)
    first = recorder.accepted([7, 9], HIGH, 100.25)
    assert rows(recorder) == [("0.250000", "7", "1", "pending"), ("0.250000", "9", "1", "pending")]
    recorder.settled(first, 2, Outcome.SHED)
    assert rows(recorder) == [("0.250000", "7", "1", "shed"), ("0.250000", "9", "1", "shed")]


def test_refused_rows_are_arrivals_too() -> None:
    recorder = RecentArrivals(0.0)
    recorder.refused([3], LOW, Rejection.PREDICTED_LATE, 1.0)
    assert rows(recorder) == [("1.000000", "3", "3", "predicted_late")]


def test_a_call_refused_unread_has_the_length_of_the_row_before_it() -> None:
    recorder = RecentArrivals(0.0)
    recorder.refused_unread(Rejection.QUEUE_FULL, 1, 1.0)
    recorder.accepted([64], NORMAL, 2.0)
    recorder.refused_unread(Rejection.QUEUE_FULL, 1, 3.0)
    assert [row[1] for row in rows(recorder)] == ["1", "64", "64"]


@pytest.mark.parametrize(
    "reason", [Rejection.INVALID, Rejection.TOO_LARGE, Rejection.ABANDONED], ids=str
)
def test_what_no_pod_would_have_served_is_left_out(reason: Rejection) -> None:
    recorder = RecentArrivals(0.0)
    recorder.refused([3], NORMAL, reason, 1.0)
    recorder.refused_unread(reason, 1, 1.0)
    assert rows(recorder) == []


def test_the_ring_forgets_the_oldest_rows_and_their_late_end_harms_nobody() -> None:
    recorder = RecentArrivals(0.0, capacity=4)
    first = recorder.accepted([1, 2, 3], NORMAL, 1.0)
    recorder.accepted([4, 5, 6], NORMAL, 2.0)
    recorder.settled(first, 3, Outcome.COMPLETED)
    assert [(row[1], row[3]) for row in rows(recorder)] == [
        ("3", "completed"), ("4", "pending"), ("5", "pending"), ("6", "pending"),
    ]  # fmt: skip


def test_rows_may_arrive_while_the_ring_is_read() -> None:
    recorder = RecentArrivals(0.0, capacity=1000)
    for number in range(1000):
        recorder.accepted([number + 1], NORMAL, float(number))
    pieces = recorder.csv()
    read = next(pieces) + next(pieces)
    for number in range(1000, 1700):
        recorder.accepted([number + 1], NORMAL, float(number))
    read += b"".join(pieces)
    lengths = [int(row["length"]) for row in csv.DictReader(io.StringIO(read.decode()))]
    assert lengths == [*range(1, 201), *range(701, 1001)]


@given(st.lists(st.integers(1, 5), max_size=30), st.integers(1, 7))
def test_the_ring_always_holds_the_last_rows_in_order(calls: list[int], capacity: int) -> None:
    recorder = RecentArrivals(0.0, capacity=capacity)
    lengths: list[int] = []
    for size in calls:
        new = list(range(len(lengths) + 1, len(lengths) + size + 1))
        first = recorder.accepted(new, NORMAL, float(len(lengths)))
        lengths += new
        recorder.settled(first, size, Outcome.COMPLETED)
    assert [int(row[1]) for row in rows(recorder)] == lengths[-capacity:]
    assert {row[3] for row in rows(recorder)} <= {"completed"}


@pytest.mark.slow
def test_its_memory_is_what_it_says() -> None:
    recorder = RecentArrivals(0.0)
    recorder.accepted([1] * 150_000, NORMAL, 1.0)
    parts = (recorder._seconds, recorder._lengths, recorder._priorities, recorder._verdicts)
    assert sum(memoryview(part).nbytes for part in parts) == 1_800_000
    assert len(rows(recorder)) == 100_000
