"""What is remembered of a model's pods, in its status."""

import math

import pytest

from batchedmodel_kube.capacity import Capacity, capacity_of
from custom_resource import custom_resource, schema_of

FULL = Capacity(
    revision="a", rows_per_second=410.0, startup_seconds=61.0, shortest_latency_seconds=0.0315
)
AT = "2026-11-20T10:00:00Z"


def test_it_comes_back_as_it_was_written() -> None:
    for one in (FULL, Capacity(revision="a")):
        assert capacity_of({"capacity": one.to_mapping(at=AT)}) == one


def test_numbers_are_written_for_people() -> None:
    written = Capacity(revision="a", rows_per_second=0.123456, startup_seconds=1234.5)
    assert written.to_mapping(at=AT) == {
        "revision": "a",
        "rowsPerSecond": 0.123,
        "startupSeconds": 1230.0,
        "learntAt": AT,
    }


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        {"capacity": None},
        {"capacity": {}},
        {"capacity": {"revision": 1}},
        {"capacity": 3},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_nothing(found: dict[str, object] | None) -> None:
    assert capacity_of(found or {}) is None


@pytest.mark.parametrize(
    "number", ["410", 0, -1, 1e-300, 1e300, 10**400, math.inf, math.nan], ids=repr
)
def test_a_number_that_is_none_or_cannot_be_counted_with_is_unknown(number: object) -> None:
    wrong = {"revision": "a", "rowsPerSecond": number, "startupSeconds": number}
    assert capacity_of({"capacity": wrong}) == Capacity(revision="a")


def test_the_schema_has_every_field() -> None:
    status = schema_of(custom_resource())["properties"]["status"]["properties"]
    assert status["capacity"]["properties"].keys() == FULL.to_mapping(at=AT).keys()
