"""When requests arrive: the arrival processes that workloads are drawn from.

Used by benchmarks, tests and `batchedmodel simulate`. A process knows nothing of lengths, targets
or policies. Each draws first what does not depend on the rate, so that
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
        return nanoseconds(np.cumsum(random.standard_exponential(count)) / rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Independent gaps whose standard deviation is `cv` times their mean: bursty above 1."""

    cv: float

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        shape = 1 / self.cv**2
        return nanoseconds(np.cumsum(random.standard_gamma(shape, count)) / (shape * rate))


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


def nanoseconds(seconds: _Numbers) -> list[int]:
    """As arrival processes give their times."""
    listed: list[int] = np.rint(seconds * _NANOSECONDS).astype(np.int64).tolist()
    return listed
