"""Where a warm-up looks for jumps."""

from collections.abc import Callable

import pytest

from batchedmodel_contract.inference.profile import ProfilePoint
from batchedmodel_model_server.profiling.shapes import expected_seconds, looks, shapes


def measured(seconds: Callable[[int], float], max_rows: int) -> list[ProfilePoint]:
    """What grid and looks find of a device that pays for rows."""
    points = [point(rows, seconds) for rows, _ in shapes(max_rows, (1,))]
    for rows, _ in looks(points):
        points.append(point(rows, seconds))
    return points


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
    points = [point(rows, plateaus) for rows in (1, 64)]
    asked = list(looks(points))
    assert asked == [(40, 1)]


@pytest.mark.parametrize(("work", "seconds"), [(1, 1.0), (3, 2.0), (4, 2.0), (8, 4.0)])
def test_a_pass_takes_as_long_as_the_next_larger_or_in_proportion(
    work: int, seconds: float
) -> None:
    points = [
        ProfilePoint(rows=4, length=1, seconds=2.0),
        ProfilePoint(rows=1, length=1, seconds=1.0),
    ]
    assert expected_seconds(points, work) == seconds
    assert expected_seconds([], work) == 0.0
