"""Requests before their number, their rate and their seed are chosen."""

from dataclasses import dataclass

from batchedmodel_cli.simulator.arrivals import Arrivals
from batchedmodel_cli.simulator.engine import Request
from batchedmodel_cli.simulator.workload import Lengths, requests, stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Arrivals, lengths and targets, of which any number is drawn for any seed and rate."""

    arrivals: Arrivals
    lengths: Lengths
    target_seconds: float
    refuse: bool = False
    request_timeout_seconds: float = 30.0

    def draw(self, seed: int, count: int, rate: float) -> list[Request]:
        """`count` requests, `rate` per second on average."""
        return requests(
            self.arrivals.times(count, rate, stream(seed, "arrivals")),
            self.lengths.draw(count, stream(seed, "lengths")),
            self.target_seconds,
            refuse=self.refuse,
            request_timeout_seconds=self.request_timeout_seconds,
        )
