"""The plan for everything that waits."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_scheduling.batching.next_batch import Plan, Situation, plan
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.items import Priority
from batchedmodel_scheduling.queue.ready_queue import Limits, QueuedItem
from support.examples import examples
from support.scheduling import an_entry, measured, queue_of

FIXED, PER_TOKEN = 0.002, 0.0001


def profile(rule: CostRule) -> Profile:
    points = [(rows, length) for rows in (1, 8) for length in (1, 40)]
    return measured([(r, n, FIXED + PER_TOKEN * r * n) for r, n in points], rule)


def situation(
    rule: CostRule = CostRule.PADDED,
    *,
    rows: int = 4,
    cost: int | None = None,
    target: float | None = None,
    by_due: bool = False,
    hurried: bool = True,
    workers: int = 1,
) -> Situation:
    return Situation(
        free=[0.0] * workers,
        start_spread=0.0,
        rate=100.0,
        target=target,
        times=BatchTimes(profile(rule)),
        limits=Limits(rows=rows, cost=cost, rule=rule),
        by_due=by_due,
        hurried=hurried,
    )


waiting = st.lists(
    st.tuples(
        st.sampled_from("aaab"),
        st.sampled_from([1, 8, 9, 40]),
        st.floats(0.007, 0.1),
        st.sampled_from(Priority),
    ),
    min_size=1,
    max_size=40,
)
situations = st.builds(
    situation,
    st.sampled_from(CostRule),
    rows=st.integers(1, 8),
    cost=st.sampled_from([None, 41, 100]),
    target=st.sampled_from([None, 0.02, 0.1]),
    hurried=st.booleans(),
    workers=st.sampled_from([1, 1, 3]),
)


def drawn_entries(drawn: list[tuple[str, int, float, Priority]]) -> list[QueuedItem]:
    return [
        an_entry(n, due, key=key, length=length, priority=priority, step=0.05)
        for n, (key, length, due, priority) in enumerate(drawn)
    ]


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(waiting, situations)
def test_any_plan_is_a_batch_that_may_run_and_gives_up_only_what_is_lost(
    drawn: list[tuple[str, int, float, Priority]], now: Situation
) -> None:
    found = plan(queue_of(drawn_entries(drawn)), now)
    batch = found.batch
    assert batch
    assert len(batch) == len({entry.id for entry in batch})
    assert len({entry.item.key for entry in batch}) == 1
    lengths = [entry.length for entry in batch]
    assert now.limits.fitting(lengths) == len(lengths)
    assert not {entry.id for entry in batch} & {entry.id for entry in found.given_up}
    # Those that are left out and could still be in time after this batch wait on.
    ends = (now.times.predict(lengths) or 0.0) * now.times.upper
    assert all(entry.due <= ends + 1e-9 for entry in found.given_up)
    assert found.pressed or not found.given_up
    assert found.slack >= 0


@settings(max_examples=examples(200))
@given(st.lists(st.floats(0.003, 0.03), min_size=10, max_size=40), st.integers(1, 8))
def test_a_worker_that_is_busy_for_long_changes_nothing_for_what_is_due_before(
    dues: list[float], rows: int
) -> None:
    lanes = queue_of([an_entry(n, due) for n, due in enumerate(sorted(dues))])
    one = replace(situation(rows=rows, by_due=True), rate=0.0)
    beside = replace(one, free=[0.0, 10.0])
    assert plan(lanes, beside).batch == plan(lanes, one).batch
    assert plan(lanes, beside).given_up == plan(lanes, one).given_up


@settings(max_examples=examples(100))
@given(waiting, situations)
def test_a_batch_is_in_time_for_all_its_members_unless_that_is_a_guess(
    drawn: list[tuple[str, int, float, Priority]], now: Situation
) -> None:
    """The look ahead weighs chances; where nothing is given up nobody is late."""
    found = plan(queue_of(drawn_entries(drawn)), now)
    if now.hurried and not found.pressed:
        ends = found.table[len(found.batch)]
        assert all(ends + found.slack <= entry.due + 1e-12 for entry in found.batch)


def one_length(dues: list[float]) -> list[QueuedItem]:
    return [an_entry(n, due, length=1) for n, due in enumerate(dues)]


def planned(entries: list[QueuedItem], now: Situation) -> Plan:
    return plan(queue_of(entries), now)


def test_slack_is_what_the_first_of_all_batches_has_to_spare() -> None:
    now = situation(rows=2, by_due=True)
    found = planned(one_length([0.1, 0.1, 0.006, 0.1]), now)
    margin = now.times.upper
    assert [entry.id for entry in found.batch] == [2, 0]
    assert found.slack == pytest.approx(0.006 - (FIXED + 2 * PER_TOKEN) * margin)


def test_batches_keep_others_waiting_for_no_more_than_half_of_the_target() -> None:
    entries = [an_entry(n, 1.0, length=40, key="ab"[n % 2]) for n in range(8)]
    assert len(planned(entries, situation(target=None)).batch) == 4
    # One takes 6 ms, two take 10 ms.
    assert len(planned(entries, situation(target=0.022)).batch) == 2
    assert len(planned(entries, situation(target=0.019)).batch) == 1


def test_where_one_row_takes_more_than_half_of_the_target_all_of_it_is_used() -> None:
    entries = [an_entry(n, 1.0, length=40, key="ab"[n % 2]) for n in range(8)]
    assert len(planned(entries, situation(target=0.011)).batch) == 2
    assert len(planned(entries, situation(target=0.005)).batch) == 4


@pytest.mark.parametrize("rule", [CostRule.PACKED, CostRule.PADDED])
def test_one_due_soon_is_not_given_up_for_the_company_of_those_who_can_wait(
    rule: CostRule,
) -> None:
    """All together take 10 ms at least; the first by itself 2 ms."""
    patient = [an_entry(n, 5.0, length=40) for n in (1, 2)]
    found = planned([an_entry(0, 0.005, length=1), *patient], situation(rule))
    assert [entry.id for entry in found.batch] == [0]
    assert not found.given_up


def test_where_not_all_will_be_in_time_a_batch_of_several_lengths_holds_more_of_them() -> None:
    """Batches of a length each take 3 and 3.5 ms, of which one is in time; 8 rows together 4.4."""
    entries = [an_entry(n, 0.006, length=2 + n % 2) for n in range(10)]
    now = situation(rows=8, by_due=True)
    assert len(planned(entries, now).batch) == 8
    in_time = [an_entry(n, 1.0, length=2 + n % 2) for n in range(10)]
    assert len(planned(in_time, now).batch) == 5


def test_a_device_whose_times_are_unknown_has_a_plan_where_not_all_will_be_in_time() -> None:
    """What brings most per second was asked of batches that take no time yet."""
    entries = [an_entry(0, 0.0, length=1), an_entry(1, 0.5, length=2)]
    now = replace(situation(rows=1, by_due=True), times=BatchTimes(None), free=[0.1])
    assert planned(entries, now).batch
