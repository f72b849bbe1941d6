"""What answers in all protocols are made of, and who writes them. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from batchedmodel_contract.generation.frames import Token


class TextUsage(NamedTuple):
    """Tokens of one request."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Of the prompts', those that the engine had computed for others before."""

    def document(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Piece(NamedTuple):
    """New text of one choice, or all of it."""

    choice: int
    text: str
    reason: str | None = None
    """Why it ended: `stop` or `length`; None where it has not."""
    tokens: Sequence[Token] = ()
    """What it was made of, where probabilities are wanted."""
    offset: int = 0
    """Characters of the choice in front of it."""


class AnswerForm(Protocol):
    """How one protocol tells the texts of one request."""

    def begin(self, choice: int) -> bytes:
        """What comes in a stream before the first text of a choice."""
        ...

    def piece(self, piece: Piece) -> bytes:
        """The event for new text, for a choice's end, or for both."""
        ...

    def end(self, usage: TextUsage) -> bytes:
        """What ends a stream."""
        ...

    def whole(self, pieces: Sequence[Piece], usage: TextUsage) -> bytes:
        """All texts at once."""
        ...
