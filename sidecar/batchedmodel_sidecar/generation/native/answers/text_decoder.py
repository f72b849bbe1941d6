"""The text of tokens as they come, and where a stop string ends it.

Stop strings are looked for as Knuth, Morris and Pratt do: each character of the text is looked at
once for each of them, whatever the strings are.
"""

import re
from collections.abc import Sequence
from os.path import commonprefix
from typing import Final

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_CONTEXT: Final = 8
"""Tokens of the prompt that the decoder sees: some tokenizers write the first word of a text
without the space in front of it."""
_MOST_UNREADABLE: Final = 64
"""Tokens in a row that make no character. The decoder reads all of them anew with each one more, so
they are told as what they are then."""
_UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for bytes that make no character, and a character that texts may hold."""
_LATER_BYTE: Final = re.compile("<0x[89AB][0-9A-F]>")
"""A token that is one byte of a character, and not its first. Tokenizers that have such tokens
decode those in a row together: one that belongs to no character makes all of them unreadable."""


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

    __slots__ = (
        "_held", "_matched", "_prompt_ends", "_stops", "_stream", "_tokenizer", "_unreadable",
        "stopped",
    )  # fmt: skip

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[StopString]
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._matched = [0] * len(stops)
        """Of each stop string, how much of it ends the text."""
        self._held = ""
        context = _context(tokenizer, prompt)
        self._stream = _stream(context)
        self._prompt_ends = _open_ends(tokenizer, context)
        """How the prompt may read in front of the answer's first character, until that is there."""
        self._unreadable = context if self._prompt_ends else []
        """Tokens that came since the last character; the prompt's as well while its end is open."""
        self.stopped = False
        """Whether a stop string came, in front of which the text ends."""

    def add(self, token: int) -> str:
        """What may be told now that this token is there."""
        text: str | None = None
        most = _MOST_UNREADABLE
        try:
            if self._prompt_ends:
                text = self._first(token)
            else:
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

    def _first(self, token: int) -> str | None:
        """The answer up to its first character, which the prompt may have begun."""
        tokens = [*self._unreadable, token]
        text: str = self._tokenizer.decode(tokens)
        if text.endswith(_UNREADABLE):
            return None
        self._stream = _stream(tokens)
        return self._behind_prompt(text)

    def _behind_prompt(self, text: str) -> str:
        prompt, self._prompt_ends = self._prompt_ends, []
        shared = [len(commonprefix((text, one))) for one in prompt]  # noqa: RUF071  no paths
        return text[max(shared, default=0) :]

    def _rest(self) -> str:
        unreadable, self._unreadable = self._unreadable, []
        self._stream = _stream(())  # with these it would tell them once more
        return self._behind_prompt(self._tokenizer.decode(unreadable))

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
    return DecodeStream(ids=list(tokens), skip_special_tokens=True)


def _context(tokenizer: Tokenizer, prompt: Sequence[int]) -> list[int]:
    """The prompt's last tokens, from the beginning of a character on."""
    tokens = list(prompt[-_CONTEXT:])
    while tokens and _LATER_BYTE.fullmatch(tokenizer.id_to_token(tokens[0]) or ""):
        del tokens[0]
    return tokens


def _open_ends(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    """The text of tokens that end in U+FFFD or within a character, and its readable beginnings.

    Empty for all others. Which of them is in front of an answer shows with its first character.
    """
    text: str = tokenizer.decode(tokens)
    if not text.endswith(_UNREADABLE):
        return []
    beginnings: list[str] = [tokenizer.decode(tokens[:end]) for end in range(len(tokens))]
    return [text, *[one for one in beginnings if not one.endswith(_UNREADABLE)]]
