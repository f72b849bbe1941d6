"""The text of tokens as they come, and where a stop string ends it."""

from collections.abc import Sequence
from typing import Final

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_CONTEXT: Final = 8
"""Tokens of the prompt that the decoder sees: some tokenizers write the first word of a text
without the space in front of it."""
_MOST_UNREADABLE: Final = 8
"""Tokens in a row that make no character. Characters have four bytes at most, so what comes behind
them will not make one of them either."""


class TextDecoder:
    """One text. What may be the beginning of a stop string is held back."""

    __slots__ = ("_held", "_stops", "_stream", "_tokenizer", "_unreadable", "stopped")

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._held = ""
        self._unreadable: list[int] = []
        """Tokens that came since the last character."""
        self._stream = _stream(prompt)
        self.stopped = False
        """Whether a stop string came, in front of which the text ends."""

    def add(self, token: int) -> str:
        """What may be told now that this token is there."""
        text: str | None = None
        most = _MOST_UNREADABLE
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception:
            # Tokens of single bytes that make no character may change what the decoder has made of
            # those before them. It has no kind of error of its own, and cannot go on.
            most = 0
        if text is None:
            self._unreadable.append(token)
            if len(self._unreadable) < most:
                return ""
            text = self._rest()
        elif self._unreadable:
            self._unreadable = []
        return self._up_to_a_stop(text) if self._stops else text

    def end(self) -> str:
        """What is left once no token comes any more."""
        text = self._rest() if self._unreadable else ""
        if self._stops:
            text = self._up_to_a_stop(text)
            text, self._held = text + self._held, ""
        return text

    def _rest(self) -> str:
        unreadable, self._unreadable = self._unreadable, []
        self._stream = _stream(unreadable)
        rest: str = self._tokenizer.decode(unreadable)
        return rest

    def _up_to_a_stop(self, text: str) -> str:
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        held = max([_beginning_at_end(stop, text) for stop in self._stops])
        told = len(text) - held
        self._held = text[told:]
        return text[:told]


def _stream(tokens: Sequence[int]) -> DecodeStream:
    return DecodeStream(ids=list(tokens[-_CONTEXT:]), skip_special_tokens=True)


def _beginning_at_end(stop: str, text: str) -> int:
    """Characters at the end of the text that may go on to be the stop string."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
