"""What a simulation serves: requests with their times, lengths and targets.

Lengths are independent of arrival times, except where both are replayed from one trace.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import numpy as np
from numpy.random import PCG64, Generator

from batchedmodel_cli.simulator.engine import NANOSECONDS, Request
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_scheduling.queue.items import Priority


def stream(seed: int, name: str) -> Generator:
    """Random numbers by name: equal arguments give equal numbers on every machine.

    Arrivals, lengths, noise and stragglers never share a stream. So another policy, which makes
    other batches and so other draws of noise, still meets exactly the same requests.
    """
    digest = sha256(f"{seed}\n{name}".encode()).digest()
    # The bit generator is named, because the default one may change with the library.
    return Generator(PCG64(int.from_bytes(digest, "big")))


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


def requests(
    times: Sequence[int],
    lengths: Sequence[int],
    target_seconds: float,
    *,
    refuse: bool = False,
    request_timeout_seconds: float = 30.0,
    priorities: Sequence[Priority] | None = None,
) -> list[Request]:
    """One request for each time (nanoseconds, ascending) and length.

    Each is due `target_seconds` after its arrival. Its caller stops waiting then too if lateness is
    refused, otherwise at the time-out. A target beyond the time-out is cut to it.
    """
    timeout = round(request_timeout_seconds * NANOSECONDS)
    target = min(timeout, round(target_seconds * NANOSECONDS))
    patience = target if refuse else timeout
    if priorities is None:
        priorities = [Priority.NORMAL] * len(times)
    return [
        Request(at=at, length=length, due=at + target, deadline=at + patience, priority=priority)
        for at, length, priority in zip(times, lengths, priorities, strict=True)
    ]
