"""Answers of OpenAI's chat and completions: chunks of a stream, or a whole document. Pure.

A chunk is put together from bytes that are the same for all chunks of a choice: only the text is
written for each token.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from tokenizers import Tokenizer

from batchedmodel_contract.generation.frames import Token
from batchedmodel_sidecar.generation.native.answers.answer_form import KeptText, Piece, TextUsage

_DONE: Final = b"data: [DONE]\n\n"
_LEAST_LOGPROB: Final = -9999.0
"""What is told in the place of minus infinity, which JSON has not."""
_UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"


class _Chunks:
    """Events with what is known of the request in front."""

    def __init__(self, known: dict[str, Any], kind: str, *, include_usage: bool) -> None:
        document = orjson.dumps({**known, "object": kind})[:-1]
        usage = b',"usage":null' if include_usage else b""
        self._head = b'data: %b%b,"choices":[{"index":' % (document, usage)
        self._bare = b"data: %b" % document
        self._include_usage = include_usage

    def one(self, index: int, content: bytes, logprobs: bytes, reason: str | None) -> bytes:
        end = b"null" if reason is None else b'"%b"' % reason.encode()
        return b'%b%d,%b,"logprobs":%b,"finish_reason":%b}]}\n\n' % (
            self._head,
            index,
            content,
            logprobs,
            end,
        )

    def end(self, usage: TextUsage) -> bytes:
        if not self._include_usage:
            return _DONE
        told = orjson.dumps(usage.document())
        return b'%b,"choices":[],"usage":%b}\n\n%b' % (self._bare, told, _DONE)


class ChatForm:
    """`POST /v1/chat/completions`."""

    def __init__(
        self, known: dict[str, Any], tokenizer: Tokenizer, *, include_usage: bool, logprobs: bool
    ) -> None:
        """`known`: id, created and model; the tokenizer names tokens."""
        self._known = known
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._chunks = _Chunks(known, "chat.completion.chunk", include_usage=include_usage)
        self._kept: dict[int, KeptText] = {}

    def begin(self, choice: int) -> bytes:
        """Whose turn it is."""
        return self._chunks.one(choice, b'"delta":{"role":"assistant","content":""}', b"null", None)

    def piece(self, piece: Piece) -> bytes:
        """A chunk."""
        delta = b'"delta":{}'
        if piece.text:
            delta = b'"delta":{"content":%b}' % orjson.dumps(piece.text)
        logprobs = orjson.dumps(_of_chat(self._columns(piece))) if self._logprobs else b"null"
        return self._chunks.one(piece.choice, delta, logprobs, piece.reason)

    def end(self, usage: TextUsage) -> bytes:
        """The end of the stream."""
        return self._chunks.end(usage)

    def keep(self, piece: Piece) -> int:
        """See `AnswerForm`."""
        columns = self._columns(piece) if self._logprobs else {}
        return self._kept.setdefault(piece.choice, KeptText()).add(piece, columns)

    def whole(self, usage: TextUsage) -> bytes:
        """The document."""
        choices = [
            {
                "index": choice,
                "message": {"role": "assistant", "content": kept.text, "refusal": None},
                "logprobs": _of_chat(kept.columns()) if self._logprobs else None,
                "finish_reason": kept.reason,
            }
            for choice, kept in sorted(self._kept.items())
        ]
        document = {**self._known, "object": "chat.completion", "choices": choices}
        return orjson.dumps({**document, "usage": usage.document()})

    def _columns(self, piece: Piece) -> dict[str, Sequence[Any]]:
        content = [
            {
                **self._named(token.token, token.logprob),
                "top_logprobs": [self._named(*one) for one in token.top],
            }
            for token in piece.tokens
        ]
        return {"content": content}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        name = name_of(self._tokenizer, token)
        readable = _UNREADABLE not in name  # a part of a character has no bytes of its own here
        told = list(name.encode()) if readable else None
        return {"token": name, "logprob": max(_LEAST_LOGPROB, logprob), "bytes": told}


def _of_chat(columns: Mapping[str, Any]) -> dict[str, Any]:
    """What a chat tells of probabilities."""
    return {**columns, "refusal": None}


class CompletionForm:
    """`POST /v1/completions`."""

    def __init__(
        self, known: dict[str, Any], tokenizer: Tokenizer, *, include_usage: bool, logprobs: bool
    ) -> None:
        """As `ChatForm`."""
        self._known = known
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._chunks = _Chunks(known, "text_completion", include_usage=include_usage)
        self._kept: dict[int, KeptText] = {}
        self._offsets: dict[int, int] = {}
        """Characters of a choice's tokens so far: some of its text may be held back."""

    def begin(self, choice: int) -> bytes:
        """Nothing."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """A chunk."""
        logprobs = orjson.dumps(self._columns(piece)) if self._logprobs else b"null"
        text = b'"text":%b' % orjson.dumps(piece.text)
        return self._chunks.one(piece.choice, text, logprobs, piece.reason)

    def end(self, usage: TextUsage) -> bytes:
        """The end of the stream."""
        return self._chunks.end(usage)

    def keep(self, piece: Piece) -> int:
        """See `AnswerForm`."""
        columns = self._columns(piece) if self._logprobs else {}
        return self._kept.setdefault(piece.choice, KeptText()).add(piece, columns)

    def whole(self, usage: TextUsage) -> bytes:
        """The document."""
        choices = [
            {
                "index": choice,
                "text": kept.text,
                "logprobs": kept.columns() if self._logprobs else None,
                "finish_reason": kept.reason,
            }
            for choice, kept in sorted(self._kept.items())
        ]
        document = {**self._known, "object": "text_completion", "choices": choices}
        return orjson.dumps({**document, "usage": usage.document()})

    def _columns(self, piece: Piece) -> dict[str, Sequence[Any]]:
        names = [name_of(self._tokenizer, token.token) for token in piece.tokens]
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
        told = (*token.top, (token.token, token.logprob))
        return {name_of(self._tokenizer, one): max(_LEAST_LOGPROB, value) for one, value in told}


def name_of(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token by itself."""
    name: str = tokenizer.decode([token], skip_special_tokens=False)
    return name
