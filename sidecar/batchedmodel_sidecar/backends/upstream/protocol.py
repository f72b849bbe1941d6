"""What the link and the data handler ask of a protocol behind.

A protocol is pure: it makes rows of a body, a request of rows, and answers of a response. The rows'
contents stay the text or the bytes in which they came.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.params import Values
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import Unbatchable
from batchedmodel_sidecar.backends.upstream.headers import Headers
from batchedmodel_sidecar.calls import Answer, Output, Row, Value
from batchedmodel_sidecar.helper.shared_memory import SharedMemory
from batchedmodel_sidecar.protocols.headers import NO_OPTIONS, RequestOptions
from batchedmodel_sidecar.protocols.protocol import Body

_DIGEST_BYTES: Final = 32
BYTES_PER_TOKEN: Final = 4
"""Of English text, about; lengths of upstream rows are estimated by it."""

Ask = Callable[[str], Awaitable[tuple[int, bytes]]]
"""Status and body of a GET on the server; raises `NotReady` and `InvalidInput`."""


class NotReady(Exception):
    """The server cannot be asked at present; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What the rows of a request are wrapped in; only rows of equal ones share a request."""

    path: str
    headers: Headers
    frame: Any
    """Hashable; made and read by the protocol alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRequest:
    """One request to the server."""

    path: str
    headers: Headers
    parts: Sequence[Buffer]
    """Its body, where it lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The server's answer to a request."""

    status: int
    headers: Headers
    content_type: str
    header_length: str | None
    body: Buffer
    memory: SharedMemory | None = None
    """Where the body lies when it is more JSON than is read in the loop."""
    whole: bool = True
    """False where only the beginning of a long refusal was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReply:
    """A response cut into rows."""

    outputs: tuple[Output, ...]
    rows: Sequence[tuple[Value, ...]]
    frame: Any = None
    """What belongs to the answer beside its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """What a body asks."""

    rows: tuple[Row, ...]
    frame: Hashable
    shapes: Hashable = None
    """What must be equal in rows that share a request, beside their frames."""
    digest: bytes = b""
    """Of the frame and the shapes, once it is made."""
    memo: Any = None
    """What `render` will need."""
    options: RequestOptions = NO_OPTIONS
    params: Values | None = None
    """What it sets of our own server's model's parameters."""
    named: str | None = None
    """What it names beside our own server's model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What requests have in common whose answers are divided alike."""

    asked: Hashable
    """Where and which outputs."""
    form: Hashable
    """All else but the values in the rows: it may decide how long an output is."""


class BackendProtocol(ABC):
    """One protocol that a server may speak. It is small and can be pickled."""

    @abstractmethod
    async def check_ready(self, ask: Ask) -> None:
        """Raises `NotReady`."""

    @abstractmethod
    async def describe(self, ask: Ask) -> ModelDescription:
        """The server's model, asked for once for each start; raises `NotReady`, `InvalidInput`."""

    def converts(self, size: int, header_length: str | None) -> int:
        """How many bytes of a body of that size `parse` reads as JSON, or turns into it."""
        return size

    @abstractmethod
    def parse(
        self, body: Buffer, header_length: str | None, most_rows: int
    ) -> ParsedRequest | None:
        """What the body asks; None when it can only go alone.

        Raises `InvalidInput`, and `Rejected` for more than so many rows.
        """

    @abstractmethod
    def backend_request(self, rows: Sequence[Row], envelope: Envelope) -> BackendRequest:
        """One request for rows of equal envelopes."""

    def subject(self, envelope: Envelope, row: Row) -> Subject | None:
        """What tells how answers are divided; `row` is one of those that are asked.

        None where the protocol itself says which part of an answer belongs to which row.
        """
        return None

    @abstractmethod
    def dealt(self, response: Response, rows: Sequence[Row], *, alone: bool) -> SplitReply:
        """The rows' answers in a response of status 200; `alone`: they are all one caller's.

        Raises `InvalidInput` when these are missing, or cannot be divided.
        """

    @abstractmethod
    def render(self, memo: Any, answer: Answer) -> Body:
        """The body for one caller; raises `InvalidInput` or `Unserved`."""

    def texts(self, memo: Any, answer: Answer) -> int:
        """How many bytes of the answer `render` reads as JSON, or turns into it.

        Raises what `render` raises.
        """
        return 0


Deal = Callable[[BackendProtocol, Response, Sequence[Row], bool], Awaitable[SplitReply]]
"""Does what `BackendProtocol.dealt` does, wherever that is done; raises `Unserved` besides."""


def drafted(
    protocol: BackendProtocol, body: Buffer, header_length: str | None, most_rows: int
) -> ParsedRequest:
    """What a body asks; raises as `parse` does, and `Unbatchable` when it can only go alone."""
    draft = protocol.parse(body, header_length, most_rows)
    if draft is None:
        raise Unbatchable("body", "has no rows that could share a request")
    return replace(draft, digest=digest_of(draft.frame, draft.shapes))


def digest_of(*given: object) -> bytes:
    """A short key for texts, numbers, and tuples or records of them.

    Keys outlive their requests, and callers decide how large these texts are. Two digests are equal
    only where the `repr` is: nobody can find a collision.
    """
    text = repr(given).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()


def estimated_length(data: Buffer) -> int:
    """Tokens, about."""
    return max(1, len(data) // BYTES_PER_TOKEN)
