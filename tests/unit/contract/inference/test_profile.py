"""The latency profile as a JSON document, and how sure it is of what lies between its points."""

import json
import math
import re
from typing import (
    Any,
)

import pytest
from hypothesis import (
    given,
    settings,
)
from hypothesis import (
    strategies as st,
)

from batchedmodel_contract.inference.description import (
    CostRule,
)
from batchedmodel_contract.inference.profile import (
    Knot,
    Profile,
    ProfileExtent,
    ProfilePoint,
    extent_of,
    profile_from_mapping,
    unsure,
)
from batchedmodel_contract.invalid_input import (
    InvalidInput,
)
from support.examples import (
    examples,
)
from support.strategies import (
    json_values,
)

PROFILE = Profile(
    cost_rule=CostRule.PADDED,
    device="simulated",
    points=(
        ProfilePoint(rows=1, length=16, seconds=0.005),
        ProfilePoint(rows=32, length=16, seconds=0.008),
    ),
    max_cost=512,
    sharing="packed",
    sharing_reason="answers stay the same",
    start_up=(("process", 0.5), ("imports", 2.0), ("load", 1.25)),
    cached=True,
)
LATER = ("sharing", "sharing_reason", "start_up", "cached", "partial", "unsure")
"""Fields that the first servers' documents lack."""


def as_sent(profile: Profile) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(json.dumps(profile.to_mapping()))
    return sent


def test_a_profile_survives_its_document() -> None:
    assert profile_from_mapping(as_sent(PROFILE)) == PROFILE


def test_a_profile_may_be_without_points() -> None:
    empty = Profile(cost_rule=CostRule.ROWS, device="cpu", points=())
    assert profile_from_mapping(as_sent(empty)) == empty


def test_a_server_that_met_no_bound_of_its_memory_need_not_speak_of_it() -> None:
    sent = as_sent(PROFILE)
    del sent["max_cost"]
    assert profile_from_mapping(sent).max_cost is None
    assert profile_from_mapping(sent | {"max_cost": None}).max_cost is None


