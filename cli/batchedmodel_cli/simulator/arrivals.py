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
        return nanoseconds(unit_points(count, random) / rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Independent gaps whose standard deviation is `cv` times their mean: bursty above 1."""

    cv: float

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        shape = 1 / self.cv**2
        return nanoseconds(np.cumsum(random.standard_gamma(shape, count)) / (shape * rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Poisson whose rate grows evenly to `factor` times what it was in the beginning."""

    factor: float = 4.0

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        if count == 0:
            return []
        points = unit_points(count, random)
        knots = np.linspace(0.0, count / rate, _KNOTS)
        first = 2 * rate / (1 + self.factor)
        passed = (np.arange(_KNOTS - 1) + 0.5) / (_KNOTS - 1)
        levels = first * (1 + (self.factor - 1) * passed)
        missing = points[-1] - float(np.diff(knots) @ levels)
        if missing > 0:  # a finite draw may take longer than the mean: then the last level goes on
            knots = np.append(knots, knots[-1] + 1.01 * missing / levels[-1])
            levels = np.append(levels, levels[-1])
        return inverted(points, knots, levels)


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
        return nanoseconds(repeated * (size / rate))


def unit_points(count: int, random: Generator) -> _Numbers:
    """Arrivals of a Poisson process of rate 1."""
    return np.cumsum(random.standard_exponential(count))


def inverted(points: _Numbers, knots: _Numbers, levels: _Numbers) -> list[int]:
    """When the integral of the rate reaches each point."""
    covered = np.concatenate([[0.0], np.cumsum(np.diff(knots) * levels)])
    return nanoseconds(np.interp(points, covered, knots))


def nanoseconds(seconds: _Numbers) -> list[int]:
    """As arrival processes give their times."""
    listed: list[int] = np.rint(seconds * _NANOSECONDS).astype(np.int64).tolist()
    return listed
