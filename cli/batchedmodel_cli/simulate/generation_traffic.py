"""The texts that are asked of a language model in a simulation: drawn, or as recorded."""

import math
from dataclasses import dataclass
from typing import Final

from batchedmodel_cli.simulate.inputs import LengthsWish
from batchedmodel_cli.simulator.arrivals import Arrivals, Gamma, Poisson, Replay
from batchedmodel_cli.simulator.traces import Trace, read_trace
from batchedmodel_cli.simulator.workload import Constant, Lengths, Lognormal, Recorded
from batchedmodel_contract.invalid_input import InvalidInput

_NANOSECONDS: Final = 1e9
_LONGEST: Final = 1_000_000
"""Tokens of what is drawn, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Lengths in tokens, instead of a trace's."""

    prompts: LengthsWish | None
    outputs: LengthsWish | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTraffic:
    """The requests of a simulation, before their rate is chosen."""

    arrivals: Arrivals
    prompts: Lengths
    outputs: Lengths
    rate: float
    """Requests a second, as offered."""
    requests: int
    """How many a simulation serves; all of a trace."""
    recorded: bool
    """Their times are a trace's, so there are no more of them."""
    described: str
    """The arrivals in words."""


def drawn(*, rate: float, burstiness: float, wishes: Wishes, requests: int) -> TextTraffic:
    """Traffic from distributions; both lengths must be wished."""
    if wishes.prompts is None or wishes.outputs is None:
        raise ValueError("drawn traffic needs both lengths; this is a bug")
    return _drawn(rate, burstiness, requests, _lengths(wishes.prompts), _lengths(wishes.outputs))


def drawn_as_in(
    text: str, *, rate: float, burstiness: float, wishes: Wishes, requests: int
) -> TextTraffic:
    """Traffic at random times; prompts and answers are as long as a trace's, pair by pair."""
    prompts, outputs = _recorded(read_trace(text), wishes, latest=0)
    return _drawn(rate, burstiness, requests, prompts, outputs)


def replayed(text: str, *, speed: float, wishes: Wishes, requests: int) -> TextTraffic:
    """The latest requests of a trace, so many times as fast.

    Raises `InvalidInput` with line and column when the text is no trace.
    """
    trace = read_trace(text)
    times = trace.times[-requests:]
    arrivals = Replay(recorded=times)  # raises `InvalidInput` if all times are equal
    prompts, outputs = _recorded(trace, wishes, latest=requests)
    described = "as recorded"
    if len(trace.times) > requests:
        described = f"the latest of {len(trace.times):,} recorded"
    return TextTraffic(
        arrivals=arrivals,
        prompts=prompts,
        outputs=outputs,
        rate=speed * (len(times) - 1) * _NANOSECONDS / (times[-1] - times[0]),
        requests=len(times),
        recorded=True,
        described=described if speed == 1 else f"{described}, {speed:g} times as fast",
    )


def _drawn(
    rate: float, burstiness: float, requests: int, prompts: Lengths, outputs: Lengths
) -> TextTraffic:
    return TextTraffic(
        arrivals=Poisson() if burstiness == 1 else Gamma(cv=burstiness),
        prompts=prompts,
        outputs=outputs,
        rate=rate,
        requests=requests,
        recorded=False,
        described="Poisson" if burstiness == 1 else f"gamma, burstiness {burstiness:g}",
    )


def _recorded(trace: Trace, wishes: Wishes, *, latest: int) -> tuple[Lengths, Lengths]:
    """A trace's lengths, or those that are wished; of its latest requests, or of all (0)."""
    if trace.outputs is None and wishes.outputs is None:
        raise InvalidInput(
            "trace: line 1",
            "names no column GeneratedTokens (or output, beside seconds and length): say --outputs",
        )
    outputs: Lengths
    if wishes.outputs is not None:
        outputs = _lengths(wishes.outputs)
    else:
        outputs = Recorded(recorded=(trace.outputs or ())[-latest:])
    if wishes.prompts is not None:
        return _lengths(wishes.prompts), outputs
    return Recorded(recorded=trace.lengths[-latest:]), outputs


def _lengths(wish: LengthsWish) -> Lengths:
    if not wish.sigma:
        return Constant(length=round(wish.median))
    return Lognormal(mu=math.log(wish.median), sigma=wish.sigma, lowest=1, highest=_LONGEST)
