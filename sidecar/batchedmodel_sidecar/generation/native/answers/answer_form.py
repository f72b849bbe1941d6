"""What answers in all protocols are made of, and who writes them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import orjson

from batchedmodel_contract.generation.frames import Token

_PIECE_BYTES: Final = 128
"""That a kept piece takes beside its content."""


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
    """New text of one choice."""

    choice: int
    text: str
    reason: str | None = None
    """Why it ended: `stop` or `length`; None where it has not."""
    tokens: Sequence[Token] = ()
    """What it was made of, where probabilities are wanted."""


class KeptText:
    """One choice of an answer that does not stream, as far as it was made.

    Probabilities are written as they come: those of a long answer in one go would stop the loop.
    """

    __slots__ = ("_columns", "_texts", "reason")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._columns: dict[str, list[bytes]] = {}
        self.reason: str | None = None

    def add(self, piece: Piece, columns: Mapping[str, Sequence[Any]]) -> int:
        """Keep a piece, and lists of what is told of its tokens; bytes that this takes."""
        self._texts.append(piece.text)
        self.reason = piece.reason
        size = _PIECE_BYTES + 4 * len(piece.text)
        for name, values in columns.items():
            parts = self._columns.setdefault(name, [])
            if values:
                parts.append(orjson.dumps(values)[1:-1])
                size += _PIECE_BYTES + len(parts[-1])
        return size

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self._texts)

    def columns(self) -> dict[str, orjson.Fragment]:
        """Each list, whole."""
        return {
            name: orjson.Fragment(b"[%b]" % b",".join(parts))
            for name, parts in self._columns.items()
        }


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

    def keep(self, piece: Piece) -> int:
        """Note a piece of an answer that does not stream; bytes that it takes until then."""
        ...

    def whole(self, usage: TextUsage) -> bytes:
        """All that was kept, as one answer."""
        ...
