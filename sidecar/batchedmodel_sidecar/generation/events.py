"""Server-sent events of generated text: how many tokens came, and what the sidecar says itself.

Tokens are counted by events, of which servers send one for each token or for a few; exact numbers
come with the server's `usage`. Pure.
"""

import re
from typing import Final

import orjson

from batchedmodel_sidecar.errors import CallError

EVENT_STREAM: Final = "text/event-stream"
KEEP_ALIVE: Final = b": \n\n"
"""A comment, which readers of events pass over, and proxies do not."""
_LONGEST_END: Final = 4
"""Bytes of an event's end."""
_DATA: Final = b'data: {"'
_DATA_CLOSE: Final = b'data:{"'
"""Neither can stand in a text, whose quotes have a backslash in front."""
_USAGE: Final = re.compile(rb'"(prompt|completion)_tokens"\s*:\s*(\d{1,9})')
_TRITON: Final = "/v2/"
_ERROR: Final = re.compile(rb'data:\s*\{\s*"error"')


class Usage:
    """What one answer has used, as far as it came."""

    __slots__ = ("_end", "_is_exact", "at_end_of_event", "failed", "output_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.output_tokens = 0
        self.prompt_tokens: int | None = None
        """As the server says; None where it has not."""
        self.failed = False
        """Whether the answer is an error, or an event of it."""
        self.at_end_of_event = True
        """Whether something else may be written between what came and what comes."""
        self._is_exact = False
        self._end = b""
        """The last bytes that came."""

    def events(self, piece: bytes) -> int:
        """Note a piece of a stream; how many tokens it counts for."""
        end = piece[-_LONGEST_END:]
        if len(end) < _LONGEST_END:
            end = self._end + end
        self._end = end[-_LONGEST_END:]
        self.at_end_of_event = end.endswith((b"\n\n", b"\r\n\r\n"))
        count = piece.count(_DATA) or piece.count(_DATA_CLOSE)
        if b'_tokens"' in piece:
            self._note(piece)
        if b'"error"' in piece and _ERROR.search(piece) is not None:
            self.failed = True
        if not self._is_exact:
            self.output_tokens += count
        return count

    def body(self, text: bytes) -> None:
        """Note a whole answer that is no stream."""
        self._note(text)

    def _note(self, text: bytes) -> None:
        for name, number in _USAGE.findall(text):
            if name == b"prompt":
                self.prompt_tokens = int(number)
            else:
                self.output_tokens, self._is_exact = int(number), True


def error_event(error: CallError, path: str) -> bytes:
    """What ends a stream that has begun, as clients of this path read it."""
    if path.startswith(_TRITON):
        return b"data: %b\n\n" % orjson.dumps({"error": error.message})
    kind = "server_error" if error.counted_as is None else str(error.counted_as)
    document = {"message": error.message, "type": kind, "param": None, "code": error.status}
    return b"data: %b\n\n" % orjson.dumps({"error": document})
