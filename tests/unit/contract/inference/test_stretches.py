"""How sure a profile is of what lies between its points."""

import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_contract.inference.stretches import Knot, unsure


def knots(*seconds: tuple[float, float]) -> list[Knot]:
    return [Knot(*one) for one in seconds]


def test_a_straight_line_is_sure() -> None:
    assert unsure(knots((1, 5.0), (4, 8.0), (16, 20.0), (64, 68.0))) == [False] * 3


def test_what_rises_more_than_its_neighbours_may_jump() -> None:
    found = unsure(knots((1, 1.0), (4, 1.0), (16, 1.0), (64, 4.0), (128, 4.0)))
    assert found == [False, False, True, False]


def test_between_neighbouring_sizes_there_is_nothing_to_be_unsure_of() -> None:
    assert unsure(knots((1, 1.0), (8, 1.0), (9, 2.0), (16, 2.0))) == [False] * 3


def test_behind_a_knee_it_is_straight_again() -> None:
    kneed = knots((1, 2.0), (8, 2.0), (24, 3.0), (32, 4.0), (48, 6.0), (64, 8.0))
    assert unsure(kneed) == [False, True, True, False, False]


@pytest.mark.parametrize("alone", [[], knots((4, 1.0)), knots((1, 1.0), (64, 9.0))], ids=len)
def test_where_no_third_size_contradicts_it_is_a_line(alone: list[Knot]) -> None:
    assert not any(unsure(alone))


def test_a_profile_says_where_a_jump_may_lie() -> None:
    points = [(1, 8, 1.0), (4, 8, 1.0), (16, 8, 3.0), (64, 8, 3.05), (1, 32, 1.0), (4, 32, 1.0)]
    profile = Profile(
        cost_rule=CostRule.PADDED,
        device="",
        points=tuple(ProfilePoint(rows=r, length=n, seconds=s) for r, n, s in points),
    )
    assert profile.to_mapping()["unsure"] == [{"length": 8, "above": 4, "below": 16}]


def test_a_profile_that_holds_a_point_several_times_can_be_told() -> None:
    """It may come from a file, or from a server that is not of this version."""
    points = [(1, 8, 1.0), (1, 8, 2.0), (1, 8, 3.0), (4, 8, 3.0), (16, 8, 9.0), (64, 8, 9.1)]
    profile = Profile(
        cost_rule=CostRule.PADDED,
        device="cpu",
        points=tuple(ProfilePoint(rows=r, length=n, seconds=s) for r, n, s in points),
        max_cost=None,
    )
    told = profile.to_mapping()["unsure"]
    assert told == [{"length": 8, "above": 4, "below": 16}]
