"""How long a step of an engine takes, by what is in it: as measured, or as learnt since."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from batchedmodel_scheduling.latency.drift import Drift

_FACTOR: Final = 16.0
"""No cost becomes more than so many times what was measured first, nor less than that part."""


class StepLoad(NamedTuple):
    """What is in a step."""

    prefill_tokens: int
    """Of prompts, computed in it."""
    sequences: int
    """That have a part in it."""
    context_tokens: int
    """That the sequences which only go on have in the cache."""


@dataclass(kw_only=True)
class StepCost:
    """Seconds of a step; measured when the engine starts."""

    base: float
    """Of any step."""
    prefill_token: float
    """That each token of a prompt adds."""
    sequence: float
    """That each sequence adds which gets a token."""
    context_token: float = 0.0
    """That each token adds which these sequences have in the cache."""

    def __post_init__(self) -> None:
        if min(self.base, self.prefill_token, self.sequence, self.context_token) < 0:
            raise ValueError("a step has no negative cost")

    def predict(self, load: StepLoad) -> float:
        """Seconds of a step with such a load."""
        return (
            self.base
            + self.prefill_token * load.prefill_tokens
            + self.sequence * load.sequences
            + self.context_token * load.context_tokens
        )

    def prefill_within(self, seconds: float, *, sequences: int, context_tokens: int) -> float:
        """Tokens of prompts for which a step with these sequences has time left; 0 at least."""
        left = seconds - self.predict(StepLoad(0, sequences, context_tokens))
        if left <= 0:
            return 0.0
        return left / self.prefill_token if self.prefill_token > 0 else float("inf")

    def prefill_beside(self) -> int:
        """Tokens of prompts that take as long as one more sequence."""
        return math.ceil(self.sequence / self.prefill_token) if self.prefill_token > 0 else 0


class StepTimes(StepCost):
    """A measured cost, corrected by what steps take: by one `Drift` for prompts, one for the rest.

    A step tells of what most of its time goes to. With one factor for all, a time of prompts that
    was measured as half of what it is makes the time between tokens, p99, 1.7 times as long.
    """

    def __init__(self, measured: StepCost) -> None:
        self.measured: Final = measured
        self._of_prompts: Final = Drift()
        self._of_rest: Final = Drift()
        self._correct()

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step; what is no time is ignored."""
        prompts = self.measured.prefill_token * load.prefill_tokens
        rest = self.measured.predict(StepLoad(0, load.sequences, load.context_tokens))
        if not (prompts + rest > 0 and 0 < seconds < math.inf):
            return
        if prompts > rest:
            left = seconds - rest * _factor(self._of_rest)
            self._of_prompts.observe(_bounded(left / prompts))
        else:
            left = seconds - prompts * _factor(self._of_prompts)
            self._of_rest.observe(_bounded(left / rest))
        self._correct()

    def _correct(self) -> None:
        measured, rest = self.measured, _factor(self._of_rest)
        self.base = measured.base * rest
        self.prefill_token = measured.prefill_token * _factor(self._of_prompts)
        self.sequence = measured.sequence * rest
        self.context_token = measured.context_token * rest


def _factor(drift: Drift) -> float:
    return _bounded(drift.scale)


def _bounded(factor: float) -> float:
    return min(_FACTOR, max(1 / _FACTOR, factor))
