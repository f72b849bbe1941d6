"""What a run of a language model's pods was worth. Shares are of all calls that count."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from batchedmodel_cli.simulator.planned_engine import PlannedEngine
from batchedmodel_cli.simulator.token_engine import Call, EngineFigures, TokenEngine
from batchedmodel_cli.simulator.token_pods import TokenPod
from batchedmodel_cli.simulator.verdicts import Latency, latency_of

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

    @property
    def latency(self) -> Latency | None:
        """By which settings are compared: of the first token."""
        return self.first_token


def served(
    pods: Iterable[tuple[SimulatedPod, Sequence[Call]]],
    figures: EngineFigures,
    *,
    begins: float,
    ends: float,
    first_token_seconds: float | None,
    token_seconds: float | None,
) -> TokenVerdict:
    """Let pods serve their calls, which are sorted, and judge those that come from `begins` on.

    What comes before warms them up; the last ones come before `ends`. All engines have the same
    figures.
    """
    every: list[Call] = []
    totals, count = np.zeros(4), 0
    for pod, its in pods:
        for call in its:
            pod.arrive(call)
        pod.advance(begins)
        before = _counters(pod.engine)
        pod.advance(ends)
        totals += _counters(pod.engine) - before
        while not pod.idle:
            pod.advance(pod.now + _REST)
        every += its
        count += 1
    given, read, sequences, preempted = totals.tolist()
    calls = [call for call in every if call.arrived >= begins]
    ended = sum(call.ended_at is not None and begins <= call.ended_at < ends for call in every)
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
        first_token=latency_of([call.first_token for call in answered]),
        between_tokens=latency_of([call.between_tokens for call in answered if call.output > 1]),
        answered=ended / seconds,
        goodput=good / seconds,
        output_tokens=given / seconds,
        prompt_tokens=read / seconds,
        used_share=figures.work(read, given) / (seconds * count) if count else 0.0,
        mean_sequences=sequences / (seconds * count) if count else 0.0,
        preempted=int(preempted),
    )


def _counters(engine: TokenEngine | PlannedEngine) -> NDArray[np.float64]:
    """Tokens made and read, seconds of sequences, and preemptions."""
    return np.array(
        [engine.given_tokens, engine.read_tokens, engine.sequence_seconds, engine.preempted]
    )
