"""Devices that are not what their curve says: noise, stragglers and drift."""

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final

from numpy.random import Generator

from batchedmodel_cli.simulator.engine import NANOSECONDS, Plant
from batchedmodel_cli.simulator.workload import stream
from batchedmodel_scheduling.queue.items import Item

_DRAWN_AT_ONCE: Final = 1024  # single draws would cost more than everything else here


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbances:
    """How a device differs from its curve; by default in nothing."""

    noise: float = 0.0
    """Standard deviation of the logarithm of a factor whose median is 1."""
    straggler_probability: float = 0.0
    straggler_factor: float = 4.0
    drift: tuple[tuple[float, float], ...] = ()
    """(second, factor), ascending: from then on everything takes that many times as long."""


@dataclass(slots=True, kw_only=True)
class DisturbedPlant(Plant):
    """A device of the simulator. Each seed and each name has disturbances of its own."""

    disturbances: Disturbances = field(default_factory=Disturbances)
    seed: InitVar[int] = 0
    name: InitVar[str] = "device"
    _factors: Iterator[float] = field(init=False, repr=False)

    def __post_init__(self, seed: int, name: str) -> None:
        self._factors = _factors(
            self.disturbances, stream(seed, f"{name}/noise"), stream(seed, f"{name}/stragglers")
        )

    def duration(self, items: Sequence[Item], now: int) -> int:
        """See `Device`; at least 1."""
        seconds = self.curve.seconds([item.length for item in items]) * next(self._factors)
        for since, factor in reversed(self.disturbances.drift):
            if now >= since * NANOSECONDS:
                seconds *= factor
                break
        return max(1, round(seconds * NANOSECONDS))


def _factors(
    disturbances: Disturbances, noise: Generator, stragglers: Generator
) -> Iterator[float]:
    """One factor for each batch, whatever the batch holds."""
    while True:
        factors = [1.0] * _DRAWN_AT_ONCE
        if disturbances.noise:
            factors = noise.lognormal(0.0, disturbances.noise, _DRAWN_AT_ONCE).tolist()
        if disturbances.straggler_probability:
            late = stragglers.random(_DRAWN_AT_ONCE) < disturbances.straggler_probability
            factors = [
                factor * disturbances.straggler_factor if is_late else factor
                for factor, is_late in zip(factors, late, strict=True)
            ]
        yield from factors
