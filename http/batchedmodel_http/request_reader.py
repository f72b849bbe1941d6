"""Requests of one connection told apart: head by head, each body exactly as long as its head says.

aiohttp's public parser judges heads, each up to its end, and bodies in chunks. These it reads as if
their head had offered another protocol: such a parser stops behind the body and hands back what it
was given too much, as others do not. So nothing of a request is ever read as a part of another,
whatever a caller offers. Of a body whose length is known the bytes are counted.
"""

import asyncio
from typing import Final

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader

UNREADABLE: Final = (HttpProcessingError, ValueError, IndexError)
"""Errors of bytes that are no request; the last two come from the library that reads targets."""
BAD_REQUEST: Final = 400
_HEAD_TOO_LARGE: Final = 431
_NOT_IMPLEMENTED: Final = 501
_SHOWN: Final = 200  # characters of what the parser says, which may quote all that was sent
_BUFFER: Final = 64 * 1024
"""Bytes of a body that are read ahead of its handler; twice as much holds the caller back."""
_LONGEST_HEAD: Final = 64 * 1024
"""Bytes of a head, as of what stands between two pieces of a body or behind the last one.

The parser bounds each line and their number, which together are a mebibyte of one caller.
"""
_END_OF_HEAD: Final = b"\r\n\r\n"
_BODY_IN_CHUNKS: Final = (
    b"POST / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


class Reader:
    """Reads heads and bodies in turn, as it is asked to."""

    def __init__(self, protocol: BaseProtocol, loop: asyncio.AbstractEventLoop) -> None:
        """`protocol` is told to hold the caller back when nobody reads a body."""
        self._protocol: BaseProtocol | None = protocol
        self._event_loop = loop
        self._parser: HttpRequestParser | None = self._new_parser()
        self._last = b""
        """The last bytes of a head that is not whole; its end may begin with them."""
        self._overhead = 0
        """Bytes of the present head, or of the present body since it last grew."""
        self._body: StreamReader | None = None
        self._left: int | None = None
        """Bytes of the present body that are still to come; None where its head did not say."""

    def close(self) -> None:
        """The caller has left; nothing more is read.

        Protocol, reader and parser know each other, and would all stay until somebody looks for
        garbage.
        """
        self._protocol = self._parser = self._body = None

    @property
    def left(self) -> int | None:
        """Bytes of the present body that are still to come, where that is known."""
        return self._left

    @property
    def unfinished(self) -> int:
        """Bytes of a head that is not whole, while no body is read."""
        return self._overhead

    def head(self, data: bytes) -> tuple[RawRequestMessage, StreamReader, bytes] | None:
        """The head that ends in this data, its body to come, and what is behind the head.

        None as long as none ends; raises what `UNREADABLE` names.
        """
        while data:
            found = (self._last + data).find(_END_OF_HEAD)
            if found < 0:
                piece, behind = data, b""
                self._last = (self._last + data)[1 - len(_END_OF_HEAD) :]
            else:
                end = found + len(_END_OF_HEAD) - len(self._last)
                piece, behind = data[:end], data[end:]
                self._last = b""
            self._count(len(piece))
            messages, _, _ = self._open_parser().feed_data(piece)
            if messages:
                message, body = messages[0]
                self._parser, self._overhead = self._new_parser(), 0
                self._body = self._body_of(message, body)
                return message, self._body, behind
            data = behind
        return None

    def body(self, data: bytes) -> bytes:
        """Some bytes of the present body; what is behind it. Raises what `UNREADABLE` names."""
        assert self._body is not None, "a body is read behind its head: our bug"
        if self._left is not None:
            piece, behind = data[: self._left], data[self._left :]
            if piece:
                self._body.feed_data(piece)
            self.passed(len(piece))
            return behind
        size = self._body.total_bytes
        _, is_whole, behind = self._open_parser().feed_data(data)
        if is_whole:
            self._parser, self._overhead = self._new_parser(), 0
        elif self._body.total_bytes > size:
            self._overhead = 0
        else:
            self._count(len(data))
        return behind

    def passed(self, size: int) -> None:
        """So many bytes of the present body, whose length is known, went to whoever reads it."""
        assert self._body is not None, "a body is read behind its head: our bug"
        assert self._left is not None, "its length is known: our bug"
        self._left -= size
        if not self._left and not self._body.is_eof():
            self._body.feed_eof()

    def pause_reading(self) -> None:
        """The present body is not read: keep the rest of what came."""
        if self._left is None and self._parser is not None:
            self._parser.pause_reading()

    def _count(self, size: int) -> None:
        self._overhead += size
        if self._overhead > _LONGEST_HEAD:
            # What stands between the pieces of a body, or behind it, is a line or some as well.
            raise LineTooLong(b"", _LONGEST_HEAD)

    def _body_of(self, message: RawRequestMessage, body: StreamReader) -> StreamReader:
        """What will be read of the body; `body` where there is none, or nobody knows its end."""
        self._left = None
        coding = message.headers.get("Transfer-Encoding", "chunked")
        if message.chunked and coding.lower() != "chunked":
            # The others would be dropped, and their bytes taken for the body.
            told = f"Transfer-Encoding {coding!r}, of which only chunked is taken"
            raise HttpProcessingError(code=_NOT_IMPLEMENTED, message=told)
        length = message.headers.get("Content-Length", "0")
        if message.method == "CONNECT" or not (message.chunked or int(length)):
            return body
        if body.is_eof():
            # The largest number that the parser knows means to it that nothing was declared.
            raise BadHttpMessage("Content-Length overflow")
        if not message.chunked:
            self._left = int(length)
            return StreamReader(self._open_protocol(), _BUFFER, loop=self._event_loop)
        messages, _, _ = self._open_parser().feed_data(_BODY_IN_CHUNKS)
        return messages[0][1]

    def _new_parser(self) -> HttpRequestParser:
        return HttpRequestParser(
            self._open_protocol(),
            self._event_loop,
            _BUFFER,
            payload_exception=web.RequestPayloadError,
            auto_decompress=False,  # the handlers do it, within their own bounds
        )

    def _open_protocol(self) -> BaseProtocol:
        assert self._protocol is not None, "nothing is read behind the end: our bug"
        return self._protocol

    def _open_parser(self) -> HttpRequestParser:
        assert self._parser is not None, "nothing is read behind the end: our bug"
        return self._parser


def fault(error: Exception) -> tuple[int, str]:
    """The status for what `UNREADABLE` names, and the rule that was broken."""
    if isinstance(error, LineTooLong):
        return (
            _HEAD_TOO_LARGE,
            "the head of the request, or a line of it, is longer than taken here",
        )
    if not isinstance(error, HttpProcessingError):
        return BAD_REQUEST, "the target of the request is no URL"
    said = error.message.partition("\n")[0].strip(" :")
    return error.code or BAD_REQUEST, f"the request is not HTTP as it is read here: {said[:_SHOWN]}"
