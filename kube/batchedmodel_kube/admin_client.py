"""Client of a sidecar's admin port, for operator, autoscaler and command line.

Another process may stand at a pod's address. So only the plain form that sidecars use is read: a
status, headers, and a body whose length is stated or that ends with its connection. One deadline
bounds the whole exchange, one size its body, and what comes unasked ends its connection: clients of
libraries go on reading from connections that they keep, so one pod could fill the memory.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from batchedmodel_contract.processes.listening import authority
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT, MODEL_HEADER, POD_HEADER

LARGEST_HEAD: Final = 16_384
"""Bytes, the empty line at its end included."""
KEPT_SECONDS: Final = 45.0
"""How long a connection waits for the next request: three times the longest pause between polls.
It is shorter than a sidecar waits, which would else close a connection just as it is used."""
_END_OF_HEAD: Final = b"\r\n\r\n"
_STATUS: Final = re.compile(r"HTTP/1\.([01]) (\d{3})(?: |$)")
_LENGTH: Final = re.compile(r"\d{1,9}", re.ASCII)
_NO_HTTP: Final = "an answer that is no HTTP"
_LONGEST_NAMES: Final = 256


class NoAnswer(Exception):
    """A sidecar gave no usable answer in time; the message says why."""


class OtherPod(NoAnswer):
    """Another pod's sidecar answered at the address; the message says whose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whom:
    """The sidecar that a question is for; another pod may have its address by now."""

    model: str
    pod: str
    """Its uid."""

    def other(self, header: Callable[[str], str | None]) -> str | None:
        """Who answered instead, by the headers of an answer; None if it was this sidecar.

        An answer without these headers, as of a sidecar of an earlier version, is believed.
        """
        model, pod = header(MODEL_HEADER), header(POD_HEADER)
        if pod not in (None, self.pod) or model not in (None, self.model):
            # It goes into logs, where a line must be one of ours.
            names = f"pod {pod or '?'} of model {model or '?'}"[:_LONGEST_NAMES]
            return "".join(one if one.isprintable() else "?" for one in names)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name; of several with one name the last."""
    body: bytes
    stays: bool
    """Whether the connection is left open."""

    def header(self, name: str) -> str | None:
        """One by its name."""
        return self.headers.get(name.lower())


def read_answer(
    text: bytes | bytearray, largest_body: int, *, ended: bool = False
) -> Answer | None:
    """The answer in a text, None while it is incomplete; `ended` when the connection has ended.

    Raises `ValueError` for what no sidecar writes.
    """
    end = text.find(_END_OF_HEAD, 0, LARGEST_HEAD)
    if end < 0 and len(text) < LARGEST_HEAD:
        return None
    first, *lines = text[: max(end, 0)].decode("latin-1").split("\r\n")
    status = _STATUS.match(first)
    parts = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip(" \t") for name, _, value in parts}
    stated = headers.get("content-length")
    if status is None or "transfer-encoding" in headers:
        raise ValueError(_NO_HTTP)
    if stated is not None and not _LENGTH.fullmatch(stated):
        raise ValueError(_NO_HTTP)
    body = bytes(text[end + len(_END_OF_HEAD) :])
    length = len(body) if stated is None else int(stated)
    if length > largest_body or len(body) > length:
        raise ValueError(f"an answer of more than {min(length, largest_body)} bytes")
    if len(body) < length or (stated is None and not ended):
        return None
    return Answer(
        status=int(status[2]),
        headers=headers,
        body=body,
        stays=status[1] == "1" and headers.get("connection", "").lower() != "close",
    )


class Connection(asyncio.Protocol):
    """One connection to a sidecar; used by one request at a time."""

    def __init__(self, largest_body: int) -> None:
        self._largest_body = largest_body
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        """Of the request that waits for it."""
        self._text = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> Answer:
        """The answer to the text of a request.

        Raises `ConnectionError` when the connection ends before the answer does, and `ValueError`
        for an answer that no sidecar gives. Call `abort` after both, and after a cancellation.
        """
        if self._transport is None:
            raise ConnectionResetError(_NO_HTTP)
        self._text.clear()
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            return await self._answer
        finally:
            self._answer = None

    def abort(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        self._read(ended=exc is None)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(_NO_HTTP))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._answer is None or self._answer.done():
            self.abort()
            return
        self._text += data
        self._read(ended=False)

    def _read(self, *, ended: bool) -> None:
        if self._answer is None or self._answer.done():
            return
        try:
            answer = read_answer(self._text, self._largest_body, ended=ended)
        except ValueError as error:
            self._answer.set_exception(error)
            self.abort()
            return
        if answer is not None:
            self._answer.set_result(answer)


class AdminClient:
    """Asks the sidecars at any addresses; used inside one event loop.

    Keeping connections saves nearly half of what a request costs. A pod that got the address of
    another resets the other's connection, which it does not know, and is then asked through a new
    one. A request that was given up ends its connection, so that its late answer is not taken for
    that to the next request.
    """

    def __init__(
        self,
        *,
        timeout_seconds: float = 1.0,
        largest_body: int = 16_384,
        port: int = ADMIN_PORT,
        most_kept: int = 0,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        """`timeout_seconds`: for a whole exchange, from the connection to the last byte.

        `largest_body`: in bytes. `most_kept`: how many connections are kept between requests, each
        for `kept_seconds` at most; those of requests under way come besides.
        """
        self._timeout_seconds = timeout_seconds
        self._largest_body = largest_body
        self._port = port
        self._most_kept = most_kept
        self._kept_seconds = kept_seconds
        self._idle: dict[str, tuple[Connection, asyncio.TimerHandle]] = {}
        """By address, each with the timer that closes it when it is not used for long."""

    async def ask(self, address: str, path: str, *, whom: Whom | None = None) -> Answer:
        """The answer, of whatever status, to a GET.

        Raises `NoAnswer`, and `OtherPod` when the sidecar that answers is not `whom`.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await self._asked(address, path)
        except OSError as error:  # TimeoutError is one too
            raise NoAnswer(error.strerror or str(error) or "no answer in time") from error
        except ValueError as error:
            raise NoAnswer(str(error)) from error
        if whom is not None and (other := whom.other(answer.header)):
            raise OtherPod(f"{address} is {other}, and not {whom.pod} of {whom.model}")
        return answer

    def close(self) -> None:
        """Drop all connections that are kept."""
        for address in list(self._idle):
            self._drop(address)

    async def _asked(self, address: str, path: str) -> Answer:
        kept = self._taken(address)
        stays = len(self._idle) < self._most_kept
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {authority(address, self._port)}\r\n"
            f"Connection: {'keep-alive' if stays else 'close'}\r\n\r\n"
        ).encode()
        if kept is not None:
            try:
                return await self._exchange(kept, address, request, stays=stays)
            except ConnectionError:
                # Its pod has gone, or did not keep it.
                pass
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self._largest_body), address, self._port
        )
        return await self._exchange(connection, address, request, stays=stays)

    async def _exchange(
        self, connection: Connection, address: str, request: bytes, *, stays: bool
    ) -> Answer:
        keep = False
        try:
            answer = await connection.ask(request)
            keep = stays and answer.stays
            return answer
        finally:
            if keep:
                self._keep(address, connection)
            else:
                connection.abort()

    def _keep(self, address: str, connection: Connection) -> None:
        self._drop(address)
        loop = asyncio.get_running_loop()
        closing = loop.call_later(self._kept_seconds, self._drop, address)
        self._idle[address] = connection, closing

    def _taken(self, address: str) -> Connection | None:
        connection, closing = self._idle.pop(address, (None, None))
        if closing is not None:
            closing.cancel()
        return connection if connection is not None and connection.is_open else None

    def _drop(self, address: str) -> None:
        connection = self._taken(address)
        if connection is not None:
            connection.abort()
