"""The latency profile as a JSON document."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.description import CostRule
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.profile import Profile, ProfilePoint, profile_from_mapping
from support.strategies import json_values

PROFILE = Profile(
    cost_rule=CostRule.PADDED,
    device="simulated",
    points=(
        ProfilePoint(rows=1, length=16, seconds=0.005),
        ProfilePoint(rows=32, length=16, seconds=0.008),
    ),
)


def as_sent(profile: Profile) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(json.dumps(profile.to_mapping()))
    return sent


def test_a_profile_survives_its_document() -> None:
    assert profile_from_mapping(as_sent(PROFILE)) == PROFILE


def test_a_profile_may_be_without_points() -> None:
    empty = Profile(cost_rule=CostRule.ROWS, device="cpu", points=())
    assert profile_from_mapping(as_sent(empty)) == empty


@pytest.mark.parametrize(
    "point",
    [
        pytest.param({"rows": 0, "length": 1, "seconds": 1.0}, id="no rows"),
        pytest.param({"rows": 1, "length": -1, "seconds": 1.0}, id="negative length"),
        pytest.param({"rows": math.inf, "length": 1, "seconds": 1.0}, id="infinite rows"),
        pytest.param({"rows": math.nan, "length": 1, "seconds": 1.0}, id="rows that are no number"),
        pytest.param({"rows": 1, "length": 1}, id="no time"),
        pytest.param([1, 2, 3], id="a list"),
    ],
)
def test_a_point_that_makes_no_sense_is_refused(point: object) -> None:
    with pytest.raises(InvalidInput, match="profile: "):
        profile_from_mapping({**as_sent(PROFILE), "points": [point]})


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(["cost_rule", "device", "points"]), json_values(max_leaves=6))
def test_any_value_in_any_field_is_read_or_refused(field: str, value: object) -> None:
    try:
        profile_from_mapping({**as_sent(PROFILE), field: value})
    except InvalidInput as refused:
        str(refused).encode(errors="backslashreplace")
