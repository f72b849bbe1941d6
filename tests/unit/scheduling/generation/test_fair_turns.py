"""Turns between tenants: by device time and weight, whoever comes, goes or is late."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.batching.items import Priority
from batchedmodel_scheduling.generation.requests import GenerationRequest, Place, Waiting
from batchedmodel_scheduling.generation.waiting import FairTurns
from support.examples import examples

NUMBERS = itertools.count()


def waiting(
    tenant: str,
    work: float = 1.0,
    *,
    weight: float = 1.0,
    place: Place = Place.READY,
    priority: Priority = Priority.NORMAL,
) -> Waiting:
    number = next(NUMBERS)
    request = GenerationRequest(
        id=number, share=Share(tenant, weight), key="model", prompt_tokens=1, max_tokens=None,
        choices=1, arrived=float(number), deadline=1e9, streams=True, priority=priority,
    )  # fmt: skip
    made = Waiting(request, work=work, target=None)
    made.place = place
    return made


def turn(turns: FairTurns) -> Waiting:
    found = turns.next()
    assert found is not None
    turns.release(found)
    return found


@settings(max_examples=examples(200))
@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(
            st.sampled_from([0.5, 1.0, 4.0]), st.lists(st.floats(0.1, 9.0), min_size=1, max_size=30)
        ),
        min_size=2,
    )
)
def test_while_two_wait_neither_gets_more_than_a_request_ahead_by_weight(
    tenants: dict[str, tuple[float, list[float]]],
) -> None:
    turns, left = FairTurns(), Counter[str]()
    for name, (weight, works) in tenants.items():
        for work in works:
            turns.add(waiting(name, work, weight=weight))
            left[name] += 1
    had = dict.fromkeys(tenants, 0.0)
    virtual = 0.0
    while turns:
        found = turn(turns)
        name = found.request.share.tenant
        had[name] += found.work / tenants[name][0]
        left[name] -= 1
        assert turns.virtual >= virtual
        virtual = turns.virtual
        waits = [one for one in tenants if left[one]]
        for one, other in itertools.combinations(waits, 2):
            largest = max(max(tenants[each][1]) / tenants[each][0] for each in (one, other))
            assert abs(had[one] - had[other]) <= largest + 1e-6
    assert not any(left.values())


def test_who_comes_after_idling_has_saved_nothing() -> None:
    turns = FairTurns()
    turns.add(waiting("late"))
    turn(turns)
    for _ in range(100):
        turns.add(waiting("busy"))
    for _ in range(50):
        turn(turns)
    for _ in range(20):
        turns.add(waiting("late"))
    served = Counter(turn(turns).request.share.tenant for _ in range(20))
    assert 9 <= served["late"] <= 11


def test_who_comes_and_goes_under_many_names_keeps_nobody_back() -> None:
    turns = FairTurns()
    for _ in range(10):
        turns.add(waiting("old"))
    served = Counter[bool]()
    for number in range(60):
        turns.add(waiting(f"new {number}"))
        turns.add(waiting(f"also new {number}"))
        served[turn(turns).request.share.tenant == "old"] += 1
    # Its part becomes smaller with each that comes: 1/3 + 1/4 + 1/5 and so on.
    assert served[True] >= 3


def test_what_a_request_cost_in_the_end_is_what_its_tenant_pays() -> None:
    turns = FairTurns()
    for _ in range(100):
        turns.add(waiting("short answers"))
        turns.add(waiting("long answers"))
    served = Counter[str]()
    for _ in range(100):
        found = turn(turns)
        name = found.request.share.tenant
        served[name] += 1
        turns.settle(found, 0.5 if name == "short answers" else 1.5)
    assert served["short answers"] == pytest.approx(3 * served["long answers"], abs=3)


@given(st.permutations([("a", 0.1), ("b", 0.2), ("c", 0.7)] * 2))
def test_fractions_of_weights_leave_nothing_behind(order: list[tuple[str, float]]) -> None:
    turns = FairTurns()
    for _ in range(3):
        for name, weight in order:
            turns.add(waiting(name, weight=weight))
        while turns:
            turns.settle(turn(turns), 0.5)
    for _ in range(100):
        turns.add(waiting("b", weight=0.2))
        turns.add(waiting("c", weight=0.7))
    had = Counter(turn(turns).request.share.tenant for _ in range(90))
    assert 15 <= had["b"] <= 25


def test_late_ones_go_when_nobody_is_on_time_and_in_one_of_16_turns() -> None:
    turns = FairTurns()
    for _ in range(20):
        turns.add(waiting("a", place=Place.LATE))
    for _ in range(160):
        turns.add(waiting("b"))
    places = [turn(turns).place for _ in range(160)]
    assert places.count(Place.LATE) == 10
    assert all(Place.LATE in places[begin : begin + 16] for begin in range(len(places) - 16))


def test_each_tenant_with_late_ones_has_its_turn_and_its_oldest_goes() -> None:
    turns = FairTurns()
    first = {
        name: [
            waiting(name, place=Place.LATE, priority=priority)
            for priority in (Priority.LOW, Priority.HIGH)
        ]
        for name in "abc"
    }
    for late in itertools.chain.from_iterable(first.values()):
        turns.add(late)
    for _ in range(200):
        turns.add(waiting("busy"))
    served = [turn(turns) for _ in range(48)]
    late_ones = [one for one in served if one.place is Place.LATE]
    assert late_ones == [first[name][0] for name in "abc"]


def test_a_tenant_that_is_held_is_passed_until_it_is_let_go() -> None:
    turns = FairTurns()
    first, second = waiting("a"), waiting("b")
    turns.add(first)
    turns.add(second)
    assert turns.next() is first
    assert turns.hold("a")
    assert turns.next() is second
    assert turns.hold("b")
    assert not turns.hold("b")
    assert turns.next() is None
    turns.let_go()
    assert turns.next() is first


def test_names_that_came_once_are_forgotten() -> None:
    turns = FairTurns()
    turns.add(waiting("stays"))
    for number in range(3000):
        turns.add(waiting(f"tenant {number}"))
        turns.settle(turn(turns), 1.0)
    assert len(turns._tenants) < 500


def test_work_ahead_is_that_of_its_tenant_and_as_much_of_others() -> None:
    turns = FairTurns()
    for _ in range(10):
        turns.add(waiting("flood"))
    assert turns.ahead(Share("flood"), Priority.NORMAL) == pytest.approx(10.0)
    assert turns.ahead(Share("flood"), Priority.HIGH) == 0.0
    assert turns.ahead(Share("new"), Priority.NORMAL) == 0.0
    turns.add(waiting("new"))
    assert turns.ahead(Share("new"), Priority.NORMAL) == pytest.approx(2.0)
