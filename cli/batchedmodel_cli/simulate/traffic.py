"""What arrives in a simulation: drawn from distributions, or a recorded trace.

Called by `command`, used by `simulator`. The simulator's processes are imported when traffic is
made, as everything of the simulator here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from batchedmodel_cli.simulate.options import LengthsWish

if TYPE_CHECKING:
    from batchedmodel_contract.inference.profile import Profile
    from batchedmodel_scheduling.core.policy import Priority
    from batchedmodel_scheduling.simulator.arrivals import Arrivals
    from batchedmodel_scheduling.simulator.traces import Trace
    from batchedmodel_scheduling.simulator.workload import Lengths

_NANOSECONDS: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What arrives, and in words."""

    arrivals: Arrivals
    lengths: Lengths
    rate: float
    """Requests a second."""
    requests: int
    """How many a simulation serves; for a trace, its size."""
    typical_length: int
    longest: int
    priorities: tuple[Priority, ...] | None
    """Of a trace, one for each request; None: all alike, and the traffic is drawn."""
    described: str


def drawn(
    *,
    rate: float,
    burstiness: float,
    wish: LengthsWish | None,
    profile: Profile,
    requests: int,
) -> Traffic:
    """Traffic from distributions; gaps between requests vary by `burstiness` (1: Poisson)."""
    from batchedmodel_scheduling.simulator.arrivals import Gamma, Poisson

    if wish is None:
        wish = LengthsWish(median=middle_length(profile))
    return Traffic(
        arrivals=Poisson() if burstiness == 1 else Gamma(cv=burstiness),
        lengths=_lengths(wish, profile),
        rate=rate,
        requests=requests,
        typical_length=round(wish.median),
        longest=_longest(wish, profile),
        priorities=None,
        described="Poisson" if burstiness == 1 else f"gamma, burstiness {burstiness:g}",
    )


def replayed(
    text: str, *, wish: LengthsWish | None, profile: Profile, requests: int, trust_priority: bool
) -> Traffic:
    """The latest requests of a trace, of these lengths if any are wished.

    Raises `InvalidInput` with line and column when the text is no trace.
    """
    from batchedmodel_scheduling.core.policy import Priority
    from batchedmodel_scheduling.simulator.traces import Trace, read_trace
    from batchedmodel_scheduling.simulator.workload import Recorded

    trace = read_trace(text)
    priorities = trace.priorities[-requests:]
    if not trust_priority:
        # As the sidecar does: a caller may lower its own priority, not raise it.
        priorities = tuple(max(priority, Priority.NORMAL) for priority in priorities)
    latest = Trace(
        times=trace.times[-requests:], lengths=trace.lengths[-requests:], priorities=priorities
    )
    ordered = sorted(latest.lengths)
    return Traffic(
        arrivals=latest.arrivals(),  # first: it refuses a trace without extent, which has no rate
        lengths=Recorded(recorded=latest.lengths) if wish is None else _lengths(wish, profile),
        rate=_rate(latest),
        requests=len(latest.times),
        typical_length=ordered[len(ordered) // 2] if wish is None else round(wish.median),
        longest=ordered[-1] if wish is None else _longest(wish, profile),
        priorities=latest.priorities,
        described="as recorded"
        if len(trace.times) <= requests
        else f"the latest of {len(trace.times):,} recorded",
    )


def middle_length(profile: Profile) -> int:
    """What stands for a typical item while nobody says how long items are."""
    measured = sorted({point.length for point in profile.points})
    return max(1, measured[len(measured) // 2])


def longest_measured(profile: Profile) -> int:
    """The greatest length in the profile, at least 1."""
    return max(1, *(point.length for point in profile.points))


def _rate(trace: Trace) -> float:
    return (len(trace.times) - 1) * _NANOSECONDS / (trace.times[-1] - trace.times[0])


def _lengths(wish: LengthsWish, profile: Profile) -> Lengths:
    from batchedmodel_scheduling.simulator.workload import Constant, Lognormal

    if not wish.sigma:
        return Constant(length=round(wish.median))
    highest = _longest(wish, profile)
    return Lognormal(mu=math.log(wish.median), sigma=wish.sigma, lowest=1, highest=highest)


def _longest(wish: LengthsWish, profile: Profile) -> int:
    """A model cuts what is longer than it can take, and its profile goes up to there."""
    median = round(wish.median)
    return max(median, longest_measured(profile)) if wish.sigma else median
