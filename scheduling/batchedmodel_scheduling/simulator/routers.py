"""How requests are spread over pods, by what a proxy in front of them knows."""

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from batchedmodel_scheduling.simulator.engine import Request


@dataclass(slots=True)
class RoundRobin:
    """One pod after the other."""

    _next: int = 0

    def route(self, request: Request, outstanding: Sequence[int]) -> int:
        """See `engine.Router`."""
        chosen = self._next % len(outstanding)
        self._next = chosen + 1
        return chosen


@dataclass(slots=True)
class Random:
    """Any pod, as a Kubernetes service spreads connections."""

    random: Generator

    def route(self, request: Request, outstanding: Sequence[int]) -> int:
        """See `engine.Router`."""
        return int(self.random.integers(len(outstanding)))


@dataclass(slots=True)
class LeastOutstanding:
    """The pod with the fewest requests; among equals the next in turn."""

    _next: int = 0

    def route(self, request: Request, outstanding: Sequence[int]) -> int:
        """See `engine.Router`."""
        pods = len(outstanding)
        chosen = min(range(pods), key=lambda pod: (outstanding[pod], (pod - self._next) % pods))
        self._next = chosen + 1
        return chosen


@dataclass(slots=True)
class PowerOfTwo:
    """The one with fewer requests of two that are drawn."""

    random: Generator

    def route(self, request: Request, outstanding: Sequence[int]) -> int:
        """See `engine.Router`."""
        pods = len(outstanding)
        first = int(self.random.integers(pods))
        if pods == 1:
            return first
        second = (first + 1 + int(self.random.integers(pods - 1))) % pods
        return min(first, second, key=lambda pod: outstanding[pod])
