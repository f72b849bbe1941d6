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
class Uniform:
    """One every 1 / rate seconds."""

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        return _nanoseconds(np.arange(count) / rate)


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
        low = 2 * rate / (1 + self.ratio)
        levels = ((low, self.sojourn_seconds), (low * self.ratio, self.sojourn_seconds))
        return _switching(count, levels, random)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    """Poisson bursts between silences, both of exponential length.

    By default they last as in the Azure code trace of 2023, sped up to what one device serves.
    """

    on_seconds: float = 0.25
    off_seconds: float = 1.4

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        level = rate * (self.on_seconds + self.off_seconds) / self.on_seconds
        return _switching(count, ((0.0, self.off_seconds), (level, self.on_seconds)), random)


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
class Step:
    """Poisson whose rate is multiplied by `factor` when the fraction `at` of the time is over."""

    factor: float = 4.0
    at: float = 0.5

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        horizon = count / rate
        before = rate / (self.at + self.factor * (1 - self.at))
        knots = np.array([0.0, self.at * horizon, horizon])
        return _modulated(count, knots, np.array([before, before * self.factor]), random)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Poisson whose rate grows evenly to `factor` times what it was in the beginning."""

    factor: float = 4.0

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        knots = np.linspace(0.0, count / rate, _KNOTS)
        first = 2 * rate / (1 + self.factor)
        passed = (np.arange(_KNOTS - 1) + 0.5) / (_KNOTS - 1)
        return _modulated(count, knots, first * (1 + (self.factor - 1) * passed), random)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sine:
    """Poisson whose rate swings by `amplitude`, a share of the mean of at most 1."""

    period_seconds: float
    amplitude: float = 0.5

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        periods = _periods(count, rate, self.period_seconds)
        steps = np.arange(64 * periods)
        levels = rate * (1 + self.amplitude * np.sin(2 * np.pi * (steps + 0.5) / 64))
        knots = np.arange(64 * periods + 1) * (self.period_seconds / 64)
        return _modulated(count, knots, levels, random)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spikes:
    """Poisson with a regular spike at the end of every period."""

    factor: float = 3.0
    spike_seconds: float = 30.0
    period_seconds: float = 420.0

    def times(self, count: int, rate: float, random: Generator) -> list[int]:
        """See `Arrivals`."""
        calm_seconds = self.period_seconds - self.spike_seconds
        calm = rate * self.period_seconds / (calm_seconds + self.factor * self.spike_seconds)
        periods = _periods(count, rate, self.period_seconds)
        lengths = np.tile([calm_seconds, self.spike_seconds], periods)
        knots = np.concatenate([[0.0], np.cumsum(lengths)])
        return _modulated(count, knots, np.tile([calm, calm * self.factor], periods), random)


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


def _switching(
    count: int, levels: tuple[tuple[float, float], tuple[float, float]], random: Generator
) -> list[int]:
    """Poisson arrivals whose rate alternates between two levels (rate, mean sojourn in seconds)."""
    if count == 0:
        return []
    points = _unit_points(count, random)
    (_, first_sojourn), (_, second_sojourn) = levels
    # The process begins in a state that it is in at a random moment.
    first = int(random.random() * (first_sojourn + second_sojourn) >= first_sojourn)
    order = (levels[first], levels[1 - first])
    rates, means = (np.array(column) for column in zip(*order, strict=True))
    cycle = float(rates @ means)
    lengths = np.empty(0)
    while lengths.size == 0 or points[-1] > _covered(lengths, rates):
        # Even numbers, so that what follows begins in the first state again.
        more = 2 * (int(points[-1] / cycle) + 8)
        drawn = random.standard_exponential(more) * np.tile(means, more // 2)
        lengths = np.concatenate([lengths, drawn])
    knots = np.concatenate([[0.0], np.cumsum(lengths)])
    return _inverted(points, knots, np.tile(rates, len(lengths) // 2))


def _covered(lengths: _Numbers, rates: _Numbers) -> float:
    return float(lengths @ np.tile(rates, len(lengths) // 2))


def _modulated(count: int, knots: _Numbers, levels: _Numbers, random: Generator) -> list[int]:
    """Poisson arrivals of the rate levels[i] from knots[i] to knots[i + 1], the last for ever."""
    if count == 0:
        return []
    points = _unit_points(count, random)
    missing = points[-1] - float(np.diff(knots) @ levels)
    if missing > 0:
        last = levels[levels > 0][-1]
        knots = np.append(knots, knots[-1] + 1.01 * missing / last)
        levels = np.append(levels, last)
    return _inverted(points, knots, levels)


def _inverted(points: _Numbers, knots: _Numbers, levels: _Numbers) -> list[int]:
    """When the integral of the rate reaches each point."""
    covered = np.concatenate([[0.0], np.cumsum(np.diff(knots) * levels)])
    return _nanoseconds(np.interp(points, covered, knots))


def _periods(count: int, rate: float, period_seconds: float) -> int:
    # One more than the mean needs: the arrivals of a finite draw may take longer than the mean.
    return int(count / (rate * period_seconds)) + 2


def _nanoseconds(seconds: _Numbers) -> list[int]:
    listed: list[int] = np.rint(seconds * _NANOSECONDS).astype(np.int64).tolist()
    return listed
