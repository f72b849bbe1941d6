"""How long the items of a workload are: the distributions that lengths are drawn from.

Lengths are independent of arrival times, except where both are replayed from one trace.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator

from batchedmodel_contract.invalid_input import InvalidInput


class Lengths(Protocol):
    """A source of lengths of at least 1."""

    def draw(self, count: int, random: Generator) -> list[int]:
        """As many lengths, in order of arrival."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Items of one size, as images are."""

    length: int = 1

    def draw(self, count: int, random: Generator) -> list[int]:
        """See `Lengths`."""
        return [self.length] * count


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """Whole numbers from exp(N(mu, sigma^2)), those outside the bounds moved to the bound."""

    mu: float
    sigma: float
    lowest: int
    highest: int

    def draw(self, count: int, random: Generator) -> list[int]:
        """See `Lengths`."""
        values = np.exp(self.mu + self.sigma * random.standard_normal(count))
        whole: list[int] = np.clip(np.rint(values), self.lowest, self.highest).astype(int).tolist()
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Lengths of a trace in its order, begun anew at its end: the n-th belongs to the n-th time."""

    recorded: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.recorded:
            raise InvalidInput("trace", "must hold at least one length")

    def draw(self, count: int, random: Generator) -> list[int]:
        """See `Lengths`."""
        rounds = -(-count // len(self.recorded))
        return list((self.recorded * rounds)[:count])
