"""From one value per seed to what is reported: their mean and its 95 % interval."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Final

from bench_report import Figure

_GOAL = Callable[[str, float, str, float], Figure]
# Student's t for 95 %, by degrees of freedom from 1; beyond the last the normal one is near enough.
_STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL: Final = 1.96


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    freedom = len(values) - 1
    factor = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL
    return factor * statistics.stdev(values) / math.sqrt(len(values))


def over_seeds(
    name: str, values: Sequence[float], unit: str, goal: _GOAL | None = None, bound: float = 0.0
) -> list[Figure]:
    """The mean, held against the bound if there is a goal, and below it half the interval."""
    mean = statistics.fmean(values)
    figure = (
        Figure(name=name, value=mean, unit=unit) if goal is None else goal(name, mean, unit, bound)
    )
    if len(values) < 2:
        return [figure]
    return [figure, Figure(name=f"{name}, +-", value=half_width(values), unit=unit)]