def test_a_document_of_the_first_servers_is_still_read() -> None:
    old = {name: value for name, value in as_sent(PROFILE).items() if name not in LATER}
    assert set(old) == {"cost_rule", "device", "points", "max_cost"}
    assert profile_from_mapping(old) == Profile(
        cost_rule=PROFILE.cost_rule,
        device=PROFILE.device,
        points=PROFILE.points,
        max_cost=PROFILE.max_cost,
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sharing", None, "sharing: null is not a string"),
        ("sharing_reason", 7, "sharing_reason: 7 is not a string"),
        ("start_up", [["load", 1.0]], 'start_up: [["load", 1.0]] is not an object'),
        ("start_up", {"load": -1.0}, "start_up.load: -1.0 is not within 0 to"),
        ("start_up", {"load": "1"}, 'start_up.load: "1" is not a number'),
        ("cached", "yes", 'cached: "yes" is not true or false'),
        ("cached", 1, "cached: 1 is not true or false"),
    ],
)
def test_a_later_field_that_makes_no_sense_is_refused(
    field: str, value: object, message: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^profile.{re.escape(message)}"):
        profile_from_mapping(as_sent(PROFILE) | {field: value})


@pytest.mark.parametrize("device", [7, "cpu\x1b[2J", "\ud800"])
def test_a_device_whose_name_cannot_be_printed_is_refused(device: object) -> None:
    document = {"cost_rule": "Rows", "device": device, "points": []}
    with pytest.raises(InvalidInput, match="profile.device: .* is not a string of printable"):
        profile_from_mapping(document)


def test_a_start_has_no_more_phases_than_a_person_would_read() -> None:
    def phases(count: int) -> dict[str, object]:
        return as_sent(PROFILE) | {"start_up": {str(n): 1.0 for n in range(count)}}

    assert len(profile_from_mapping(phases(64)).start_up) == 64
    with pytest.raises(InvalidInput, match="profile.start_up: .* is not an object of 64 phases"):
        profile_from_mapping(phases(65))


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (0, "0 is below the minimum 1"),
        (2**40 + 1, "1099511627777 is above the maximum 1099511627776"),
        (1.5, "1.5 is not an integer"),
        (True, "true is not an integer"),
    ],
)
def test_a_bound_of_the_memory_that_makes_no_sense_is_refused(cost: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^profile.max_cost: {re.escape(message)}$"):
        profile_from_mapping({**as_sent(PROFILE), "max_cost": cost})


POINT = {"rows": 1, "length": 1, "seconds": 1.0}


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (POINT | {"rows": 0}, "points[0].rows: 0 is below the minimum 1"),
        (POINT | {"rows": 4097}, "points[0].rows: 4097 is above the maximum 4096"),
        (POINT | {"rows": math.inf}, "points[0].rows: Infinity is not an integer"),
        (POINT | {"rows": math.nan}, "points[0].rows: NaN is not an integer"),
        (POINT | {"rows": "1"}, 'points[0].rows: "1" is not an integer'),
        (POINT | {"length": -1}, "points[0].length: -1 is below the minimum 0"),
        (POINT | {"length": 2**31 + 1}, "points[0].length: 2147483649 is above the maximum"),
        (POINT | {"seconds": -1e-9}, "points[0].seconds: -1e-09 is not within 0 to 2.14748e+09"),
        (POINT | {"seconds": 1e300}, "points[0].seconds: 1e+300 is not within"),
        (POINT | {"seconds": math.inf}, "points[0].seconds: Infinity is not within"),
        (POINT | {"seconds": math.nan}, "points[0].seconds: NaN is not within"),
        (POINT | {"seconds": 10**400}, "is not within"),
        ({"rows": 1, "length": 1}, "points[0].seconds: null is not a number"),
        ([1, 2, 3], "points[0]: [1, 2, 3] is not an object"),
    ],
)
def test_a_point_that_makes_no_sense_is_refused(point: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"profile.*{re.escape(message)}"):
        profile_from_mapping({**as_sent(PROFILE), "points": [point]})


def test_a_profile_has_no_more_points_than_a_scheduler_can_look_at() -> None:
    profile_from_mapping({**as_sent(PROFILE), "points": [POINT] * 1024})
    with pytest.raises(InvalidInput, match="profile.points: .* is not a list of at most 1024"):
        profile_from_mapping({**as_sent(PROFILE), "points": [POINT] * 1025})


def test_a_time_below_any_clock_reads_as_none_at_all() -> None:
    read = profile_from_mapping({**as_sent(PROFILE), "points": [POINT | {"seconds": 1e-320}]})
    assert read.points[0].seconds == 0.0


@settings(max_examples=examples(200))
@given(
    st.sampled_from(["cost_rule", "device", "points", "max_cost", *LATER]),
    json_values(max_leaves=6),
)
def test_any_value_in_any_field_is_read_or_refused(field: str, value: object) -> None:
    try:
        profile_from_mapping({**as_sent(PROFILE), field: value})
    except InvalidInput as refused:
        str(refused).encode(errors="backslashreplace")


def test_a_profile_that_is_partial_says_so_and_one_of_an_earlier_server_is_whole() -> None:
    document = {"cost_rule": "Padded", "device": "d", "points": []}
    assert extent_of(profile_from_mapping(document)) is ProfileExtent.WHOLE
    partial = profile_from_mapping({**document, "partial": True})
    assert extent_of(partial) is ProfileExtent.PARTIAL
    assert partial.to_mapping()["partial"] is True
    assert extent_of(None) is ProfileExtent.ABSENT
    with pytest.raises(InvalidInput, match=r"profile\.partial"):
        profile_from_mapping({**document, "partial": "yes"})


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
