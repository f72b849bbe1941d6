"""One connection that asks for streams, one after the other, and checks each token as it comes.

Called by `stream_load`. It reads an answer in chunks or of a given length, and of events what can
be found by their form; to parse each as JSON would cost more than all else.
"""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Final, cast

from stream_plan import Record, Stream

_MARKED: Final = re.compile(rb'"(?:content|text)":" t(\d+)-(\d+)"')
_TEXT: Final = re.compile(rb'"(?:content|text)":"[^"]')
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: *chunked", re.I)
_CLOSES: Final = re.compile(rb"\r\nconnection: *close", re.I)
_FINISH: Final = b'"finish_reason":"'
_DONE: Final = b"data: [DONE]"
_ERROR: Final = b'data: {"error"'
_REQUEST: Final = (
    b"POST %b HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
    b"%bContent-Length: %d\r\n\r\n%b"
)

clock: Final = time.perf_counter


def check(record: Record, mark: int, place: int) -> None:
    """Count a token of this text, which should be the next of the record's stream."""
    if mark != record.mark or place >= record.expected:
        record.foreign += 1
    elif place < record.tokens:
        record.doubled += 1
    else:
        record.lost += place - record.tokens
        record.tokens = place + 1


def _marked(record: Record, text: bytes, cut: int) -> int:
    """Check the tokens in front of the cut by their marks; returns how many there are."""
    tokens = _MARKED.findall(text, 0, cut)
    for mark, place in tokens:
        check(record, int(mark), int(place))
    return len(tokens)


def _unmarked(record: Record, text: bytes, cut: int) -> int:
    """Count them; more than were asked for are foreign."""
    came = len(_TEXT.findall(text, 0, cut))
    record.foreign += min(came, max(0, record.tokens + came - record.expected))
    record.tokens += came
    return came


class Client(asyncio.Protocol):
    """A connection; free whenever no stream is on it."""

    def __init__(
        self,
        began: float,
        count: Callable[[float, int], None],
        over: Callable[["Client", Stream, Record], None],
    ) -> None:
        """`count` is told of tokens, and `over` of a stream's end; times since `began`."""
        self._began = began
        self._count = count
        self._over = over
        self._stream: Stream | None = None
        self._record: Record | None = None
        self._buffer = b""
        self._text = b""
        self._left: int | None = None
        """Bytes of the body that are missing; None before the head, -1 for chunks."""
        self._read = 0
        self._closes = False
        self._pauses_at = 0
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self.is_open = True

    def ask(self, stream: Stream, record: Record) -> None:
        """Ask for a stream; no other is on its way."""
        self._stream, self._record = stream, record
        self._buffer = self._text = b""
        self._left, self._read = None, 0
        self._pauses_at = stream.pauses_after or 0
        body = stream.body()
        told = b"X-Simulate: %b\r\n" % stream.told() if stream.marked else b""
        self._transport.write(_REQUEST % (stream.path.encode(), told, len(body), body))

    def hang_up(self) -> None:
        """Leave, whatever is on its way."""
        if self._record is not None:
            self._record.left = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        now = clock() - self._began
        if self._record is None:
            return self._transport.abort()  # nobody asked
        self._buffer += data
        if self._left is None and not self._head():
            return None
        if self._left == -1:
            return self._chunks(now)
        assert self._left is not None
        self._left -= len(self._buffer)
        self._buffer = b""
        return self._end(now) if self._left <= 0 else None

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._record is not None:
            self._end(clock() - self._began, whole=False)

    def _head(self) -> bool:
        """Whether the head is here, which is then read."""
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        assert self._record is not None
        self._record.status = int(head[9:12])
        self._closes = _CLOSES.search(head) is not None
        length = _LENGTH.search(head)
        self._left = -1 if _CHUNKED.search(head) else int(length[1]) if length else 0
        self._buffer = rest
        return True

    def _chunks(self, now: float) -> None:
        buffer, at = self._buffer, 0
        parts = []
        last = False
        while (end := buffer.find(b"\r\n", at)) > 0:
            size = int(buffer[at:end], 16)
            if len(buffer) < end + size + 4:
                break
            parts.append(buffer[end + 2 : end + 2 + size])
            at = end + size + 4
            if size == 0:
                last = True
                break
        self._buffer = buffer[at:]
        if parts:
            self._events(now, b"".join([self._text, *parts]))
        if last and self._record is not None:
            self._end(now)

    def _events(self, now: float, text: bytes) -> None:
        record, stream = self._record, self._stream
        assert record is not None
        assert stream is not None
        cut = text.rfind(b"\n\n") + 2
        if cut < 2:
            self._text = text
            return
        self._text = text[cut:]
        came = _marked(record, text, cut) if stream.marked else _unmarked(record, text, cut)
        if came:
            self._count(now, came)
            if record.first is None:
                record.first = now
            else:
                record.longest_gap = max(record.longest_gap, now - record.last)
            record.last = now
        if _FINISH in text:
            record.told_reason = True
        if _DONE in text:
            record.told_end = True
        if _ERROR in text:
            record.error_event = True
        if stream.leaves_after is not None and record.tokens >= stream.leaves_after:
            self.hang_up()
        elif stream.pauses_after is not None and record.tokens >= self._pauses_at:
            self._pauses_at = record.tokens + stream.pauses_after
            self._transport.pause_reading()
            loop = asyncio.get_running_loop()
            loop.call_later(stream.pause_seconds, self._transport.resume_reading)

    def _end(self, now: float, *, whole: bool = True) -> None:
        stream, record = self._stream, self._record
        assert stream is not None
        assert record is not None
        self._stream = self._record = None
        record.ended, record.whole = now, whole
        if self._closes:
            self.is_open = False
            self._transport.abort()
        self._over(self, stream, record)
