"""What arrives in a simulation: drawn from distributions, or a recorded trace."""

import math
from dataclasses import dataclass
from typing import Final

from batchedmodel_cli.simulate.inputs import LengthsWish
from batchedmodel_cli.simulator.arrivals import Arrivals, Gamma, Poisson, Replay
from batchedmodel_cli.simulator.traces import read_trace
from batchedmodel_cli.simulator.workload import Constant, Lengths, Lognormal, Recorded
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_scheduling.queue.items import Priority

_NANOSECONDS: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The requests of a simulation, before their rate is chosen."""

    arrivals: Arrivals
    lengths: Lengths
    rate: float
    """Requests a second, as offered."""
    requests: int
    """How many a simulation serves; all of a trace."""
    typical_length: int
    longest: int
    length_assumed: bool = False
    """No option says the lengths, so all have the profile's middle length."""
    priorities: tuple[Priority, ...] | None = None
    """A trace's, one for each request; None: the traffic is drawn, and all are alike."""
    of_one_pod: bool = False
    """Recorded by the sidecar of one pod."""
    described: str
    """The arrivals in words."""


def drawn(
    *, rate: float, burstiness: float, wish: LengthsWish | None, profile: Profile, requests: int
) -> Traffic:
    """Traffic from distributions; gaps between requests vary by `burstiness` (1: Poisson)."""
    measured = sorted({point.length for point in profile.points})
    middle = LengthsWish(median=max(1, measured[len(measured) // 2]))
    lengths, typical, longest = _lengths(wish or middle, profile)
    return Traffic(
        arrivals=Poisson() if burstiness == 1 else Gamma(cv=burstiness),
        lengths=lengths,
        rate=rate,
        requests=requests,
        typical_length=typical,
        longest=longest,
        length_assumed=wish is None,
        described="Poisson" if burstiness == 1 else f"gamma, burstiness {burstiness:g}",
    )


def replayed(
    text: str,
    *,
    wish: LengthsWish | None,
    profile: Profile,
    requests: int,
    trust_priority: bool,
    of_one_pod: bool,
) -> Traffic:
    """The latest requests of a trace, with other lengths if any are wished.

    Raises `InvalidInput` with line and column when the text is no trace.
    """
    trace = read_trace(text)
    times, recorded = trace.times[-requests:], trace.lengths[-requests:]
    priorities = trace.priorities[-requests:]
    if not trust_priority:
        # As in the sidecar, a caller may lower its own priority but not raise it.
        priorities = tuple(max(priority, Priority.NORMAL) for priority in priorities)
    arrivals = Replay(recorded=times)  # raises `InvalidInput` if all times are equal
    lengths: Lengths = Recorded(recorded=recorded)
    ordered = sorted(recorded)
    typical, longest = ordered[len(ordered) // 2], ordered[-1]
    if wish is not None:
        lengths, typical, longest = _lengths(wish, profile)
    latest = len(trace.times) > requests
    return Traffic(
        arrivals=arrivals,
        lengths=lengths,
        rate=(len(times) - 1) * _NANOSECONDS / (times[-1] - times[0]),
        requests=len(times),
        typical_length=typical,
        longest=longest,
        priorities=priorities,
        of_one_pod=of_one_pod,
        described=f"the latest of {len(trace.times):,} recorded" if latest else "as recorded",
    )


def _lengths(wish: LengthsWish, profile: Profile) -> tuple[Lengths, int, int]:
    """The lengths, the typical one and the greatest."""
    typical = round(wish.median)
    if not wish.sigma:
        return Constant(length=typical), typical, typical
    # A model cuts longer requests; its profile goes up to the longest that it takes.
    longest = max(typical, longest_measured(profile))
    mu = math.log(wish.median)
    return Lognormal(mu=mu, sigma=wish.sigma, lowest=1, highest=longest), typical, longest


def longest_measured(profile: Profile) -> int:
    """The greatest length in the profile, at least 1."""
    return max(1, *(point.length for point in profile.points))
