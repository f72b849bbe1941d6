"""The HTTP client towards an upstream server: batches, what passes, texts and questions.

It knows nothing of batches, and sets what all requests have: the host, the end of the connection,
and the length of the body.
"""

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from typing import Final

from yarl import URL

from batchedmodel_contract.inference.tensors import HEADER_LENGTH, Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.response import LARGE, Headers, size_of
from batchedmodel_sidecar.backends.upstream.connection import (
    AnswerHead,
    AnswerListener,
    Exchange,
    UpstreamConnection,
)
from batchedmodel_sidecar.backends.upstream.protocol import BackendRequest, NotReady, Response
from batchedmodel_sidecar.body.buffers import Room, json_bytes, pieces_of
from batchedmodel_sidecar.body.encodings import encoding_of, inflated
from batchedmodel_sidecar.errors import Busy, Lost, Rejected, Unserved
from batchedmodel_sidecar.helper.shared_memory import SharedMemory

logger: Final = logging.getLogger(__name__)

_REFUSED: Final = 300
_LONGEST_ANSWER: Final = 1 << 30
_LONGEST_REPLY: Final = 1_048_576  # about readiness or metadata, which are read in the loop
_KEPT_SECONDS: Final = 4.0  # an idle connection; shorter than servers keep theirs (uvicorn: 5 s)
_NAME_SECONDS: Final = 10.0
"""For which the addresses of a name are believed."""
_AHEAD_BYTES: Final = 256 * 1024
"""Of an answer that is read more slowly than it comes, before the server is held back."""
_REDIRECTS: Final = frozenset({301, 302, 307, 308})
_MOST_HOPS: Final = 3
_JSON: Final = "application/json"
_UNREACHABLE: Final = "the model cannot be reached"
_OF_BATCHES: Final = (("Accept", "*/*"), ("Accept-Encoding", "identity"))
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_IDEMPOTENT: Final = _WITHOUT_BODY | {"PUT"}


class Deaf(Unserved):
    """The server holds the connection and does not answer."""

    def __init__(self) -> None:
        super().__init__("the model does not answer", status=504)


