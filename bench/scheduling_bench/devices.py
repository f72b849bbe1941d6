"""Devices that are not smooth, lengths that are not even, and what a warm-up would know of them."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator

from batchedmodel_cli.simulator.engine import Curve
from batchedmodel_cli.simulator.workload import stream
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_model_server.profiling.shapes import (
    LONGEST_PASS_SECONDS,
    Shape,
    next_shape,
    shapes,
    steps,
    way_up,
)
from batchedmodel_model_server.profiling.warmup import (
    FEW_TIMES,
    FIRST_PASS_SECONDS,
    LOOKING_SECONDS,
)

_PASSES: Final = 4  # of each shape: one that is not counted, and three samples
_SHORT: Final = 16


def _paid(rule: CostRule, lengths: Sequence[int]) -> int:
    return rule.paid(rows=len(lengths), longest=max(lengths), total=sum(lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """Plateaus, as captured sizes make them: what is between two edges takes as long as the upper.

    Beyond the last edge it goes on in proportion.
    """

    edges: tuple[int, ...]
    levels: tuple[float, ...]
    """Seconds up to each edge."""
    rule: CostRule

    def seconds(self, lengths: Sequence[int]) -> float:
        """See `Curve`."""
        paid = _paid(self.rule, lengths)
        at = bisect_left(self.edges, paid)
        if at < len(self.edges):
            return self.levels[at]
        return self.levels[-1] * paid / self.edges[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiled:
    """Every tile that is begun is paid for in full."""

    fixed: float
    per_tile: float
    tile: int
    rule: CostRule

    def seconds(self, lengths: Sequence[int]) -> float:
        """See `Curve`."""
        return self.fixed + self.per_tile * math.ceil(_paid(self.rule, lengths) / self.tile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kneed:
    """A roofline: flat while the device is not filled, then in proportion."""

    flat: float
    knee: int
    rule: CostRule

    def seconds(self, lengths: Sequence[int]) -> float:
        """See `Curve`."""
        return self.flat * max(1.0, _paid(self.rule, lengths) / self.knee)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bimodal:
    """Some rows from a range of long lengths, the others from one of short ones."""

    long_share: float
    short: tuple[int, int]
    long: tuple[int, int]

    def draw(self, count: int, random: Generator) -> list[int]:
        """See `Lengths`."""
        is_long = random.random(count) < self.long_share
        short = random.integers(*self.short, count, endpoint=True)
        long = random.integers(*self.long, count, endpoint=True)
        drawn: list[int] = np.where(is_long, long, short).tolist()
        return drawn


def warmed_up(
    curve: Curve,
    rule: CostRule,
    *,
    max_rows: int,
    longest: int,
    noise: float,
    seed: int,
    partial: bool = False,
) -> Profile:
    """What the model server measures of such a device; `partial`: before it is ready."""
    factors = stream(seed, "warm-up").lognormal(0.0, noise, (1024, 3)) if noise else None
    grid = shapes(max_rows, (1,) if rule is CostRule.ROWS else steps(_SHORT, longest))
    points: list[ProfilePoint] = []

    def measure(shape: Shape) -> float:
        seconds = exact = curve.seconds([shape[1]] * shape[0])
        if factors is not None:
            seconds *= float(np.median(factors[len(points)]))
        points.append(ProfilePoint(rows=shape[0], length=shape[1], seconds=seconds))
        return _PASSES * exact

    measure(grid[0])
    few = FEW_TIMES * points[0].seconds
    for share in (0.5, 1.0):
        shape: Shape | None = way_up(grid, points, max(FIRST_PASS_SECONDS, few), share)
        if shape is not None and shape not in measured(points):
            measure(shape)
    looked = 0.0
    while not partial:
        most, looks = max(LONGEST_PASS_SECONDS, few), looked < LOOKING_SECONDS
        shape = next_shape(grid, points, measured(points), most, looks=looks)
        if shape is None:
            break
        seconds = measure(shape)
        looked += 0.0 if shape in grid else seconds
    points.sort(key=lambda point: (point.rows, point.length))
    return Profile(cost_rule=rule, device="simulated", points=tuple(points), partial=partial)


def measured(points: Sequence[ProfilePoint]) -> set[Shape]:
    """Their shapes."""
    return {(point.rows, point.length) for point in points}
