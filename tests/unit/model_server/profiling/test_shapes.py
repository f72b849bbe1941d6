"""Where a warm-up looks for jumps."""

import math
from collections.abc import Callable

import pytest

from batchedmodel_contract.inference.profile import ProfilePoint
from batchedmodel_model_server.profiling.shapes import (
    Shape,
    expected_seconds,
    next_shape,
    shapes,
    way_up,
)


def measured(seconds: Callable[[int], float], max_rows: int) -> list[ProfilePoint]:
    """What grid and looks find of a device that pays for rows."""
    points: list[ProfilePoint] = []
    tried: set[Shape] = set()
    while (shape := next_at(points, tried, math.inf, max_rows)) is not None:
        tried.add(shape)
        points.append(point(shape[0], seconds))
    return points


def next_at(
    points: list[ProfilePoint], tried: set[Shape], longest: float, max_rows: int = 64
) -> Shape | None:
    return next_shape(shapes(max_rows, (1,)), points, tried, longest, looks=True)


def point(rows: int, seconds: Callable[[int], float]) -> ProfilePoint:
    return ProfilePoint(rows=rows, length=1, seconds=seconds(rows))


def plateaus(rows: int) -> float:
    return 1.0 if rows <= 12 else 2.0 if rows <= 40 else 3.0


def tiled(rows: int) -> float:
    return 1.0 + -(-rows // 8)


def test_a_jump_is_found_to_the_row() -> None:
    rows = {one.rows for one in measured(plateaus, 64)}
    assert {12, 13, 40, 41} <= rows
    assert len(rows) < 25


def test_every_tile_is_found_that_matters() -> None:
    rows = {one.rows for one in measured(tiled, 64)}
    assert {8, 9, 16, 17, 24, 25, 32, 33} <= rows


def test_a_straight_device_is_looked_at_a_few_times_only() -> None:
    assert len(measured(lambda rows: 1.0 + 0.1 * rows, 64)) <= 16


def test_a_flat_device_is_not_looked_at() -> None:
    assert len(measured(lambda rows: 1.0, 64)) == 4


def test_a_shape_that_could_not_be_measured_is_not_asked_for_again() -> None:
    points, tried = [point(rows, plateaus) for rows in (1, 64)], {*shapes(64, (1,))}
    assert next_at(points, tried, math.inf) == (40, 1)
    assert next_at(points, {*tried, (40, 1)}, math.inf) is None


@pytest.mark.parametrize(("work", "seconds"), [(1, 1.0), (2, 4 / 3), (4, 2.0), (8, 4.0)])
def test_a_pass_takes_as_long_as_its_neighbours_say_or_in_proportion(
    work: int, seconds: float
) -> None:
    points = [
        ProfilePoint(rows=4, length=1, seconds=2.0),
        ProfilePoint(rows=1, length=1, seconds=1.0),
    ]
    assert expected_seconds(points, work) == seconds
    assert expected_seconds([], work) == 0.0


def test_what_would_take_too_long_waits_and_what_is_short_beside_it_does_not() -> None:
    """A model under steady load still learns where its small batches jump."""
    points, tried = [point(rows, tiled) for rows in (1, 4, 16)], {(1, 1), (4, 1), (16, 1)}
    assert next_at(points, tried, 12.0) == (64, 1)
    assert next_at(points, tried, 4.0) == (11, 1)
    assert next_at(points, tried, 2.0) is None


def test_where_nothing_was_measured_the_smallest_shape_comes_first() -> None:
    assert next_at([], set(), 0.05) == (1, 1)


def test_the_way_up_goes_as_far_as_the_time_allows_and_half_of_it() -> None:
    grid, points = shapes(32, (16, 256)), [ProfilePoint(rows=1, length=16, seconds=0.001)]
    assert way_up(grid, points, 0.1, 1.0) == (3, 256)
    assert way_up(grid, points, 0.1, 0.5) == (10, 16)
    assert way_up(grid, points, 1e-6, 1.0) == (1, 16)
