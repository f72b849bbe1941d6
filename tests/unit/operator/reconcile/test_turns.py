"""Few models roll at the same time for what concerns many, and none after one that went badly."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_operator.reconcile.turns import SETTLED, Standing, Turns, standing

ROLLS = Standing(rolls=True, failed=False)
IS_FAILED = Standing(rolls=False, failed=True)
FAILED: dict[str, Any] = {"failedRevision": "m-b", "failedReason": "CrashLooping"}
DEGRADED: list[Any] = [{"type": "Degraded", "status": "True"}]


def _turns(at_most: int, *waiting: str) -> Turns[str]:
    turns = Turns[str](at_most)
    turns.all_known()
    for name in waiting:
        turns.note(name, SETTLED, waits=True)
    return turns


def test_none_begins_before_it_is_known_who_rolls_already() -> None:
    turns = Turns[str](2)
    assert not turns.may_begin("a")
    turns.note("a", SETTLED, waits=True)
    turns.seen("z", ROLLS)
    assert turns.all_known() == ("a",)
    turns.note("a", ROLLS, waits=False)
    assert not turns.may_begin("b")


def test_what_was_listed_earlier_does_not_undo_what_was_found_since() -> None:
    turns = Turns[str](1)
    turns.note("a", SETTLED, waits=True)
    turns.seen("a", SETTLED)
    assert turns.all_known() == ("a",)
    turns.note("a", ROLLS, waits=False)
    turns.seen("a", SETTLED)
    assert not turns.may_begin("b")


def test_the_next_is_named_when_one_has_ended() -> None:
    turns = _turns(1, "c", "b")
    turns.note("a", ROLLS, waits=False)
    assert not turns.may_begin("b")
    assert turns.note("a", ROLLS, waits=False) == ()
    assert turns.note("a", SETTLED, waits=False) == ("b",)
    assert turns.note("b", ROLLS, waits=False) == ()
    assert turns.forget("b") == ("c",), "one that is deleted leaves its place"


def test_none_begins_while_one_is_degraded_but_that_one() -> None:
    turns = _turns(2, "b", "c")
    assert turns.note("a", IS_FAILED, waits=False) == ()
    assert not turns.may_begin("b")
    assert turns.may_begin("a"), "later images may mend it"
    assert turns.note("a", SETTLED, waits=False) == ("b", "c")


def test_one_that_hangs_and_one_that_failed_do_not_wait_for_each_other() -> None:
    turns = _turns(1)
    turns.note("b", ROLLS, waits=False)
    turns.note("a", IS_FAILED, waits=True)
    assert turns.may_begin("b"), "it has its place already"
    assert not turns.may_begin("a")
    assert turns.note("b", SETTLED, waits=False) == ("a",)


def test_of_several_that_failed_each_may_try_what_is_newer() -> None:
    turns = _turns(1)
    for name in ("a", "b"):
        turns.note(name, IS_FAILED, waits=True)
    assert turns.may_begin("a")
    assert turns.note("a", ROLLS, waits=False) == ()
    assert not turns.may_begin("b")
    assert turns.note("a", SETTLED, waits=False) == ("b",)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, SETTLED),
        ({"rollout": {"targetRevision": "m-b"}}, SETTLED),
        ({"rollout": {"targetRevision": "m-b", "cause": "Upgrade"}}, ROLLS),
        ({"rollout": {"targetRevision": "m-b", "cause": "Class"}}, ROLLS),
        ({"rollout": {"targetRevision": "m-b", "cause": "?"}}, SETTLED),
        (
            {"rollout": {"targetRevision": "m-b", "goodRevision": "m-b", "cause": "Upgrade"}},
            SETTLED,
        ),
        (
            {"desiredReplicas": 0, "rollout": {"targetRevision": "m-b", "cause": "Upgrade"}},
            SETTLED,
        ),
        (
            {"rollout": {"targetRevision": "m-b", "cause": "Upgrade", **FAILED}},
            IS_FAILED,
        ),
        (
            {
                "conditions": DEGRADED,
                "rollout": {
                    "targetRevision": "m-b",
                    "goodRevision": "m-b",
                    "cause": "Upgrade",
                },
            },
            IS_FAILED,
        ),
        (
            {
                "conditions": DEGRADED,
                "rollout": {"targetRevision": "m-b", "goodRevision": "m-a", "cause": "Upgrade"},
            },
            Standing(rolls=True, failed=True),
        ),
        (
            {
                "conditions": [*DEGRADED, {"type": "CapacityAvailable", "status": "False"}],
                "rollout": {"targetRevision": "m-b", "goodRevision": "m-b", "cause": "Upgrade"},
            },
            SETTLED,
        ),
        (
            {
                "conditions": [
                    {"type": "Reconciled", "status": "False", "reason": "ClassNotFound"}
                ],
                "rollout": {"targetRevision": "m-b", "goodRevision": "m-a", "cause": "Class"},
            },
            SETTLED,
        ),
        ({"conditions": [*DEGRADED, 7], "rollout": {"targetRevision": "m-b"}}, SETTLED),
        (
            {"conditions": "odd", "rollout": {"targetRevision": "m-b", "cause": "Upgrade"}},
            ROLLS,
        ),
    ],
)
def test_a_status_says_where_a_model_stands(status: Mapping[str, Any], expected: Standing) -> None:
    assert standing(status) == expected


_NAMES = st.sampled_from("abcdefg")


@given(
    at_most=st.integers(1, 3),
    happenings=st.lists(st.tuples(_NAMES, st.sampled_from(["ask", "end", "fail", "go"]))),
)
def test_never_more_than_may_and_nobody_is_forgotten(
    at_most: int, happenings: list[tuple[str, str]]
) -> None:
    turns = _turns(at_most)
    rolling: set[str] = set()
    failed: set[str] = set()
    waiting: set[str] = set()
    called: list[str] = []

    def look(name: str) -> None:
        """As a reconcile does that finds something later for the model."""
        if turns.may_begin(name):
            waiting.discard(name)
            failed.discard(name)
            rolling.add(name)
            called.extend(turns.note(name, ROLLS, waits=False))
        elif name not in rolling:
            waiting.add(name)
            at = IS_FAILED if name in failed else SETTLED
            called.extend(turns.note(name, at, waits=True))

    for name, what in happenings:
        match what:
            case "ask":
                look(name)
            case "end" if name in rolling:
                rolling.discard(name)
                called += turns.note(name, SETTLED, waits=False)
            case "fail" if name in rolling:
                rolling.discard(name)
                failed.add(name)
                called += turns.note(name, IS_FAILED, waits=False)
            case "go":
                for one in [name, *rolling, *failed] if name == "a" else ():
                    rolling.discard(one)
                    failed.discard(one)
                    called += turns.forget(one)
                    waiting.discard(one)
        while called:
            look(called.pop())
        assert len(rolling) <= at_most
    for name in [*rolling, *failed]:
        rolling.discard(name)
        failed.discard(name)
        called += turns.note(name, SETTLED, waits=name in waiting)
        while called:
            look(called.pop())
    for _ in range(20):
        for name in list(rolling):
            rolling.discard(name)
            called += turns.note(name, SETTLED, waits=False)
            while called:
                look(called.pop())
    assert not waiting
