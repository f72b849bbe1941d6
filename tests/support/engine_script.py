"""What a caller of the simulated engine may ask of it: how long its output is, and what goes wrong.

As JSON in the header `X-Simulate`, or in the field `simulate` of the body, which goes first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

HEADER: Final = "X-Simulate"
FIELD: Final = "simulate"
_USUAL_TOKENS: Final = 16
"""As vLLM has it where a request does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What becomes of a request."""

    mark: int | None = None
    """The number in its tokens' texts; None: the number of the request at this server."""
    tokens: int | None = None
    """Its output, unless the request allows less; None: all that it allows."""
    prefill_seconds: float = 0.0
    """What its prompt takes beyond the time of its tokens."""
    status: int | None = None
    """What it is answered with at once in place of an output."""
    retry_after: str | None = None
    """A header of that answer."""
    breaks_off_after: int | None = None
    """The number of tokens after which its connection ends."""
    hangs_after: int | None = None
    """The number of tokens after which nothing more comes."""
    error_after: int | None = None
    """The number of tokens after which an event tells of an error."""

    @classmethod
    def of(cls, header: str | None, document: Mapping[str, Any], usual: Self) -> Self:
        """What a request says, or else what is usual; raises ValueError or TypeError."""
        given = document.get(FIELD)
        if given is None and header is not None:
            given = orjson.loads(header)
        return usual if given is None else cls(**given)

    def output(self, document: Mapping[str, Any]) -> tuple[int, bool]:
        """How many tokens the request gets, and whether that is all that it allows."""
        given = document.get("max_completion_tokens") or document.get("max_tokens")
        allowed = int(given or self.tokens or _USUAL_TOKENS)
        wanted = allowed if self.tokens is None else self.tokens
        return max(1, min(allowed, wanted)), given is not None and wanted >= allowed


def prompt_bytes(document: Mapping[str, Any]) -> int:
    """The length of all texts that a prompt has; a token id counts as a token."""
    if "messages" in document:
        return sum(_text_bytes(message.get("content")) for message in document["messages"])
    return _text_bytes(document.get("prompt", document.get("input", "")))


def _text_bytes(given: Any) -> int:
    if isinstance(given, str):
        return len(given.encode())
    if isinstance(given, int):
        return 4
    if isinstance(given, dict):  # a part of a message
        return _text_bytes(given.get("text"))
    return sum(map(_text_bytes, given or ()))
