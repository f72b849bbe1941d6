"""What is served in the benchmark: curves, traffic, lengths and targets, as data."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from numpy.random import Generator

from batchedmodel_cli.simulator.arrivals import Arrivals, Gamma, Poisson
from batchedmodel_cli.simulator.traces import Trace
from batchedmodel_cli.simulator.workload import Constant, Lengths, Lognormal
from batchedmodel_contract.inference.description import CostRule
from scheduling_bench.affine import Affine
from scheduling_bench.bursts import Clumps, Mmpp, scaled_lengths
from scheduling_bench.plants import Disturbances

MAX_ROWS: Final = 64
EDGES: Final = (32, 64, 96, 128, 192, 256, 384, 512)
POISSON: Final = Poisson()
GAMMA: Final = Gamma(cv=4)
MMPP: Final = Mmpp(ratio=5.0, sojourn_seconds=0.5)
CAP99_OF_A: Final = 737.0
"""Of ours in scenario A under Poisson, requests a second."""
CLUMPS: Final = Clumps(mean_size=8, spread_seconds=0.001)
NO_DISTURBANCES: Final = Disturbances()
NOISE: Final = Disturbances(noise=0.05)

_PROFILED_LENGTHS: Final = (8, 64, 256, 512)
_HAND_OFF_SECONDS: Final = 0.0005
_DEPTH: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often and how long everything is tried, and how closely a highest rate is searched."""

    seeds: tuple[int, ...]
    requests: int
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of traffic on one device."""

    name: str
    curve: Affine
    arrivals: Arrivals
    lengths: Lengths
    target_seconds: float
    near: float
    """Requests per second close to what can be served: where a search begins."""
    edges: tuple[int, ...] = ()
    """Upper bounds of the length buckets; none where all lengths are equal."""
    disturbances: Disturbances = NO_DISTURBANCES
    hand_off_seconds: float = _HAND_OFF_SECONDS
    depth: int = _DEPTH

    @property
    def profiled_lengths(self) -> tuple[int, ...]:
        """Which lengths the server would have measured."""
        return (1,) if self.curve.rule is CostRule.ROWS else _PROFILED_LENGTHS


@dataclass(frozen=True, slots=True, kw_only=True)
class Edged:
    """Lengths as a device pays for them that pads every row to the upper edge of its bucket."""

    of: Lengths
    edges: tuple[int, ...]

    def draw(self, count: int, random: Generator) -> list[int]:
        """See `Lengths`."""
        last = len(self.edges) - 1
        drawn = self.of.draw(count, random)
        return [self.edges[min(bisect_left(self.edges, length), last)] for length in drawn]


# 5 ms + 1 ms per row and so on: curve and target of the scenarios with equal lengths.
_EQUAL: Final = {
    "A": (0.005, 0.001, 0.050),
    "B": (0.010, 0.0002, 0.050),
    "C": (0.003, 0.004, 0.100),
    "D": (0.005, 0.001, 0.018),
    "E": (0.005, 0.001, 0.200),
    "t = 3 + 0.3 b, 25 ms": (0.003, 0.0003, 0.025),
}
_TRAFFIC: Final[dict[str, Arrivals]] = {"Poisson": POISSON, "MMPP": MMPP, "gamma CV 4": GAMMA}
MIXED_LENGTHS: Final = Lognormal(mu=math.log(90), sigma=0.9, lowest=8, highest=512)
_MIXED_CURVE: Final = Affine(fixed=0.004, per_token=6e-6)
_PACKED_CURVE: Final = Affine(fixed=0.004, per_token=6e-6, rule=CostRule.PACKED)


def equal(name: str, traffic: str, near: float) -> Scenario:
    """Requests of one length."""
    fixed, per_row, target = _EQUAL[name]
    return Scenario(
        name=f"{name} {traffic}",
        curve=Affine(fixed=fixed, per_row=per_row, rule=CostRule.ROWS),
        arrivals=_TRAFFIC[traffic],
        lengths=Constant(length=1),
        target_seconds=target,
        near=near,
    )


def mixed(
    milliseconds: int, traffic: str, near: float, *, packed: bool = False, edged: bool = False
) -> Scenario:
    """Lengths from 8 to 512 on a device that pads to the longest, packs, or pads to the edge."""
    kind = "packed" if packed else "padded to the edge" if edged else "padded"
    return Scenario(
        name=f"{kind} {milliseconds} ms {traffic}",
        curve=_PACKED_CURVE if packed else _MIXED_CURVE,
        arrivals=_TRAFFIC[traffic],
        lengths=Edged(of=MIXED_LENGTHS, edges=EDGES) if edged else MIXED_LENGTHS,
        target_seconds=milliseconds / 1000,
        near=near,
        edges=EDGES,
    )


def beginning(trace: Trace, count: int) -> Trace:
    """The first requests of a trace."""
    return Trace(
        times=trace.times[:count],
        lengths=trace.lengths[:count],
        priorities=trace.priorities[:count],
    )


def replayed(trace: Trace, divisor: int, near: float) -> Scenario:
    """A recorded trace, its lengths divided, on the device of the mixed lengths."""
    return Scenario(
        name=f"trace / {divisor}",
        curve=_MIXED_CURVE,
        arrivals=trace.arrivals(),
        lengths=scaled_lengths(trace, divisor=divisor, highest=EDGES[-1]),
        target_seconds=0.1,
        near=near,
        edges=EDGES,
    )
