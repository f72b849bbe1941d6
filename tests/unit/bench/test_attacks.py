"""The benchmark of attacks: when its rounds are enough, and which attacks it looks at alone."""

from collections import Counter

from attacks import Bout, figures
from support.attacks.aim import Attack
from support.attacks.catalogue import ATTACKS
from support.attacks.harness import Report

TWO: list[Attack] = [ATTACKS["singles"], ATTACKS["lists"]]


def report(during: float, batch: float = 0.02, *, visits: int = 1, right: int = 1) -> Report:
    return Report(
        crowd=Counter({"right": right, "503": 1 - right}),
        before=[],
        during=[during],
        after=[],
        attackers={one.name: {"visits": visits} for one in TWO},
        memory_bytes=0,
        batch_seconds=batch,
        idle_cores=None,
    )


def bout(*during: float, calm: float = 0.03, batch: float = 0.02) -> Bout:
    return Bout(
        attacks=TWO,
        met=[report(one, batch) for one in during],
        calm=[report(calm) for _ in during],
    )


def test_the_goal_is_the_larger_of_twice_the_sleepers_and_two_batches_more() -> None:
    assert bout(0.05, calm=0.03).goals() == [0.03 + 2 * 0.02]
    assert bout(0.05, calm=0.05).goals() == [0.1]
    assert bout(0.07, calm=0.03).over_goal() == [1.0]


def test_five_rounds_are_decided_once_three_agree() -> None:
    assert not bout().is_decided(1)
    assert bout(0.05).is_decided(1)
    assert not bout(0.05, 0.05).is_decided(5)
    assert bout(0.05, 0.05, 0.05).is_decided(5)
    assert not bout(0.05, 0.09, 0.05, 0.09).is_decided(5)
    assert bout(0.05, 0.09, 0.09, 0.09).is_decided(5)


def test_attacks_together_tell_of_each_unless_they_miss_or_have_longer_batches() -> None:
    assert bout(0.05).tells_of_each()
    assert not bout(0.08).tells_of_each()
    assert not bout(0.05, batch=0.04).tells_of_each()


def test_an_attack_that_never_came_or_made_answers_wrong_does_not_hold() -> None:
    for met in (report(0.05, visits=0), report(0.05, right=0)):
        one = Bout(attacks=TWO, met=[met] * 3, calm=[report(0.03)] * 3)
        assert not one.tells_of_each()
        assert any(figure.holds is False for figure in figures(one))
