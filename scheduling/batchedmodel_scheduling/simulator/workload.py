"""What a simulation serves: requests with their times, lengths and targets.

A workload is described once and drawn for any seed and rate; arrivals and lengths come from streams
of their own, so that neither depends on the other or on the policy that will serve them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from batchedmodel_scheduling.core.policy import Priority
from batchedmodel_scheduling.simulator.arrivals import Arrivals
from batchedmodel_scheduling.simulator.engine import NANOSECONDS, Request
from batchedmodel_scheduling.simulator.lengths import Lengths
from batchedmodel_scheduling.simulator.streams import stream


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests before their number, their rate and their seed are chosen."""

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
