"""Modelled devices: what happens to a batch between its release and its answer.

The engine asks a plant how long a forward pass takes. The plant adds to an exact curve what real
devices add: noise, stragglers, drift, and the way from the scheduler to the device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final

from numpy.random import Generator

from batchedmodel_cli.simulator.curves import Curve
from batchedmodel_cli.simulator.engine import NANOSECONDS
from batchedmodel_cli.simulator.workload import stream

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
class Plant:
    """A device of the simulator. Each seed and each name has disturbances of its own."""

    curve: Curve
    hand_off_seconds: float = 0.0
    workers: int = 1
    depth: int = 1
    disturbances: Disturbances = field(default_factory=Disturbances)
    seed: InitVar[int] = 0
    name: InitVar[str] = "device"
    hand_off: int = field(init=False)
    _factors: Iterator[float] = field(init=False, repr=False)

    def __post_init__(self, seed: int, name: str) -> None:
        self.hand_off = round(self.hand_off_seconds * NANOSECONDS)
        self._factors = _factors(
            self.disturbances, stream(seed, f"{name}/noise"), stream(seed, f"{name}/stragglers")
        )

    def duration(self, lengths: Sequence[int], now: int) -> int:
        """Nanoseconds of the forward pass that begins `now`; at least 1."""
        seconds = self.curve.seconds(lengths) * next(self._factors)
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
