"""Tokens into answers: their text as it comes, and how each protocol writes it.

A chunk of a stream is put together from bytes that are the same for all chunks of a choice: only
the text is written for each token. Stop strings are looked for as Knuth, Morris and Pratt do: each
character of the text is looked at once for each of them, whatever the strings are. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from batchedmodel_contract.generation.frames import Token

_PIECE_BYTES: Final = 128
"""That a kept piece takes beside its content."""
_DONE: Final = b"data: [DONE]\n\n"
_LEAST_LOGPROB: Final = -9999.0
"""Stands for minus infinity, which JSON has not."""
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
        """Keep a piece, and lists about its tokens; returns the bytes that this takes."""
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


class AnswerForm:
    """How one protocol writes the texts of one request, as a stream or whole."""

    def begin(self, choice: int) -> bytes:
        """What comes in a stream before the first text of a choice."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """The event for new text, for a choice's end, or for both."""
        raise NotImplementedError

    def end(self, usage: TextUsage) -> bytes:
        """What ends a stream."""
        return b""

    def keep(self, piece: Piece) -> int:
        """Note a piece of an answer that does not stream; bytes that it takes until then."""
        raise NotImplementedError

    def whole(self, usage: TextUsage) -> bytes:
        """All that was kept, as one answer."""
        raise NotImplementedError


class _OpenAIForm(AnswerForm):
    """What chats and completions have in common."""

    def __init__(
        self,
        fields: dict[str, Any],
        tokenizer: Tokenizer,
        chunks: str,
        *,
        include_usage: bool,
        logprobs: bool,
    ) -> None:
        """`fields`: id, created and model; the tokenizer names tokens; `chunks`: their kind."""
        self._fields = fields
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._texts: dict[int, KeptText] = {}
        document = orjson.dumps({**fields, "object": chunks})[:-1]
        self._bare = b"data: %b" % document
        usage = b',"usage":null' if include_usage else b""
        self._head = b'%b%b,"choices":[{"index":' % (self._bare, usage)

    def _columns(self, piece: Piece) -> dict[str, Sequence[Any]]:
        """The probabilities of its tokens, in lists."""
        raise NotImplementedError

    def _choice(self, text: str, columns: Mapping[str, Any] | None) -> dict[str, Any]:
        """What a whole answer says of one choice."""
        raise NotImplementedError

    def _chunk(self, index: int, content: bytes, logprobs: bytes, reason: str | None) -> bytes:
        end = b"null" if reason is None else b'"%b"' % reason.encode()
        return b'%b%d,%b,"logprobs":%b,"finish_reason":%b}]}\n\n' % (
            self._head,
            index,
            content,
            logprobs,
            end,
        )

    def end(self, usage: TextUsage) -> bytes:
        """The end of the stream."""
        if not self._include_usage:
            return _DONE
        return b'%b,"choices":[],"usage":%b}\n\n%b' % (
            self._bare,
            orjson.dumps(usage.document()),
            _DONE,
        )

    def keep(self, piece: Piece) -> int:
        """See `AnswerForm`."""
        columns = self._columns(piece) if self._logprobs else {}
        return self._texts.setdefault(piece.choice, KeptText()).add(piece, columns)

    def _document(self, kind: str, usage: TextUsage) -> bytes:
        choices = [
            {
                "index": choice,
                **self._choice(answer.text, answer.columns() if self._logprobs else None),
                "finish_reason": answer.reason,
            }
            for choice, answer in sorted(self._texts.items())
        ]
        document = {**self._fields, "object": kind, "choices": choices}
        return orjson.dumps({**document, "usage": usage.document()})

    def _name(self, token: int) -> str:
        """The text of a token by itself."""
        name: str = self._tokenizer.decode([token], skip_special_tokens=False)
        return name


class ChatForm(_OpenAIForm):
    """`POST /v1/chat/completions`."""

    def __init__(
        self, fields: dict[str, Any], tokenizer: Tokenizer, *, include_usage: bool, logprobs: bool
    ) -> None:
        """`fields`: id, created and model."""
        super().__init__(
            fields,
            tokenizer,
            "chat.completion.chunk",
            include_usage=include_usage,
            logprobs=logprobs,
        )

    def begin(self, choice: int) -> bytes:
        """Whose turn it is."""
        return self._chunk(choice, b'"delta":{"role":"assistant","content":""}', b"null", None)

    def piece(self, piece: Piece) -> bytes:
        """A chunk."""
        delta = b'"delta":{}'
        if piece.text:
            delta = b'"delta":{"content":%b}' % orjson.dumps(piece.text)
        logprobs = b"null"
        if self._logprobs:
            logprobs = orjson.dumps({**self._columns(piece), "refusal": None})
        return self._chunk(piece.choice, delta, logprobs, piece.reason)

    def whole(self, usage: TextUsage) -> bytes:
        """The document."""
        return self._document("chat.completion", usage)

    def _choice(self, text: str, columns: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None if columns is None else {**columns, "refusal": None},
        }

    def _columns(self, piece: Piece) -> dict[str, Sequence[Any]]:
        content = [
            {
                **self._entry(token.token, token.logprob),
                "top_logprobs": [self._entry(*one) for one in token.top],
            }
            for token in piece.tokens
        ]
        return {"content": content}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        name = self._name(token)
        readable = _UNREADABLE not in name  # a part of a character has no bytes of its own here
        data = list(name.encode()) if readable else None
        return {"token": name, "logprob": max(_LEAST_LOGPROB, logprob), "bytes": data}


