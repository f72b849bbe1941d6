"""Which items run next after a pass that failed, and what is learnt of the memory."""

import math
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_model_server.errors import ForwardFailed, NoSlotFree, OutOfMemory
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.execution.passes import RetryPlan


def cost_of(rule: CostRule, lengths: Sequence[int], rows: Sequence[int]) -> int:
    each = [lengths[row] for row in rows]
    return rule.paid(rows=len(rows), longest=max(each), total=sum(each))


class Course:
    """A whole batch on a device that holds so much and fails on bad rows."""

    def __init__(
        self,
        lengths: list[int],
        *,
        bad: frozenset[int] | set[int] = frozenset(),
        holds: int = 1 << 40,
        rule: CostRule = CostRule.ROWS,
        cap: MemoryCap | None = None,
        idempotent: bool = True,
        wanted_until: float = math.inf,
        error: type[ForwardFailed] = ForwardFailed,
    ) -> None:
        self.cap = cap or MemoryCap()
        self.answered: list[int] = []
        self.outgrown = 0
        retry_plan = RetryPlan(
            len(lengths),
            partial(cost_of, rule, lengths),
            self.cap,
            bound=self.cap.cost,
            idempotent=idempotent,
            wanted_until=wanted_until,
        )
        self.passes = 0
        # Each pass takes a second.
        while (rows := retry_plan.next(now=float(self.passes))) is not None:
            self.passes += 1
            if cost_of(rule, lengths, rows) > holds:
                self.outgrown += 1
                retry_plan.failed(OutOfMemory("too much"))
            elif bad & set(rows):
                retry_plan.failed(error("no"))
            else:
                retry_plan.answered()
                self.answered += rows
        retry_plan.learn()
        self.failures = retry_plan.failures


@pytest.mark.slow
@given(rows=st.integers(1, 64), rule=st.sampled_from(CostRule), data=st.data())
def test_every_row_has_its_answer_or_a_failure_of_its_own(
    rows: int, rule: CostRule, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=rows, max_size=rows))
    bad = data.draw(st.sets(st.integers(0, rows - 1)))
    holds = data.draw(st.integers(1, 2000))
    found = Course(lengths, bad=bad, holds=holds, rule=rule)
    alone = [rule.paid(rows=1, longest=length, total=length) for length in lengths]
    giants = {row for row in range(rows) if alone[row] > holds}
    assert sorted([*found.answered, *found.failures]) == list(range(rows))
    assert set(found.failures) == bad | giants
    for row, failure in found.failures.items():
        assert failure.status == (413 if row in giants else 500)


def test_what_the_memory_should_hold_is_never_exceeded_however_well_batches_go() -> None:
    cap = MemoryCap()
    cap.begin_with(100)
    cap.outgrown([90])
    assert cap.cost == 67
    for _ in range(1000):
        cap.fine(cap.cost)
    assert cap.cost == 100


def test_memory_is_found_out_once_and_kept_to_from_then_on() -> None:
    cap = MemoryCap()
    first = Course([1] * 32, holds=10, cap=cap)
    assert (first.passes, first.outgrown, cap.cost) == (6, 2, 12)
    later = Course([1] * 32, holds=10, cap=cap)
    assert (later.passes, later.outgrown) == (4, 0)


def test_the_cap_is_in_what_the_device_pays_for() -> None:
    padded = Course([10, 100] * 4, holds=500, rule=CostRule.PADDED)
    assert padded.cap.cost == 600
    packed = Course([10, 100] * 4, holds=300, rule=CostRule.PACKED)
    assert packed.cap.cost == 330


@pytest.mark.parametrize("place", [0, 5, 31])
def test_an_item_that_is_too_large_by_itself_is_refused_and_teaches_nothing(place: int) -> None:
    lengths = [1] * 32
    lengths[place] = 1000
    found = Course(lengths, holds=100, rule=CostRule.PADDED)
    assert found.failures == {place: (413, "too much")}
    assert len(found.answered) == 31
    assert found.cap.cost is None


def test_what_failed_beside_the_giant_without_it_does_teach() -> None:
    found = Course([1000, 30, 30, 30], holds=50, rule=CostRule.PADDED)
    assert set(found.failures) == {0}
    assert found.cap.cost == 45


def test_nothing_is_tried_again_once_nobody_waits_for_it() -> None:
    found = Course([1] * 8, bad={7}, wanted_until=2.0)
    assert found.passes == 2
    assert found.answered == [0, 1, 2, 3]
    late = (504, "no time was left to try this alone")
    assert found.failures == dict.fromkeys(range(4, 8), late)


def test_what_may_not_run_twice_is_run_once() -> None:
    found = Course([1] * 8, bad={3}, idempotent=False)
    assert found.passes == 1
    assert found.failures == dict.fromkeys(range(8), (500, "no"))


def test_what_may_not_run_twice_and_did_not_fit_may_come_again_in_smaller_batches() -> None:
    cap = MemoryCap()
    found = Course([1] * 8, holds=4, cap=cap, idempotent=False)
    assert found.failures == dict.fromkeys(range(8), (503, "too much"))
    assert cap.cost == 6
    again = Course([1] * 8, holds=4, cap=cap, idempotent=False)
    assert again.answered == list(range(8))


def test_memory_grows_back_slowly_while_full_batches_go_well() -> None:
    cap = MemoryCap()
    cap.fine(1000)
    assert cap.cost is None
    cap.outgrown([100])
    assert cap.cost == 75
    for _ in range(200):
        cap.fine(37)
    assert cap.cost == 75, "a small batch proves nothing"
    for _ in range(49):
        cap.fine(38)
    assert cap.cost == 75
    cap.fine(38)
    assert cap.cost == 80
    cap.outgrown([80])
    assert cap.cost == 60
    cap.outgrown([400])
    assert cap.cost == 60, "what is larger teaches nothing new"


def test_a_failure_of_memory_begins_the_count_of_clean_batches_anew() -> None:
    cap = MemoryCap()
    cap.outgrown([100])
    for _ in range(49):
        cap.fine(75)
    cap.outgrown([75])
    cap.fine(56)
    assert cap.cost == 56


def test_the_cap_is_never_below_one_item() -> None:
    cap = MemoryCap()
    cap.outgrown([1])
    assert cap.cost == 1


def test_a_row_whose_adapter_finds_no_slot_may_come_again() -> None:
    course = Course([1] * 4, bad={2}, error=NoSlotFree)
    assert sorted(course.answered) == [0, 1, 3]
    assert {row: failure.status for row, failure in course.failures.items()} == {2: 503}
