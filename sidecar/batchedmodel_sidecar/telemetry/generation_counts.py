"""What is counted and measured of generated text. `metrics` shows it."""

from collections.abc import Sequence
from typing import Final

from batchedmodel_sidecar.telemetry.durations import SECONDS, Histogram

_TOKEN_SECONDS: Final[Sequence[float]] = (
    0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
)  # fmt: skip


class GenerationCounts:
    """Plain numbers with one writer."""

    def __init__(self) -> None:
        self.queued: Final = Histogram(SECONDS)
        """From a request's arrival until it goes to the server."""
        self.first_token: Final = Histogram(SECONDS)
        """From a request's arrival to its first token, where it streams."""
        self.output_token: Final = Histogram(_TOKEN_SECONDS)
        """Mean time between the tokens of a stream that ended."""
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        """Of prompts, that were in the engine's cache; of our engine only."""
        self.preemptions = 0
        """Sequences that gave way to others since the engine's start; of our engine only."""
        self.cache_usage: float | None = None
        """Of the server's cache, from 0 to 1; None where nobody says so."""

    def ended(self, prompt_tokens: int, output_tokens: int) -> None:
        """A request ended that had so many."""
        if output_tokens:
            self.prompt_tokens += prompt_tokens
            self.output_tokens += output_tokens
