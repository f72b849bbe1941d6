"""How long a step of an engine takes, by what is in it: as measured, or as learnt since."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

_MEMORY: Final = 512
"""Steps that count; older ones are forgotten exponentially."""
_PRIOR: Final = 32
"""What was measured first counts as so many steps."""
_OUTLIER: Final = 2.0
"""A step that took more than so many times what was expected counts as one that took that."""
_FIT_EVERY: Final = 8
"""Steps from one correction to the next, which takes as long as all that is noted of them."""
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

    def seconds(self, *, prefill_tokens: int, sequences: int, context_tokens: int) -> float:
        """Of a step with so much in it."""
        return (
            self.base
            + self.prefill_token * prefill_tokens
            + self.sequence * sequences
            + self.context_token * context_tokens
        )

    def prefill_within(self, seconds: float, *, sequences: int, context_tokens: int) -> float:
        """Tokens of prompts for which a step with these sequences has time left; 0 at least."""
        left = seconds - self.seconds(
            prefill_tokens=0, sequences=sequences, context_tokens=context_tokens
        )
        if left <= 0:
            return 0.0
        return left / self.prefill_token if self.prefill_token > 0 else float("inf")

    def prefill_beside(self) -> int:
        """Tokens of prompts that take as long as one more sequence."""
        return math.ceil(self.sequence / self.prefill_token) if self.prefill_token > 0 else 0


class LearntStepCost(StepCost):
    """A measured cost, corrected by what steps take.

    Each of its four parts has a factor: the least squares of relative errors over the last steps,
    near the common factor of all where steps do not tell the parts apart. A part that was measured
    as nothing stays nothing.
    """

    def __init__(self, measured: StepCost) -> None:
        self.measured: Final = measured
        self._factors: Final = [1.0] * 4
        self._count = 0.0
        """Steps, by how much they count."""
        self._since_fit = 0
        self._took = self._measured_for = float(_PRIOR)
        """What steps took, and what was measured for such; each over the latter."""
        self._products: Final = [[0.0] * 4 for _ in range(4)]
        self._seen: Final = [0.0] * 4
        self._correct()

    def saw(self, load: StepLoad, seconds: float) -> None:
        """A step with such a load took so long; what is no time is ignored."""
        measured = self.measured
        parts = [
            measured.base,
            measured.prefill_token * load.prefill_tokens,
            measured.sequence * load.sequences,
            measured.context_token * load.context_tokens,
        ]
        first = sum(parts)
        expected = sum(factor * part for factor, part in zip(self._factors, parts, strict=True))
        if not (first > 0 and 0 < seconds < math.inf):
            return
        ratio = min(_OUTLIER, max(1 / _OUTLIER, seconds / expected))
        keep = 1 - 1 / _MEMORY
        self._count = keep * self._count + 1.0
        self._took = keep * self._took + ratio * expected / first
        self._measured_for = keep * self._measured_for + 1.0
        shares = [part / expected for part in parts]
        for at, share in enumerate(shares):
            row = self._products[at]
            for column, other in enumerate(shares):
                row[column] = keep * row[column] + share * other
            self._seen[at] = keep * self._seen[at] + share * ratio
        self._since_fit += 1
        if self._since_fit == _FIT_EVERY:
            self._since_fit = 0
            self._fit(_bounded(self._took / self._measured_for))

    def _fit(self, common: float) -> None:
        """One round of coordinate descent; the next one goes on from there."""
        factors = self._factors
        hold = _PRIOR / self._count
        for at, row in enumerate(self._products):
            weight = row[at]
            if weight <= 0:
                factors[at] = common
                continue
            others = sum(
                product * factors[column] for column, product in enumerate(row) if column != at
            )
            best = self._seen[at] - others + hold * weight * common
            factors[at] = _bounded(best / (weight * (1 + hold)))
        self._correct()

    def _correct(self) -> None:
        measured, factors = self.measured, self._factors
        self.base = measured.base * factors[0]
        self.prefill_token = measured.prefill_token * factors[1]
        self.sequence = measured.sequence * factors[2]
        self.context_token = measured.context_token * factors[3]


def _bounded(factor: float) -> float:
    return min(_FACTOR, max(1 / _FACTOR, factor))
