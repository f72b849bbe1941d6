"""What a run of a language model's pods was worth. Shares are of all calls that count."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from batchedmodel_cli.simulator.planned_engine import PlannedEngine
from batchedmodel_cli.simulator.token_engine import Call, TokenEngine
from batchedmodel_cli.simulator.token_pods import TokenPod
from batchedmodel_cli.simulator.verdicts import Latency

_MEASURED: Final = (50, 95, 99)
_REST: Final = 60.0
"""Seconds in which it is looked again whether all calls have ended."""


SimulatedPod: TypeAlias = TokenPod[TokenEngine] | TokenPod[PlannedEngine]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVerdict:
    """What a run was worth."""

    requests: int
    in_time_share: float
    """Answered, with both targets met."""
    late_share: float
    """Answered, with one missed."""
    gone_shares: dict[str, float]
    """Not answered, by reason."""
    first_token: Latency | None
    """From arrival; None if nothing was answered."""
    between_tokens: Latency | None
    """Of each call's mean time between two tokens; None if nothing has two tokens."""
    answered: float
    """Calls a second that ended with an answer, while calls came."""
    goodput: float
    """Of the calls that came in a second, those that were answered in time."""
    output_tokens: float
    """A second, of all pods, while calls came."""
    prompt_tokens: float
    used_share: float
    """Of what the average engine does where all its places are always taken."""
    mean_sequences: float
    """In the average engine at once."""
    preempted: int
    """Sequences that began anew, as the cache was full."""


def served(
    pods: Iterable[tuple[SimulatedPod, Sequence[Call]]],
    *,
    begins: float,
    ends: float,
    first_token_seconds: float | None,
    token_seconds: float | None,
) -> TokenVerdict:
    """Let pods serve their calls, which are sorted, and judge those that come from `begins` on.

    What comes before warms them up; the last ones come before `ends`.
    """
    calls: list[Call] = []
    totals, count = _Totals(), 0
    for pod, its in pods:
        calls += _served(pod, its, begins, ends, totals)
        count += 1
    seconds = ends - begins
    answered = [call for call in calls if call.ended_at is not None]
    good = sum(call.good(first_token_seconds, token_seconds) for call in calls)
    gone = Counter(call.gone.value for call in calls if call.gone is not None)
    total = max(1, len(calls))
    return TokenVerdict(
        requests=len(calls),
        in_time_share=good / total,
        late_share=(len(answered) - good) / total,
        gone_shares={reason: number / total for reason, number in sorted(gone.items())},
        first_token=_quantiles([call.first_token for call in answered]),
        between_tokens=_quantiles([call.between_tokens for call in answered if call.output > 1]),
        answered=totals.ended / seconds,
        goodput=good / seconds,
        output_tokens=totals.given / seconds,
        prompt_tokens=totals.read / seconds,
        used_share=totals.work / (seconds * count) if count else 0.0,
        mean_sequences=totals.sequences / (seconds * count) if count else 0.0,
        preempted=totals.preempted,
    )


@dataclass(slots=True)
class _Totals:
    """Of all engines between the beginning and the end."""

    given: int = 0
    read: int = 0
    work: float = 0.0
    sequences: float = 0.0
    preempted: int = 0
    ended: int = 0

    def add(self, engine: TokenEngine | PlannedEngine, sign: int) -> None:
        self.given += sign * engine.given_tokens
        self.read += sign * engine.read_tokens
        self.work += sign * engine.work(engine.read_tokens, engine.given_tokens)
        self.sequences += sign * engine.sequence_seconds
        self.preempted += sign * engine.preempted


def _served(
    pod: SimulatedPod, calls: Sequence[Call], begins: float, ends: float, totals: _Totals
) -> Iterator[Call]:
    """The calls that count; all have ended."""
    for call in calls:
        pod.arrive(call)
    pod.advance(begins)
    totals.add(pod.engine, -1)
    pod.advance(ends)
    totals.add(pod.engine, 1)
    while not pod.idle:
        pod.advance(pod.now + _REST)
    for call in calls:
        totals.ended += call.ended_at is not None and begins <= call.ended_at < ends
        if call.arrived >= begins:
            yield call


def _quantiles(seconds: Sequence[float]) -> Latency | None:
    if not seconds:
        return None
    p50, p95, p99 = (float(at) for at in np.percentile(seconds, _MEASURED))
    return Latency(mean=float(np.mean(seconds)), p50=p50, p95=p95, p99=p99)
