"""The HTTP client towards a server of somebody else's: the errors of aiohttp end here.

The link calls it; it knows nothing of batches.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError
from yarl import URL

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.inference.v2 import HEADER_LENGTH
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_http.response import LARGE
from batchedmodel_sidecar.backends.upstream.protocol import BackendRequest, Response
from batchedmodel_sidecar.body.buffers import body_of, json_bytes, read_whole
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.helper.shared_memory import SharedMemory

logger: Final = logging.getLogger(__name__)

_FINAL: Final = 200
_REFUSED: Final = 300
_SERVER_ERROR: Final = 500
_LONGEST_ANSWER: Final = 1 << 30
_LONGEST_REPLY: Final = 1_048_576  # about readiness or metadata, which are read in the loop
_KEPT_SECONDS: Final = 4.0  # an idle connection; shorter than servers keep theirs (uvicorn: 5 s)
_JSON: Final = "application/json"


class Unreachable(Exception):
    """Nobody who is trusted answered a question; the message is for callers."""


class Garbled(aiohttp.ClientPayloadError):
    """What came is no valid body."""


class Deaf(Unserved):
    """The server holds the connection and does not answer."""

    def __init__(self) -> None:
        super().__init__("the model does not answer", status=504)


class Connector(aiohttp.TCPConnector):
    """Looks at a kept connection before it is used.

    One on which the server spoke unasked is not used again: what it sent would be taken for the
    answer to the next request, which is another caller's.
    """

    async def connect(self, *given: Any, **named: Any) -> aiohttp.connector.Connection:
        """A new connection, or a kept one on which nothing has come since its last answer."""
        while True:
            connection = await super().connect(*given, **named)
            protocol = connection.protocol
            if protocol is None or not protocol.should_close:
                return connection
            connection.close()


class Client:
    """Connections to one server.

    Where its address says `https`, its certificate must be signed by an authority that OpenSSL
    trusts: those of the system, or of the file that the variable SSL_CERT_FILE names.
    """

    def __init__(self, url: str, *, keeps: Callable[[], bool], most: int = _LONGEST_ANSWER) -> None:
        """`url` has no path; `keeps` says whether a batch may use its predecessor's connection.

        A connection binds the batch to the process that accepted it, however busy that is by now.
        `most`: bytes of an answer to a batch.
        """
        self._url = url
        self._most = most
        self._keeps = keeps
        self._apart = _session(keeps=False)
        """Has a connection for each question, and for each batch where several run at a time. The
        server is asked to end it: whoever ends it has its port taken for a minute."""
        self._kept: aiohttp.ClientSession | None = None
        """Has one connection, which no batch uses now."""
        self._under_way = 0
        self._closed = False

    async def ask(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET; raises `Unreachable`, and `InvalidInput` for one too long."""
        try:
            async with self._apart.get(self._url + path) as response:
                body, whole = await _beginning(response, _LONGEST_REPLY)
        except (aiohttp.ClientError, OSError, UnicodeError) as error:  # the last of odd host names
            logger.debug("GET %s: %s", path, type(error).__name__)
            raise Unreachable(_unreachable(error)) from error
        if not whole:
            raise InvalidInput(f"the answer at {path}", f"is longer than {_LONGEST_REPLY} bytes")
        return response.status, body

    async def post(self, request: BackendRequest, seconds: float) -> Response:
        """The answer to a request, whatever its status, within so many seconds.

        Raises `Deaf`, `Lost` when the connection broke, `Busy` when there was none, `Unserved` for
        a status that answers nothing.
        """
        self._under_way += 1
        try:
            if self._keeps():
                return await self._posted_alone(request, seconds)
            await self._drop_kept()
            return await self._posted(self._apart, request, seconds)
        finally:
            self._under_way -= 1
            await self._hang_up()

    async def close(self) -> None:
        """Hang up; a batch that is under way still may end, and hangs up then."""
        self._closed = True
        await self._hang_up()

    async def _hang_up(self) -> None:
        if self._closed and not self._under_way:
            await self._drop_kept()
            await self._apart.close()

    async def _drop_kept(self) -> None:
        kept = self._take_kept()
        if kept is not None:
            await kept.close()

    def _take_kept(self) -> aiohttp.ClientSession | None:
        kept, self._kept = self._kept, None
        return kept

    async def _posted_alone(self, request: BackendRequest, seconds: float) -> Response:
        """Over the connection of the batch before, if it is there still and free."""
        session = self._take_kept() or _session(keeps=True)
        sound = False
        try:
            response = await self._posted(session, request, seconds)
            # Servers exist that hang up after an error and do not announce it (uvicorn does): the
            # next request on this connection would seem to have killed them.
            sound = response.status < _SERVER_ERROR
        finally:
            if sound and self._kept is None and self._keeps():
                self._kept = session
            else:
                await session.close()
        return response

    async def _posted(
        self, session: aiohttp.ClientSession, request: BackendRequest, seconds: float
    ) -> Response:
        headers = [("Content-Type", _JSON)]
        if any(name.lower() == "content-type" for name, _ in request.headers):
            headers = []
        try:
            async with (
                asyncio.timeout(seconds),
                session.post(
                    url_of(self._url, request.path),
                    data=body_of(request.parts, _JSON),
                    headers=[*headers, *request.headers],
                    allow_redirects=False,
                ) as response,
            ):
                end_with_connection(response)
                if response.status < _FINAL:
                    # Its caller would wait for more, or take the connection for another's.
                    message = f"the model answers {response.status}, which ends no request"
                    raise Unserved(message, status=502, answered=True)
                refused = response.status >= _REFUSED
                words, whole = await _beginning(response, LARGE) if refused else (b"", True)
                body = words if refused else await _read(response, self._most)
        except TimeoutError as error:
            raise Deaf from error
        except aiohttp.ClientConnectorError as error:
            # Nothing was sent, so nothing was in work.
            raise Busy(_unreachable(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            logger.debug("batch: %s", type(error).__name__)
            if _is_nonsense(error):
                message = "the model answers nonsense: what it sent is no HTTP"
                raise Unserved(message, status=502, answered=True) from error
            # The answer's stream keeps the error, whose frames hold what came of the answer.
            bare = error.with_traceback(None)
            raise Lost("the model went away while it worked on this") from bare
        return Response(
            status=response.status,
            headers=tuple(response.headers.items()),
            content_type=response.headers.get("Content-Type", _JSON),
            header_length=response.headers.get(HEADER_LENGTH),
            body=body.view() if isinstance(body, SharedMemory) else body,
            memory=body if isinstance(body, SharedMemory) else None,
            whole=whole,
        )


def url_of(server: str, target: str) -> URL:
    """Where a path and its query go byte for byte: all of it, as the library knows it, is a path.

    Of a query that is empty it would drop the question mark.
    """
    return URL(server).with_path(target, encoded=True)


def end_with_connection(response: aiohttp.ClientResponse) -> None:
    """End the reading of this answer's body when the connection ends.

    aiohttp hangs up on a server whose bytes are no chunk, and the reader would wait for ever.
    """
    connection, body = response.connection, response.content
    if connection is None or connection.protocol is None or body.is_eof():
        return

    def end() -> None:
        if not body.is_eof() and body.exception() is None:
            body.set_exception(Garbled("what follows is no part of a body"))

    closed = connection.protocol.closed
    if closed is None:  # it has ended already
        end()
        return

    def tell(ended: asyncio.Future[None]) -> None:
        ended.exception()  # marked as seen; a body that was sound so far tells how it ended
        end()

    def whole() -> None:
        closed.remove_done_callback(tell)  # the connection may carry many answers

    closed.add_done_callback(tell)
    body.on_eof(whole)


def _is_nonsense(error: Exception) -> bool:
    """Whether the server is there, and what it sent cannot be read."""
    unreadable = isinstance(error, aiohttp.ClientResponseError | Garbled)
    return unreadable or isinstance(error.__cause__, ContentEncodingError)


def _unreachable(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        said = getattr(error.certificate_error, "verify_message", error.certificate_error)
        return f"the model's certificate is not trusted: {said}"
    return "the model cannot be reached"


async def _beginning(response: aiohttp.ClientResponse, most: int) -> tuple[bytes, bool]:
    """The first `most` bytes of a body, and whether they are all; the rest is never fetched."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            return b"".join(pieces)[:most], False
    return b"".join(pieces), True


async def _read(response: aiohttp.ClientResponse, most: int) -> Buffer | SharedMemory:
    """The body; much JSON lies in memory that the helper can reach.

    Raises `Unserved` for one that is longer than `most`.
    """
    declared = response.content_length
    if "Content-Encoding" in response.headers:
        declared = None
    expected = sys.maxsize if declared is None else declared
    if expected <= LARGE:
        return await response.read()
    parsed_apart = json_bytes(expected, response.headers.get(HEADER_LENGTH)) > LARGE
    if declared is not None and declared > most:
        raise _too_long(most)
    if declared is not None and not parsed_apart:
        return await read_whole(response)
    pieces: list[bytes] = []
    size = 0
    memory: SharedMemory | None = None
    try:
        async for piece in response.content.iter_any():
            size += len(piece)
            pieces.append(piece)
            if size > most:
                raise _too_long(most)
            if memory is None and parsed_apart and size > LARGE:
                memory = SharedMemory()
            if memory is not None:
                for part in pieces:
                    memory.write(part)
                pieces.clear()
    except BaseException:
        if memory is not None:
            memory.close()
        raise
    return b"".join(pieces) if memory is None else memory


def _too_long(most: int) -> Unserved:
    message = f"the model's answer is longer than the {most} bytes taken here"
    return Unserved(message, status=502, answered=True)


def _session(*, keeps: bool) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=Connector(
            limit=0,
            force_close=not keeps,
            keepalive_timeout=_KEPT_SECONDS if keeps else None,
        ),
        # Each request brings its own.
        timeout=aiohttp.ClientTimeout(total=None),
        # A caller's cookies are its own.
        cookie_jar=aiohttp.DummyCookieJar(),
    )
