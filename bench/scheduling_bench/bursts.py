"""What policies are compared by: arrivals that come in bursts, and lengths of traces in bounds."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from batchedmodel_cli.simulator.arrivals import nanoseconds
from batchedmodel_cli.simulator.traces import Trace
from batchedmodel_cli.simulator.workload import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmpp:
    """Poisson whose rate jumps between two states, the higher `ratio` times the lower.

    Sojourns are exponential with the same mean in both states.
    """

    ratio: float = 5.0
    sojourn_seconds: float = 0.5

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        if count == 0:
            return []
        points = np.cumsum(random.standard_exponential(count))
        low = 2 * rate / (1 + self.ratio)
        rates = np.array([low, low * self.ratio])
        if random.random() >= 0.5:
            rates = rates[::-1]
        sojourns = np.empty(0)
        while not sojourns.size or points[-1] > sojourns @ np.tile(rates, len(sojourns) // 2):
            # An even number, so that what follows begins in the first state again.
            more = 2 * (int(points[-1] / (rates.sum() * self.sojourn_seconds)) + 8)
            drawn = random.standard_exponential(more) * self.sojourn_seconds
            sojourns = np.concatenate([sojourns, drawn])
        knots = np.concatenate([[0.0], np.cumsum(sojourns)])
        # When the integral of the rate reaches each point.
        passed = np.cumsum(np.diff(knots) * np.tile(rates, len(sojourns) // 2))
        return nanoseconds(np.interp(points, np.concatenate([[0.0], passed]), knots))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clumps:
    """Callers who fan out: groups of geometric size begin as Poisson, members within `spread`."""

    mean_size: float = 8.0
    spread_seconds: float = 0.001

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        if count == 0:
            return []
        # So many groups are enough even if each has one member.
        sizes = random.geometric(1 / self.mean_size, count)
        needed = int(np.searchsorted(np.cumsum(sizes), count)) + 1
        starts = np.cumsum(random.standard_exponential(count))[:needed] * (self.mean_size / rate)
        members = np.repeat(starts, sizes[:needed])
        members += random.random(len(members)) * self.spread_seconds
        return nanoseconds(np.sort(members)[:count])


def scaled_lengths(trace: Trace, *, divisor: int, highest: int, lowest: int = 1) -> Recorded:
    """Its lengths, divided and rounded down, then moved into the bounds."""
    scaled = (length // divisor for length in trace.lengths)
    return Recorded(recorded=tuple(max(lowest, min(highest, one)) for one in scaled))
