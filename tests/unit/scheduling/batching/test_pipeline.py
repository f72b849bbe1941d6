"""Following batches on their way, and knowing when the next may leave."""

import pytest

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batching.decisions import Batch, BatchId, Finished, HandedOver, Slots
from batchedmodel_scheduling.batching.policy import Pipeline
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.items import NEVER
from support.scheduling import row_profile
from support.strategies import an_item

IDLE, BUSY, TAKEN = (Slots(depth=2, in_flight=n) for n in range(3))
# Every batch takes 100 ms.
PROFILE = row_profile(0.1, 0.0, rows=(1, 4, 8))
HAND_OFF = 0.001


def pipeline(profile: Profile | None = PROFILE) -> Pipeline:
    return Pipeline(BatchTimes(profile))


def send(line: Pipeline, now: float, rows: int = 1) -> Batch:
    batch = line.release([an_item(n) for n in range(rows)], ReleaseReason.IDLE)
    line.observe(HandedOver(batch=batch.id), now)
    return batch


def finish(line: Pipeline, batch: Batch, now: float, compute: float | None = 0.1) -> None:
    line.observe(Finished(batch=batch.id, compute_seconds=compute), now)


def test_an_idle_server_wants_a_batch_now() -> None:
    assert pipeline().opens_at(IDLE, 3.0) == 3.0


def test_a_server_without_a_free_slot_wants_none() -> None:
    assert pipeline().opens_at(TAKEN, 3.0) == NEVER
    assert pipeline().opens_at(Slots(depth=0, in_flight=0), 3.0) == NEVER


def test_a_batch_that_is_not_yet_handed_over_has_no_end() -> None:
    line = pipeline()
    line.release([an_item(1)], ReleaseReason.IDLE)
    assert line.opens_at(BUSY, 3.0) == NEVER


def test_the_next_batch_leaves_one_hand_off_before_the_predicted_end() -> None:
    line = pipeline()
    send(line, 3.0)
    assert line.opens_at(BUSY, 3.0) == pytest.approx(3.1)


def test_a_predicted_end_in_the_past_means_now() -> None:
    line = pipeline()
    send(line, 3.0)
    assert line.opens_at(BUSY, 9.0) == 9.0


def test_without_predictions_the_next_batch_waits_for_the_end() -> None:
    line = pipeline(None)
    send(line, 3.0)
    assert line.opens_at(BUSY, 9.0) == NEVER


def test_a_second_batch_is_expected_to_run_behind_the_first() -> None:
    line = pipeline()
    first = send(line, 3.0)
    send(line, 3.05)
    deeper = Slots(depth=3, in_flight=2)
    assert line.opens_at(deeper, 3.05) == pytest.approx(3.2)
    # It really began when the first ended, here 20 ms later than predicted.
    finish(line, first, 3.12)
    assert line.opens_at(BUSY, 3.12) == pytest.approx(3.22, abs=0.003)


def test_the_hand_off_is_learnt_from_what_the_way_takes() -> None:
    line = pipeline()
    for number in range(100):
        batch = send(line, float(number))
        finish(line, batch, number + 0.120, compute=0.1)
    send(line, 200.0)
    # There and back take 20 ms, so the device is free 100 ms after the batch reached it.
    assert line.opens_at(BUSY, 200.0) == pytest.approx(200.1, abs=1e-4)
    send(line, 200.0)
    assert line.opens_at(Slots(depth=3, in_flight=2), 200.0) == pytest.approx(200.2, abs=1e-4)


def test_the_time_in_the_servers_queue_is_no_part_of_the_hand_off() -> None:
    line = pipeline()
    for number in range(100):
        batch = send(line, float(number))
        done = Finished(batch=batch.id, compute_seconds=0.1, queue_seconds=0.5)
        line.observe(done, number + 0.602)
    send(line, 200.0)
    finish(line, send(line, 200.0), 200.0)
    assert line.opens_at(BUSY, 200.0) == pytest.approx(200.098, abs=2e-3)


def test_the_rate_counts_the_time_in_which_the_device_was_busy() -> None:
    line = pipeline()
    first, second = send(line, 0.0, rows=4), send(line, 0.05, rows=4)
    finish(line, first, 0.1)
    finish(line, second, 0.2)
    assert line.drain_seconds(80) == pytest.approx(80 * 0.2 / 8)


def test_without_a_served_batch_no_rate_is_known() -> None:
    line = pipeline()
    finish(line, send(line, 0.0), 0.1, compute=None)
    assert line.drain_seconds(80) is None


def test_a_rate_forgets_what_is_long_past() -> None:
    line = pipeline()
    for number in range(40):
        took = 5.0 if number < 8 else 0.1
        finish(line, send(line, 10.0 * number), 10.0 * number + took, compute=took)
    assert line.drain_seconds(1) == pytest.approx(0.1)


def test_events_of_unknown_batches_are_ignored() -> None:
    line = pipeline()
    line.observe(HandedOver(batch=BatchId(99)), 1.0)
    line.observe(Finished(batch=BatchId(99), compute_seconds=0.1), 1.0)
    assert line.opens_at(IDLE, 1.0) == 1.0
    assert line.drain_seconds(1) is None


def test_a_batch_that_ends_twice_counts_once() -> None:
    line = pipeline()
    batch = send(line, 0.0)
    finish(line, batch, 0.1)
    finish(line, batch, 7.0)
    assert line.drain_seconds(1) == pytest.approx(0.1)


def test_a_batch_that_fails_before_it_was_sent_is_forgotten() -> None:
    line = pipeline()
    batch = line.release([an_item(1)], ReleaseReason.IDLE)
    finish(line, batch, 0.1, compute=None)
    send(line, 1.0)
    assert line.opens_at(BUSY, 1.0) == pytest.approx(1.1)


def test_a_successor_continues_the_numbers_of_its_predecessor() -> None:
    line = pipeline()
    first = send(line, 0.0)
    successor = Pipeline(BatchTimes(None), ids=line.ids)
    assert send(successor, 0.0).id > first.id