class Answer:
    """An answer that one coroutine reads; `close` belongs to it.

    What cannot be read or does not come raises `Unserved`.
    """

    head: AnswerHead

    def __init__(self) -> None:
        """Sent by `Client.send`, which sets the head."""
        self.connection: UpstreamConnection | None = None
        self._head: AnswerHead | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._ended = False
        self._error: Unserved | None = None
        self._changed = asyncio.Event()

    def answered(self, head: AnswerHead) -> None:
        """See `AnswerListener`."""
        self._head = head
        self._changed.set()

    def piece(self, data: bytes) -> None:
        """See `AnswerListener`."""
        self._pieces.append(data)
        self._unread += len(data)
        if self._unread > _AHEAD_BYTES and self.connection is not None:
            self.connection.pause()
        self._changed.set()

    def ended(self) -> None:
        """See `AnswerListener`."""
        self._ended = True
        self._changed.set()

    def broke_off(self, error: Unserved) -> None:
        """See `AnswerListener`."""
        self._error = error
        self._changed.set()

    async def begins(self) -> None:
        """Return once the head is here."""
        while self._head is None:
            await self._change()
        self.head = self._head

    async def read(self) -> bytes:
        """What came of the body, once something did; nothing behind its end."""
        while not self._pieces and not self._ended:
            await self._change()
        pieces, self._pieces = self._pieces, []
        paused, self._unread = self._unread > _AHEAD_BYTES, 0
        if paused and not self._ended and self.connection is not None:
            self.connection.resume()
        return b"".join(pieces)

    async def _change(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            # Kept here it would hold its frames, and they what came of the answer.
            self._ended = True
            raise error
        self._changed.clear()
        await self._changed.wait()

    async def beginning(self, most: int) -> tuple[bytes, bool]:
        """The first `most` bytes of the body, and whether they are all; the rest is not fetched."""
        pieces: list[bytes] = []
        size = 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > most:
                return b"".join(pieces)[:most], False
        return b"".join(pieces), True

    def close(self) -> None:
        """Break off what is not whole; a coroutine that still reads it gets `Lost`."""
        if not self._ended and self._error is None and self.connection is not None:
            self.connection.cancel()
            self.broke_off(Lost("the request has ended"))


class Client:
    """Connections to one server.

    Where its address says `https`, its certificate must be signed by an authority that OpenSSL
    trusts: those of the system, or of the file that the variable SSL_CERT_FILE names. One
    connection is kept for the next batch or passing request. The server is asked to end all others:
    the side that ends one has its port taken for a minute.
    """

    def __init__(self, url: str, *, keeps: Callable[[], bool], most: int = _LONGEST_ANSWER) -> None:
        """Needs a running loop. `url` has no path; `keeps` says whether a connection may be kept.

        A connection binds a request to the process that accepted it, however busy that is by now.
        `most`: bytes of an answer to a batch.
        """
        self._url: Final = URL(url)
        self._host: Final = self._url.host or ""
        self._port: Final = self._url.port or 80
        self._tls: Final = ssl.create_default_context() if self._url.scheme == "https" else None
        self._names_host: Final = f"Host: {self._url.host_port_subcomponent}\r\n"
        self._most = most
        self._keeps = keeps
        self._loop = asyncio.get_running_loop()
        self._addresses: list[str] = []
        self._known_until = 0.0
        self._spare: UpstreamConnection | None = None
        """The one that is kept, or will be behind its answer."""
        self._idle: asyncio.TimerHandle | None = None
        """Ends the kept connection, while it carries no request."""
        self._closed = False

    def ask_text(
        self, listener: AnswerListener, target: str, headers: Headers, body: Sequence[Buffer]
    ) -> Exchange:
        """Send a POST over a connection of its own, which ends with the answer.

        `target`: path and query as the caller sent them. The listener is told of `Busy` where there
        is no connection, and `Lost` when it broke.
        """
        connection = UpstreamConnection(self._loop)
        head = self._head("POST", target, headers, size_of(body), keeps=False)
        connection.send(listener, [head, *body])
        work = EagerCoroutine(self._connect(connection), connection.connected, self._loop)
        connection.connecting(work)
        return connection

    async def ask(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET; raises `NotReady`, and `InvalidInput` for one too long."""
        for _ in range(_MOST_HOPS):
            try:
                answer = await self.send("GET", path, (), None, may_keep=False)
                try:
                    body, whole = await answer.beginning(_LONGEST_REPLY)
                finally:
                    answer.close()
            except Unserved as error:
                logger.debug("GET %s: %s", path, error)
                known = isinstance(error, Busy)
                raise NotReady(error.message if known else _UNREACHABLE) from error
            if answer.head.status not in _REDIRECTS:
                break
            try:
                there = self._url.join(URL(answer.head.header("location")))
                if there.origin() != self._url.origin():
                    break
            except ValueError as error:
                raise NotReady(_UNREACHABLE) from error
            path = there.raw_path_qs
        if not whole:
            raise InvalidInput(f"the answer at {path}", f"is longer than {_LONGEST_REPLY} bytes")
        return answer.head.status, body

    async def post(self, request: BackendRequest, seconds: float) -> Response:
        """The answer to a batch, whatever its status, within so many seconds.

        Raises `Deaf`, `Lost` when the connection broke, `Busy` when there was none, `Unserved` for
        a status that answers nothing.
        """
        headers = (*_OF_BATCHES, *request.headers)
        if all(name.lower() != "content-type" for name, _ in request.headers):
            headers = (*headers, ("Content-Type", _JSON))
        try:
            async with asyncio.timeout(seconds):
                answer = await self.send("POST", request.path, headers, request.parts)
                try:
                    return await self._response(answer)
                finally:
                    answer.close()
        except TimeoutError as error:
            raise Deaf from error
        except Unserved as error:
            logger.debug("batch: %s", error)
            raise

    async def send(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: Sequence[Buffer] | None,
        *,
        may_keep: bool = True,
    ) -> Answer:
        """The answer to a request, of which the head is here; whoever called this closes it.

        Raises `Busy` when there was no connection, and other `Unserved` as `Answer`.
        """
        answer = Answer()
        keeps = may_keep and self._may_keep()
        connection = self._spare if keeps else None
        if keeps and self._idle is not None:
            self._idle.cancel()
            self._idle = None
        known = connection is not None
        if connection is None:
            connection = UpstreamConnection(self._loop)
        if keeps:
            self._spare = connection
        answer.connection = connection
        size = None if body is None and method in _WITHOUT_BODY else size_of(body or ())
        request: list[Buffer] = [self._head(method, target, headers, size, keeps=keeps)]
        is_large = size is not None and size > LARGE
        if body is not None and not is_large:
            request += body
        connection.send(
            answer, request, bodiless=method == "HEAD", over=self._over if keeps else None
        )
        connection.is_sending = is_large
        try:
            if not known:
                await self._connect(connection)
            if is_large and body is not None:
                await self._send_large(connection, body)
            await answer.begins()
        except BaseException as error:
            answer.close()
            if not (known and isinstance(error, Lost) and method in _IDEMPOTENT):
                raise
        else:
            return answer
        # The server ended the kept connection, perhaps before it read this.
        return await self.send(method, target, headers, body)

    async def _send_large(self, connection: UpstreamConnection, body: Sequence[Buffer]) -> None:
        """Write piece by piece; the loop goes on between two.

        It does not wait for the server: what it has not read is in memory either way.
        """
        for piece in pieces_of(body):
            if not connection.write(piece):
                return  # it has answered, or left
            await asyncio.sleep(0)
        connection.is_sending = False

    async def close(self) -> None:
        """Hang up; a batch that is under way still may end, and hangs up then."""
        self._closed = True
        self._drop_idle()

    def _may_keep(self) -> bool:
        """Whether the kept connection may be used, or a new one kept behind the answer."""
        if self._closed or not self._keeps():
            self._drop_idle()
            return False
        if self._idle is not None and self._spare is not None and not self._spare.is_open:
            self._drop_idle()
        return self._spare is None or self._idle is not None

    def _over(self, reusable: bool) -> None:
        """The request on the connection that is kept is over."""
        if not reusable:
            self._spare = None
            return
        self._idle = self._loop.call_later(_KEPT_SECONDS, self._drop_idle)
        if self._closed or not self._keeps():
            self._drop_idle()

    def _drop_idle(self) -> None:
        if self._idle is None or self._spare is None:
            return
        self._idle.cancel()
        self._spare.close()
        self._idle = self._spare = None

    def _head(
        self, method: str, target: str, headers: Headers, size: int | None, *, keeps: bool
    ) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        length = "" if size is None else f"Content-Length: {size}\r\n"
        close = "" if keeps else "Connection: close\r\n"
        head = f"{method} {target} HTTP/1.1\r\n{self._names_host}{lines}{length}{close}\r\n"
        return head.encode(errors="surrogateescape")

    async def _connect(self, connection: UpstreamConnection) -> None:
        """Raises `Busy`: nothing was sent, so nothing was in work."""
        name = self._host if self._tls else None
        try:
            for address in (addresses := await self._resolved()):
                try:
                    await self._loop.create_connection(
                        lambda: connection, address, self._port, ssl=self._tls, server_hostname=name
                    )
                    return
                except OSError:
                    self._known_until = 0.0
                    if address == addresses[-1]:
                        raise
        except ssl.SSLCertVerificationError as error:
            raise Busy(f"the model's certificate is not trusted: {error.verify_message}") from error
        except (OSError, UnicodeError) as error:  # the last of odd host names
            raise Busy(_UNREACHABLE) from error

    async def _resolved(self) -> list[str]:
        now = self._loop.time()
        if now >= self._known_until:
            found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
            self._known_until = now + _NAME_SECONDS
        return self._addresses

    async def _response(self, answer: Answer) -> Response:
        head = answer.head
        coding = head.header("content-encoding")
        body: Buffer | SharedMemory
        whole = True
        refused = head.status >= _REFUSED
        most = LARGE if refused else self._most
        if refused or coding:
            body, whole = await answer.beginning(most)
            if coding and not whole:
                raise _too_long(most)
        else:
            body = await _read(answer, most)
        if coding and not isinstance(body, SharedMemory):
            body = await asyncio.to_thread(_inflated, body, coding, most)
            of_json = json_bytes(len(body), head.header(HEADER_LENGTH.lower()) or None)
            if of_json > LARGE:
                plain, body = body, SharedMemory()
                body.write(plain)
        return Response(
            status=head.status,
            headers=head.headers,
            content_type=head.header("content-type") or _JSON,
            header_length=head.header(HEADER_LENGTH.lower()) or None,
            body=body.view() if isinstance(body, SharedMemory) else body,
            memory=body if isinstance(body, SharedMemory) else None,
            whole=whole,
        )


async def _read(answer: Answer, most: int) -> Buffer | SharedMemory:
    """The body; much JSON lies in memory that the helper can reach.

    Raises `Unserved` for one that is longer than `most`.
    """
    declared = answer.head.length
    if declared is not None and declared > most:
        raise _too_long(most)
    expected = sys.maxsize if declared is None else declared
    of_json = json_bytes(expected, answer.head.header(HEADER_LENGTH.lower()) or None)
    if declared is not None and declared > LARGE >= of_json:
        room = Room(declared)
        while piece := await answer.read():
            room.write(piece)
        return room.view()
    pieces: list[bytes] = []
    size = 0
    memory: SharedMemory | None = None
    try:
        while piece := await answer.read():
            size += len(piece)
            pieces.append(piece)
            if size > most:
                raise _too_long(most)
            if memory is None and min(size, of_json) > LARGE:
                memory = SharedMemory()
            if memory is not None:
                for part in pieces:
                    memory.write(part)
                pieces.clear()
    except BaseException:
        # The error keeps this frame, and is kept itself while other rows of its batch are tried.
        if memory is not None:
            memory.close()
        raise
    return b"".join(pieces) if memory is None else memory


def _inflated(data: Buffer, coding: str, most: int) -> Buffer:
    try:
        encoding = encoding_of(coding)
        return data if encoding is None else inflated(data, encoding, most)
    except (InvalidInput, Rejected) as error:
        if isinstance(error, Rejected) and error.reason is Rejection.TOO_LARGE:
            raise _too_long(most) from error
        message = "the model answers nonsense: what it sent is no HTTP"
        raise Unserved(message, status=502, answered=True) from error


def _too_long(most: int) -> Unserved:
    message = f"the model's answer is longer than the {most} bytes taken here"
    return Unserved(message, status=502, answered=True)
