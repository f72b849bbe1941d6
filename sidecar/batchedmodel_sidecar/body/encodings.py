"""Compressed bodies of callers, and large answers that callers want compressed.

What could take long runs in a thread: zlib releases the interpreter's lock while it works.
"""

import re
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput, shown
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.response import size_of
from batchedmodel_sidecar.body.buffers import pieces_of
from batchedmodel_sidecar.body.fair_threads import FairThreads
from batchedmodel_sidecar.errors import Rejected

_INLINE_BYTES: Final = 1024  # at most a megabyte when inflated, a millisecond or two
_GIVEN_BYTES: Final = 64 * 1024
_STEP_BYTES: Final = 1 << 20
_MOST_TIMES: Final = 1032  # what deflate can make of a byte
_MOST_MEMBERS: Final = 1000  # empty ones cost time and no bytes
_THREADS: Final = 2
_LARGE_ANSWER: Final = 64 * 1024  # below, the caller waits longer for the thread than for the bytes
_FASTEST: Final = 1
_GZIP_BITS: Final = 31
_ZLIB_BITS: Final = 15
_RAW_BITS: Final = -15
_ACCEPTED: Final = re.compile(r"\s*(?:gzip|x-gzip|\*)\s*(?:;\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*)?")

Plain = TypeVar("Plain")


class Encoding(Enum):
    """How a body may be compressed."""

    GZIP = "gzip"
    DEFLATE = "deflate"


def encoding_of(header: str | None) -> Encoding | None:
    """What a `Content-Encoding` says; None for a plain body. Raises `Rejected` (415)."""
    if header is None:
        return None
    name = header.strip().lower()
    if name in ("", "identity"):
        return None
    try:
        return Encoding("gzip" if name == "x-gzip" else name)
    except ValueError as error:
        known = ", ".join(member.value for member in Encoding)
        message = f"Content-Encoding: {shown(header)} is not one of {known}"
        raise Rejected(Rejection.INVALID, message, status=415) from error


def wants_gzip(header: str | None, size: int) -> bool:
    """Whether an answer of so many bytes should be compressed for who sent `Accept-Encoding`."""
    if header is None or size < _LARGE_ANSWER:
        return False
    qualities = [found[1] for part in header.split(",") if (found := _ACCEPTED.fullmatch(part))]
    return bool(qualities) and float(qualities[0] or 1) > 0


def inflated(data: Buffer, encoding: Encoding, limit: int) -> bytes:
    """The body as it was before it was compressed.

    Stops as soon as it is longer than `limit`, however much more would come. Raises `Rejected`
    (413) then, and `InvalidInput` for a body that is not what it says it is.
    """
    bits = _GZIP_BITS
    if encoding is Encoding.DEFLATE:
        # The standard means zlib's form, and some senders mean the bare one.
        bits = _ZLIB_BITS if data[:1] and data[0] & 0x0F == zlib.DEFLATED else _RAW_BITS
    view, at = memoryview(data), 0
    # zlib copies what is behind a step or a member, so it is given little at a time.
    given: Buffer = b""
    pieces: list[bytes] = []
    size = 0
    for _ in range(_MOST_MEMBERS):
        member = zlib.decompressobj(bits)
        while not member.eof:
            if not given:
                given = view[at : at + _GIVEN_BYTES]
                at += len(given)
            over = not given
            try:
                piece = member.decompress(given, min(_STEP_BYTES, limit + 1 - size))
            except zlib.error as error:
                raise InvalidInput("body", f"is not {encoding.value}: {error}") from error
            given = member.unconsumed_tail
            if over and not piece and not member.eof:
                raise InvalidInput("body", f"ends before its {encoding.value} data does")
            size += len(piece)
            if size > limit:
                message = f"the body is larger than the {limit} bytes taken here, once inflated"
                raise Rejected(Rejection.TOO_LARGE, message)
            pieces.append(piece)
        given = member.unused_data
        if not given and at >= len(view):
            return b"".join(pieces)
        if encoding is Encoding.DEFLATE:
            raise InvalidInput("body", f"goes on behind its {encoding.value} data")
    raise InvalidInput("body", f"has more than {_MOST_MEMBERS} members")


class Compression:
    """Does the work in threads of its own, so few that they hold little memory."""

    def __init__(self) -> None:
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="codec")
        # What waits is bounded already: it is held in the byte budget.
        self._work = FairThreads(threads, at_once=_THREADS, room=0)

    async def inflated(
        self,
        data: Buffer,
        encoding: Encoding,
        limit: int,
        place: Callable[[bytes], Plain],
        share: Share,
    ) -> Plain:
        """What `place` makes of the inflated body, off the loop where that takes long.

        Tenants take turns, by the sizes that their bodies may have.
        """

        def work() -> Plain:
            return place(inflated(data, encoding, limit))

        if len(data) <= _INLINE_BYTES:
            return work()
        return await self._work.do(share, min(limit, len(data) * _MOST_TIMES), work)

    async def gzipped(self, parts: Sequence[Buffer], share: Share) -> bytes:
        """The answer, compressed at the fastest level; tenants take turns."""
        return await self._work.do(share, size_of(parts), partial(_gzipped, parts))


def _gzipped(parts: Sequence[Buffer]) -> bytes:
    packer = zlib.compressobj(_FASTEST, zlib.DEFLATED, _GZIP_BITS)
    return b"".join([*map(packer.compress, pieces_of(parts)), packer.flush()])
