"""Reads request bodies within bounds of size, of memory for all callers together, and of time.

Called by the front after admission. What aiohttp raises about bodies ends here.
"""

import asyncio
from typing import Final

from aiohttp import web

from batchedmodel_contract.mistakes import shown
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.byte_budget import ByteBudget, Hold
from batchedmodel_sidecar.encodings import Codec, Encoding
from batchedmodel_sidecar.errors import Rejected

_RETRY_SOON: Final = 1.0
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodyReader:
    """The bounds on bodies, and their reading."""

    def __init__(self, *, max_bytes: int, max_held_bytes: int) -> None:
        """One body's bound, and that of all bodies held at once."""
        self.max_bytes: Final = max_bytes
        self.codec: Final = Codec()
        self._budget = ByteBudget(max_held_bytes)

    def hold(self) -> Hold:
        """A share of the memory, for the time in which a body is needed."""
        return self._budget.hold()

    def refuse_declared(self, declared: int) -> None:
        """Raise `Rejected` for a body that cannot be taken, judged by its declared length."""
        if declared > self.max_bytes:
            raise self._too_large()
        if not self._budget.has_room_for(declared):
            raise self._no_room()

    async def read(self, request: web.BaseRequest, held: Hold, seconds: float) -> bytes:
        """The whole body as it was sent, charged to `held` as it arrives; raises `Rejected`."""
        content = request.content
        try:
            if content.is_eof() and content.exception() is None:
                # It came with its head; most do.
                body = content.read_nowait()
                self._charge(len(body), len(body), held)
                return body
            answer_expectation(request)
            async with asyncio.timeout(seconds):
                return await self._pieces(request, held)
        except TimeoutError as error:
            message = f"the body did not arrive within {seconds:.3g} s"
            raise Rejected(Rejection.EXPIRED, message, status=408) from error
        except (ConnectionError, web.RequestPayloadError) as error:
            if request.transport is None or request.transport.is_closing():
                raise Rejected(Rejection.ABANDONED, "the body ended early") from error
            message = "body: cannot be decoded as its headers say"
            raise Rejected(Rejection.INVALID, message) from error

    async def decoded(self, body: bytes, encoding: Encoding | None, held: Hold) -> bytes:
        """The body as it was before it was compressed, held beside it.

        The bound holds for what it becomes as well. Raises `Rejected` and `InvalidInput`.
        """
        if encoding is None:
            return body
        plain = await self.codec.inflated(body, encoding, self.max_bytes)
        if not held.grow(len(plain)):
            raise self._no_room()
        return plain

    async def _pieces(self, request: web.BaseRequest, held: Hold) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
            self._charge(size, len(piece), held)
            pieces.append(piece)
        return b"".join(pieces)

    def _charge(self, size: int, more: int, held: Hold) -> None:
        if size > self.max_bytes:
            raise self._too_large()
        if not held.grow(more):
            raise self._no_room()

    def _too_large(self) -> Rejected:
        message = f"the body is larger than the {self.max_bytes} bytes taken here"
        return Rejected(Rejection.TOO_LARGE, message)

    def _no_room(self) -> Rejected:
        message = f"the bodies held take {self._budget.held} bytes; no more fit at present"
        return Rejected(Rejection.QUEUE_FULL, message, retry_after=_RETRY_SOON)


def answer_expectation(request: web.BaseRequest) -> None:
    """Let a caller that waits for permission to send its body go on, now that it has it.

    Raises `Rejected` (417) when it expects anything else.
    """
    expectation = request.headers.get("Expect")
    if expectation is None:
        return
    if expectation.lower() != "100-continue":
        raise Rejected(
            Rejection.INVALID, f"Expect: {shown(expectation)} is not understood", status=417
        )
    if request.transport is not None:
        request.transport.write(_CONTINUE)
