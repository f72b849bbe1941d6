"""What arrives in a simulation: drawn from distributions, or as recorded in a trace."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from batchedmodel_cli.simulate.inputs import LengthsWish
from batchedmodel_cli.simulator.arrivals import Arrivals, Gamma, Poisson, Replay
from batchedmodel_cli.simulator.traces import Trace
from batchedmodel_cli.simulator.workload import Constant, Lengths, Lognormal, Recorded
from batchedmodel_scheduling.queue.items import Priority

_NANOSECONDS: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Lengths, and what is known of them."""

    lengths: Lengths
    typical: int
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The requests of a simulation, before their rate is chosen."""

    arrivals: Arrivals
    sizes: Sizes
    """Of rows, or tokens of prompts."""
    outputs: Sizes | None = None
    """Tokens of generated texts."""
    rate: float
    """Requests a second, as offered."""
    requests: int
    """How many a simulation serves; all of a trace."""
    length_assumed: bool = False
    """No option says the lengths, so all have the profile's middle length."""
    priorities: tuple[Priority, ...] | None = None
    """A trace's, one for each request; None: the traffic is drawn, and all are alike."""
    of_one_pod: bool = False
    """Recorded by the sidecar of one pod."""
    described: str
    """The arrivals in words."""

    @property
    def recorded(self) -> bool:
        """Whether the times are a trace's, so that there are no more of them."""
        return self.priorities is not None

    def part(self, replicas: int) -> tuple[int, int]:
        """How many of the replicas are simulated, and how many requests go to all of them.

        Of drawn traffic one is, with a random part of it: there is as much as is wished.
        """
        if self.recorded:
            return replicas, self.requests
        return 1, self.requests * replicas


def drawn(
    *,
    rate: float,
    burstiness: float,
    requests: int,
    sizes: Sizes,
    outputs: Sizes | None = None,
    length_assumed: bool = False,
) -> Traffic:
    """Traffic at random times; gaps between requests vary by `burstiness` (1: Poisson)."""
    return Traffic(
        arrivals=Poisson() if burstiness == 1 else Gamma(cv=burstiness),
        sizes=sizes,
        outputs=outputs,
        rate=rate,
        requests=requests,
        length_assumed=length_assumed,
        described="Poisson" if burstiness == 1 else f"gamma, burstiness {burstiness:g}",
    )


def replayed(
    trace: Trace,
    *,
    requests: int,
    sizes: Sizes | None = None,
    outputs: Sizes | None = None,
    speed: float = 1.0,
    trust_priority: bool = True,
    of_one_pod: bool = False,
) -> Traffic:
    """The latest requests of a trace, so many times as fast, with other lengths if given.

    Raises `InvalidInput` if all its times are equal.
    """
    times, priorities = trace.times[-requests:], trace.priorities[-requests:]
    if not trust_priority:
        # As in the sidecar, a caller may lower its own priority but not raise it.
        priorities = tuple(max(priority, Priority.NORMAL) for priority in priorities)
    if outputs is None and trace.outputs is not None:
        outputs = recorded(trace.outputs[-requests:])
    latest = len(trace.times) > requests
    described = f"the latest of {len(trace.times):,} recorded" if latest else "as recorded"
    return Traffic(
        arrivals=Replay(recorded=times),
        sizes=sizes or recorded(trace.lengths[-requests:]),
        outputs=outputs,
        rate=speed * (len(times) - 1) * _NANOSECONDS / (times[-1] - times[0]),
        requests=len(times),
        priorities=priorities,
        of_one_pod=of_one_pod,
        described=described if speed == 1 else f"{described}, {speed:g} times as fast",
    )


def wished(wish: LengthsWish, longest: int) -> Sizes:
    """Lengths as an option says; of lognormal ones none is above `longest`."""
    typical = round(wish.median)
    if not wish.sigma:
        return Sizes(lengths=Constant(length=typical), typical=typical, longest=typical)
    longest = max(typical, longest)
    mu = math.log(wish.median)
    lengths = Lognormal(mu=mu, sigma=wish.sigma, lowest=1, highest=longest)
    return Sizes(lengths=lengths, typical=typical, longest=longest)


def recorded(lengths: Sequence[int]) -> Sizes:
    """Lengths of a trace, in its order."""
    ordered = sorted(lengths)
    typical = ordered[len(ordered) // 2]
    return Sizes(lengths=Recorded(recorded=tuple(lengths)), typical=typical, longest=ordered[-1])
