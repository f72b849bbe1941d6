"""When requests arrive: the arrival processes that workloads are drawn from.

Used through `workload.Workload` by benchmarks, tests and `batchedmodel simulate`. A process knows
nothing of lengths, targets or policies. Each draws first what does not depend on the rate, so that
the same stream at another rate gives the same pattern, only faster: a search for the highest rate
then compares like with like.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from batchedmodel_contract.invalid_input import InvalidInput

_NANOSECONDS: Final = 1e9
_KNOTS: Final = 2048
_Numbers = NDArray[np.floating[Any]]


class Arrivals(Protocol):
    """A process of arrivals."""

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """`count` times in nanoseconds, ascending; `rate` is their mean number per second."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Many callers who know nothing of each other."""

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        return _nanoseconds(_unit_points(count, random) / rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Independent gaps whose standard deviation is `cv` times their mean: bursty above 1."""

    cv: float

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        shape = 1 / self.cv**2
        return _nanoseconds(np.cumsum(random.standard_gamma(shape, count)) / (shape * rate))


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
        points = _unit_points(count, random)
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
        return _inverted(points, knots, np.tile(rates, len(sojourns) // 2))


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
        starts = _unit_points(count, random)[:needed] * (self.mean_size / rate)
        members = np.repeat(starts, sizes[:needed])
        members += random.random(len(members)) * self.spread_seconds
        return _nanoseconds(np.sort(members)[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Poisson whose rate grows evenly to `factor` times what it was in the beginning."""

    factor: float = 4.0

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        if count == 0:
            return []
        points = _unit_points(count, random)
        knots = np.linspace(0.0, count / rate, _KNOTS)
        first = 2 * rate / (1 + self.factor)
        passed = (np.arange(_KNOTS - 1) + 0.5) / (_KNOTS - 1)
        levels = first * (1 + (self.factor - 1) * passed)
        missing = points[-1] - float(np.diff(knots) @ levels)
        if missing > 0:  # a finite draw may take longer than the mean: then the last level goes on
            knots = np.append(knots, knots[-1] + 1.01 * missing / levels[-1])
            levels = np.append(levels, levels[-1])
        return _inverted(points, knots, levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The times of a recorded trace, in nanoseconds and ascending, sped up or slowed down.

    The whole trace has the mean `rate`; a part of it, as drawn by a `count` below its size, may be
    faster or slower. A longer draw begins anew one mean gap after the last.
    """

    recorded: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.recorded) < 2 or self.recorded[0] == self.recorded[-1]:
            raise InvalidInput("trace", "must have arrivals at two different times at least")

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        size = len(self.recorded)
        since_first = np.array(self.recorded, dtype=np.int64) - self.recorded[0]
        # In units of the trace's own length, so that a rate only scales it.
        share = since_first * ((size - 1) / (size * float(since_first[-1])))
        rounds = np.arange(-(-count // size))
        repeated = (rounds[:, None] + share[None, :]).ravel()[:count]
        return _nanoseconds(repeated * (size / rate))


def _unit_points(count: int, random: Generator) -> _Numbers:
    """Arrivals of a Poisson process of rate 1."""
    return np.cumsum(random.standard_exponential(count))


def _inverted(points: _Numbers, knots: _Numbers, levels: _Numbers) -> list[int]:
    """When the integral of the rate reaches each point."""
    covered = np.concatenate([[0.0], np.cumsum(np.diff(knots) * levels)])
    return _nanoseconds(np.interp(points, covered, knots))


def _nanoseconds(seconds: _Numbers) -> list[int]:
    listed: list[int] = np.rint(seconds * _NANOSECONDS).astype(np.int64).tolist()
    return listed
