"""What a simulated engine says in the OpenAI API's words, byte for byte in vLLM's form.

A token's text names its request and its place, so that a test sees lost, doubled, reordered and
foreign tokens.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

DONE: Final = b"data: [DONE]\n\n"
LENGTH: Final = "length"
STOP: Final = "stop"


def token_text(mark: int, place: int) -> str:
    """The text of one token."""
    return f" t{mark}-{place}"


def whole_text(mark: int, count: int) -> str:
    """The text of the first so many tokens."""
    return "".join(token_text(mark, place) for place in range(count))


def chunk_of(event: bytes) -> bytes:
    """An event as a chunk of its own of an answer in chunks."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def error_document(status: int, kind: str, message: str) -> dict[str, Any]:
    """What an answer holds that is no success."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """What was read and written."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


class Wording:
    """Of one request: its answer, streamed or whole."""

    def __init__(self, *, chat: bool, name: str, model: str, mark: int) -> None:
        self._chat = chat
        self._mark = mark
        kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{name}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        streamed = orjson.dumps(self._head | {"object": f"{kind}.chunk" if chat else kind})
        self._frame = b"data: " + streamed[:-1] + b',"choices":['
        if chat:
            self._before = self._frame + b'{"index":0,"delta":{"content":"'
            self._behind = b'"},"logprobs":null,"finish_reason":null}]}\n\n'
        else:
            self._before = self._frame + b'{"index":0,"text":"'
            self._behind = (
                b'","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
            )

    def opening(self) -> bytes:
        """What is sent before the first token: in a chat, whose turn it is."""
        if not self._chat:
            return b""
        delta = b'{"index":0,"delta":{"role":"assistant","content":""},'
        return self._frame + delta + b'"logprobs":null,"finish_reason":null}]}\n\n'

    def token(self, place: int) -> bytes:
        """One token that is not the last."""
        return b"%b t%d-%d%b" % (self._before, self._mark, place, self._behind)

    def last_token(self, place: int, reason: str) -> bytes:
        """The last one, with why it is."""
        told = f'"finish_reason":"{reason}"'.encode()
        if self._chat:
            told += b',"stop_reason":null'
        return self.token(place).replace(b'"finish_reason":null', told, 1)

    def usage(self, usage: Mapping[str, int]) -> bytes:
        """The event behind the last token, for those who ask for it."""
        return self._frame + b'],"usage":' + orjson.dumps(usage) + b"}\n\n"

    def whole(self, count: int, reason: str, usage: Mapping[str, int]) -> bytes:
        """The answer to a request that does not stream."""
        text = whole_text(self._mark, count)
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        rest = {"logprobs": None, "finish_reason": reason, "stop_reason": None}
        return orjson.dumps(
            self._head | {"choices": [{"index": 0, **said, **rest}], "usage": usage}
        )


def error_events(message: str) -> Sequence[bytes]:
    """How a stream that has begun fails: with an event, and the end."""
    document = error_document(500, "InternalServerError", message)
    return (b"data: " + orjson.dumps(document) + b"\n\n", DONE)
