"""A server that runs several batches side by side: when one of its workers is free."""

import heapq
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, PolicyName
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batching.decisions import Batch, Finished, HandedOver, Slots
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.batching.policy import Pipeline
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.items import NEVER
from support.scheduling import row_profile
from support.strategies import an_item

PER_ROW = 0.1
# A batch takes 100 ms a row.
PROFILE = row_profile(0.0, PER_ROW, rows=(1, 4, 8))
HAND_OFF = 0.001


def pipeline(workers: int) -> Pipeline:
    line = Pipeline(BatchTimes(PROFILE))
    line.most_workers = workers
    return line


def send(line: Pipeline, now: float, rows: int = 1) -> Batch:
    batch = line.release([an_item(n) for n in range(rows)], ReleaseReason.IDLE)
    line.observe(HandedOver(batch=batch.id), now)
    return batch


def finish(line: Pipeline, batch: Batch, now: float) -> None:
    took = PER_ROW * len(batch.items)
    line.observe(Finished(batch=batch.id, compute_seconds=took), now)


def test_each_worker_takes_a_batch_at_once_and_no_more() -> None:
    line = pipeline(3)
    for sent in range(3):
        assert line.opens_at(Slots(depth=3, in_flight=sent), 5.0) == 5.0
        assert line.starts_at(5.0) == 5.0 + HAND_OFF
        send(line, 5.0)
    assert line.opens_at(Slots(depth=3, in_flight=3), 5.0) == NEVER


def test_the_next_batch_begins_where_a_worker_is_free_first() -> None:
    line = pipeline(2)
    send(line, 0.0, rows=4)
    assert line.starts_at(0.0) == HAND_OFF
    short = send(line, 0.0, rows=1)
    assert line.starts_at(0.0) == pytest.approx(0.1, abs=0.002)
    finish(line, short, 0.1)
    assert line.starts_at(0.1) == 0.1 + line.hand_off
    send(line, 0.1, rows=8)
    assert line.starts_at(0.1) == pytest.approx(0.4, abs=0.002), "as was foretold at its beginning"


def test_an_end_says_nothing_of_the_other_workers() -> None:
    line = pipeline(2)
    long = send(line, 0.0, rows=8)
    finish(line, send(line, 0.0, rows=1), 0.1)
    send(line, 0.1, rows=8)
    assert line.starts_at(0.2) == pytest.approx(0.8, abs=0.002)
    finish(line, long, 0.8)
    assert line.starts_at(0.8) == 0.8 + line.hand_off


def test_how_sure_the_beginning_is_matters_only_while_no_worker_is_free() -> None:
    line = pipeline(2)
    send(line, 0.0)
    assert line.unsure_by() == 0.0
    send(line, 0.0)
    assert line.unsure_by() > 0.0


def test_two_workers_serve_what_waits_in_half_the_time() -> None:
    alone, both = pipeline(1), pipeline(2)
    finish(alone, send(alone, 0.0, rows=4), 0.4)
    first, second = send(both, 0.0, rows=4), send(both, 0.1, rows=4)
    finish(both, first, 0.4)
    finish(both, second, 0.5)
    assert alone.drain_seconds(80) == pytest.approx(8.0)
    assert both.drain_seconds(80) == pytest.approx(4.0)


def test_what_runs_on_workers_that_are_no_longer_wanted_runs_out() -> None:
    line = pipeline(3)
    batches = [send(line, 0.0, rows) for rows in (1, 2, 3)]
    line.most_workers = 1
    for done, batch in enumerate(batches):
        slots = Slots(depth=1, in_flight=3 - done)
        assert line.opens_at(slots, 0.05) == NEVER
        finish(line, batch, 0.1 * (done + 1))
    assert line.opens_at(Slots(depth=1, in_flight=0), 0.3) == 0.3


def test_what_has_long_been_running_does_not_begin_anew_where_workers_become_fewer() -> None:
    line = pipeline(3)
    batches = [send(line, 0.0, rows) for rows in (10, 9, 9)]
    line.most_workers = 1
    assert line.starts_at(0.5) == pytest.approx(1.0, abs=0.01)
    finish(line, batches[1], 0.9)
    assert line.starts_at(0.9) == pytest.approx(1.0, abs=0.01)


def test_of_those_that_wait_only_the_first_begins_where_a_worker_is_free() -> None:
    line = pipeline(2)
    batches = [send(line, 0.0, rows) for rows in (1, 3, 4, 2, 1)]
    finish(line, batches[0], 0.1)
    # The third runs until 0.5, the fourth behind the second until 0.5, the fifth then until 0.6.
    assert line.free_from(0.1) == pytest.approx([0.5, 0.6], abs=0.005)
    finish(line, batches[1], 0.3)
    assert line.free_from(0.3) == pytest.approx([0.5, 0.6], abs=0.005)
    for batch, ends in zip(batches[2:], (0.5, 0.5, 0.6), strict=True):
        finish(line, batch, ends)
    # Each row took a worker 0.1 s.
    assert line.drain_seconds(80) == pytest.approx(4.0)