class CompletionForm(_OpenAIForm):
    """`POST /v1/completions`."""

    def __init__(
        self, fields: dict[str, Any], tokenizer: Tokenizer, *, include_usage: bool, logprobs: bool
    ) -> None:
        """As `ChatForm`."""
        super().__init__(
            fields, tokenizer, "text_completion", include_usage=include_usage, logprobs=logprobs
        )
        self._offsets: dict[int, int] = {}
        """Characters of a choice's tokens so far: some of its text may be held back."""

    def piece(self, piece: Piece) -> bytes:
        """A chunk."""
        logprobs = orjson.dumps(self._columns(piece)) if self._logprobs else b"null"
        text = b'"text":%b' % orjson.dumps(piece.text)
        return self._chunk(piece.choice, text, logprobs, piece.reason)

    def whole(self, usage: TextUsage) -> bytes:
        """The document."""
        return self._document("text_completion", usage)

    def _choice(self, text: str, columns: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"text": text, "logprobs": columns}

    def _columns(self, piece: Piece) -> dict[str, Sequence[Any]]:
        names = [self._name(token.token) for token in piece.tokens]
        offsets, at = [], self._offsets.get(piece.choice, 0)
        for name in names:
            offsets.append(at)
            at += len(name)
        self._offsets[piece.choice] = at
        return {
            "tokens": names,
            "token_logprobs": [max(_LEAST_LOGPROB, token.logprob) for token in piece.tokens],
            "top_logprobs": [self._top(token) for token in piece.tokens],
            "text_offset": offsets,
        }

    def _top(self, token: Token) -> dict[str, float]:
        """The likeliest, and the one that was chosen, which may be none of them."""
        candidates = (*token.top, (token.token, token.logprob))
        return {self._name(one): max(_LEAST_LOGPROB, value) for one, value in candidates}


class GenerateForm(AnswerForm):
    """`POST /v2/models/{model}/generate` and `/generate_stream`, of Triton's extension."""

    def __init__(self, fields: dict[str, Any]) -> None:
        """`fields`: model_name, model_version, and the id where there is one."""
        self._fields = fields
        self._text = KeptText()

    def piece(self, piece: Piece) -> bytes:
        """An event with the new text; without text there is none."""
        if not piece.text:
            return b""
        return b"data: %b\n\n" % self._document(piece.text)

    def keep(self, piece: Piece) -> int:
        """Its one text."""
        return self._text.add(piece, {})

    def whole(self, usage: TextUsage) -> bytes:
        """The document."""
        return self._document(self._text.text)

    def _document(self, text: str) -> bytes:
        return orjson.dumps({**self._fields, "text_output": text})


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
        "_matched", "_stops", "_stream", "_tail", "_tokenizer", "_unreadable", "stopped",
    )  # fmt: skip

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[StopString]
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._matched = [0] * len(stops)
        """Of each stop string, how much of it ends the text."""
        self._tail = ""
        self._stream = _stream(_context(tokenizer, prompt))
        self._unreadable: list[int] = []
        """Tokens that came since the last character."""
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
            text, self._tail = text + self._tail, ""
        return text

    def _rest(self) -> str:
        unreadable, self._unreadable = self._unreadable, []
        self._stream = _stream(())  # with these it would tell them once more
        text: str = self._tokenizer.decode(unreadable)
        return text

    def _up_to_a_stop(self, text: str) -> str:
        matched, length_of_tail = self._matched, len(self._tail)
        whole = self._tail + text
        for at, character in enumerate(text):
            longest = 0
            for index, stop in enumerate(self._stops):
                matched[index] = stop.after(matched[index], character)
                if matched[index] == len(stop.text):
                    longest = max(longest, len(stop.text))
            if longest:
                self.stopped, self._tail = True, ""
                return whole[: length_of_tail + at + 1 - longest]
        end = len(whole) - max(matched)
        self._tail = whole[end:]
        return whole[:end]


def _stream(tokens: Sequence[int]) -> DecodeStream:
    return DecodeStream(ids=list(tokens), skip_special_tokens=True)


def _context(tokenizer: Tokenizer, prompt: Sequence[int]) -> list[int]:
    """The prompt's last tokens, from the beginning of a character on.

    None of a prompt that ends in U+FFFD or within a character: the decoder would tell them again.
    """
    tokens = list(prompt[-_CONTEXT:])
    while tokens and _LATER_BYTE.fullmatch(tokenizer.id_to_token(tokens[0]) or ""):
        del tokens[0]
    return [] if tokenizer.decode(tokens).endswith(_UNREADABLE) else tokens
