"""How long a step of an engine takes, by what is in it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
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