rows_in_turn = st.lists(st.tuples(st.integers(1, 8), st.floats(0, 0.5)), max_size=25)


@pytest.mark.slow
@given(
    rows_in_turn, st.sampled_from([(1, 1), (1, 2), (1, 4), (2, 2), (2, 3), (2, 5), (3, 3), (5, 5)])
)
def test_the_beginning_is_foretold_as_a_queue_with_so_many_servers_has_it(
    coming: list[tuple[int, float]], server: tuple[int, int]
) -> None:
    """Against a queue that is played through; a batch takes just what the profile says."""
    workers, depth = server
    line = pipeline(workers)
    # Where hand-offs take nothing; that of the pipeline is learnt, and unlearnt in time.
    free = [0.0] * workers
    running: list[tuple[float, int, Batch]] = []
    now = 0.0
    for number, (rows, gap) in enumerate(coming):
        now += gap
        while running and (running[0][0] <= now or len(running) == depth):
            ends, _, batch = heapq.heappop(running)
            finish(line, batch, ends)
            now = max(now, ends)
        assert line.starts_at(now) == pytest.approx(
            max(now, free[0]), abs=(number + 1) * 2 * HAND_OFF
        )
        ends = max(now, free[0]) + PER_ROW * rows
        heapq.heapreplace(free, ends)
        heapq.heappush(running, (ends, number, send(line, now, rows)))


@pytest.mark.slow
@given(rows_in_turn, st.integers(1, 5))
def test_the_expected_beginning_only_moves_back_while_nothing_ends(
    coming: list[tuple[int, float]], workers: int
) -> None:
    line = pipeline(workers)
    now = 0.0
    for rows, gap in coming:
        before = line.free_from(now)
        assert before == sorted(before)
        assert len(before) == workers
        later = line.free_from(now + gap)
        assert all(a <= b for a, b in zip(before, later, strict=True))
        now += gap
        send(line, now, rows)
        assert all(a <= b for a, b in zip(later, line.free_from(now), strict=True))
        assert line.starts_at(now) >= now + line.hand_off


@pytest.mark.slow
@given(rows_in_turn)
def test_one_worker_begins_when_the_last_of_all_batches_ends(
    coming: list[tuple[int, float]],
) -> None:
    line = pipeline(1)
    now = expected = 0.0
    for rows, gap in coming:
        now += gap
        expected = max(now + HAND_OFF, expected)
        assert line.starts_at(now) == expected
        send(line, now, rows)
        expected += line.times.predict([1] * rows) or 0.0


WITHIN = BatchSettings(
    policy=PolicyName.DEADLINE,
    max_batch_size=4,
    max_wait_seconds=0.0,
    target_seconds=0.6,
    lateness=Lateness.REFUSE,
)
"""Full batches take 400 ms: the target leaves time for one, and none behind it on one worker."""


def taken(workers: int, rows: int, *depths: int) -> int:
    """How many of so many rows an idle server takes that come at once.

    It could hold so many batches before, one number after the other.
    """
    policy = new_policy(replace(WITHIN, max_concurrent_batches=workers), PROFILE)
    # Nobody is refused by a server that has not run of late.
    finish(policy.pipeline, send(policy.pipeline, 0.0), PER_ROW)
    for depth in depths:
        policy.poll(PER_ROW, Slots(depth=depth, in_flight=0))
    items = [an_item(n, arrived=PER_ROW, due=0.7, deadline=0.7) for n in range(rows)]
    return sum(policy.offer(item, PER_ROW) is None for item in items)


def test_as_many_are_taken_as_all_workers_can_have_in_time() -> None:
    assert (taken(1, 40), taken(2, 40), taken(4, 40)) == (6, 12, 24)


def test_while_a_server_may_only_be_tried_no_more_are_taken_than_one_worker_has_in_time() -> None:
    assert taken(4, 40, 1) == taken(4, 40, 1, 0) == 6
    assert taken(4, 40, 1, 4) == 24
    assert taken(1, 40, 2) == 6, "a batch at hand is no worker"


def test_a_drain_is_not_foretold_by_workers_that_get_no_work() -> None:
    line = pipeline(4)
    finish(line, send(line, 0.0, rows=4), 0.4)
    line.opens_at(Slots(depth=1, in_flight=0), 0.4)
    assert line.drain_seconds(80) == pytest.approx(8.0)
    line.opens_at(Slots(depth=4, in_flight=0), 0.4)
    assert line.drain_seconds(80) == pytest.approx(2.0)


def test_nobody_is_given_up_whom_another_worker_can_have_in_time() -> None:
    policy = new_policy(replace(WITHIN, max_concurrent_batches=3), PROFILE)
    for number in range(12):
        assert policy.offer(an_item(number, due=0.6, deadline=0.6), 0.0) is None
    for sent in range(3):
        decision = policy.poll(0.0, Slots(depth=3, in_flight=sent))
        assert decision.shed == ()
        assert decision.release is not None
        assert len(decision.release.items) == 4
        policy.observe(HandedOver(batch=decision.release.id), 0.0)
