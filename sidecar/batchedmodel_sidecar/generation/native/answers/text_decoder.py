"""The text of tokens as they come, and where a stop string ends it.

Stop strings are looked for as Knuth, Morris and Pratt do: each character of the text is looked at
once for each of them, whatever the strings are.
"""

from collections.abc import Sequence
from typing import Final

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_CONTEXT: Final = 8
"""Tokens of the prompt that the decoder sees: some tokenizers write the first word of a text
without the space in front of it."""
_MOST_UNREADABLE: Final = 64
"""Tokens in a row that make no character. The decoder reads all of them anew with each one more, so
they are told as what they are then."""


class StopString:
    """One of them; the texts of a request share it."""

    __slots__ = ("shorter", "text")

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.shorter: Final[list[int]] = [0] * len(text)
        """Of each beginning of it, how much of its end is a beginning as well."""
        matched = 0
        for at in range(1, len(text)):
            matched = self.after(matched, text[at])
            self.shorter[at] = matched

    def after(self, matched: int, character: str) -> int:
        """How much of it ends a text now that the character is there, and so much did before."""
        text = self.text
        while matched and (matched == len(text) or text[matched] != character):
            matched = self.shorter[matched - 1]
        return matched + 1 if text[matched] == character else matched


class TextDecoder:
    """One text. What may be the beginning of a stop string is held back."""

    __slots__ = ("_held", "_matched", "_stops", "_stream", "_tokenizer", "_unreadable", "stopped")

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[StopString]
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._matched = [0] * len(stops)
        """Of each stop string, how much of it ends the text."""
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
        self._stream = _stream(())  # with these it would tell them once more
        rest: str = self._tokenizer.decode(unreadable)
        return rest

    def _up_to_a_stop(self, text: str) -> str:
        matched, held = self._matched, len(self._held)
        whole = self._held + text
        for at, character in enumerate(text):
            longest = 0
            for index, stop in enumerate(self._stops):
                matched[index] = stop.after(matched[index], character)
                if matched[index] == len(stop.text):
                    longest = max(longest, len(stop.text))
            if longest:
                self.stopped, self._held = True, ""
                return whole[: held + at + 1 - longest]
        told = len(whole) - max(matched)
        self._held = whole[told:]
        return whole[:told]


def _stream(tokens: Sequence[int]) -> DecodeStream:
    return DecodeStream(ids=list(tokens[-_CONTEXT:]), skip_special_tokens=True)
