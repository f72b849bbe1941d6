"""What an attacker is given: the port it aims at, and requests as that server's callers make them.

Attackers come from an address of this machine that no honest caller has.
"""

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, Final

NAME: Final = "m"
ADDRESS: Final = "127.0.0.66"
_PATIENCE_SECONDS: Final = 2.0


class Kind(StrEnum):
    """What stands behind the sidecar."""

    OURS = "ours"
    V2 = "V2"
    V1 = "V1"
    OPENAI = "OpenAI"


_PATHS: Final = {
    Kind.OURS: f"/v2/models/{NAME}/infer",
    Kind.V2: f"/v2/models/{NAME}/infer",
    Kind.V1: f"/v1/models/{NAME}:predict",
    Kind.OPENAI: "/v1/embeddings",
}


def document(kind: Kind, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A request for rows of one length."""
    if kind is Kind.V1:
        return {"instances": [list(row) for row in rows]}
    if kind is Kind.OPENAI:
        return {"model": NAME, "input": [list(row) for row in rows]}
    flat = [value for row in rows for value in row]
    shape = [len(rows), len(rows[0])]
    return {"inputs": [{"name": "x", "datatype": "INT64", "shape": shape, "data": flat}]}


def path_of(kind: Kind) -> str:
    """Where rows are asked for."""
    return _PATHS[kind]


@dataclass
class Connection:
    """One connection of an attacker, which it may use in any way."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Hand it to the kernel; raises `OSError` once the other end has gone."""
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """Of the next answer, whose body is read where its length is told; 0: there is none."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                head = await self.reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                lengths = [line[15:] for line in lines if line.startswith(b"content-length:")]
                await self.reader.readexactly(int(lengths[0]) if lengths else 0)
                return int(head[9:12])
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            return 0

    def reset(self) -> None:
        """Leave without a farewell, so that the other end meets an error."""
        own = self.writer.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass
class Aim:
    """One attack's view of the sidecar, and what it was told."""

    port: int
    kind: Kind
    told: Counter[int] = field(default_factory=Counter)
    """Answers by status; 0: none came, the connection was closed or nothing said in two seconds."""
    visits: int = 0
    _numbers: "count[int]" = field(default_factory=lambda: count(10**9))

    @property
    def path(self) -> str:
        """Where rows are asked for."""
        return path_of(self.kind)

    def number(self) -> int:
        """One that nobody else sends."""
        return next(self._numbers)

    def body(self, rows: int = 1, length: int = 2, **more: Any) -> bytes:
        """A good request for rows that nobody else sends; `more` is beside them."""
        # Text, since an attacker that makes large documents has no time left to send them.
        rest = ", 7" * (length - 1)
        asked = [f"{self.number()}{rest}" for _ in range(rows)]
        if self.kind in (Kind.OURS, Kind.V2):
            about = f'"name": "x", "datatype": "INT64", "shape": [{rows}, {length}]'
            text = f'"inputs": [{{{about}, "data": [{", ".join(asked)}]}}]'
        else:
            name = "instances" if self.kind is Kind.V1 else "input"
            text = f'"model": "{NAME}", "{name}": [{", ".join(f"[{row}]" for row in asked)}]'
        beside = "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in more.items())
        return f"{{{text}{beside}}}".encode()

    def head(self, *lines: str, path: str = "", method: str = "POST") -> bytes:
        """A head that ends, with these lines beside the host."""
        first = f"{method} {path or self.path} HTTP/1.1"
        return "\r\n".join([first, "Host: x", *lines, "", ""]).encode("latin-1")

    def request(self, body: bytes, *lines: str, path: str = "", method: str = "POST") -> bytes:
        """A whole request."""
        length = f"Content-Length: {len(body)}"
        return (
            self.head("Content-Type: application/json", length, *lines, path=path, method=method)
            + body
        )

    @asynccontextmanager
    async def connection(self, *, window: int = 0) -> AsyncIterator[Connection]:
        """Come, and leave without a farewell; `window`: bytes that the kernel takes of answers."""
        own = socket.socket()
        own.setblocking(False)
        if window:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        try:
            own.bind((ADDRESS, 0))
            await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", self.port))
            reader, writer = await asyncio.open_connection(sock=own, limit=max(window, 2**16))
        except BaseException:
            own.close()
            raise
        try:
            yield Connection(reader, writer)
        finally:
            writer.transport.abort()

    async def says(self, *pieces: bytes, pause: float = 0.0) -> int:
        """Send the pieces over a connection of their own; the status of the first answer."""
        async with self.connection() as own:
            for piece in pieces:
                await own.send(piece)
                if pause:
                    await asyncio.sleep(pause)
            status = await own.status()
        self.told[status] += 1
        return status

    async def asks(self, body: bytes, *lines: str, path: str = "", method: str = "POST") -> int:
        """As `says`, of a whole request."""
        return await self.says(self.request(body, *lines, path=path, method=method))


Run = Callable[[Aim], Awaitable[object]]
REFUSED: Final = frozenset({0, *range(400, 500)})
"""What nonsense may be told: that it is wrong, or nothing."""
SERVED: Final = frozenset({200, 429, 503, 504})
"""What good requests may be told, where they are too many."""
ANY: Final = REFUSED | SERVED
_ALL: Final = frozenset(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What one caller does again and again."""

    name: str
    run: Run
    """One visit. It ends by itself, or when the time is over."""
    told: frozenset[int] = ANY
    """What it may be told; see `Aim.told`."""
    others_may_serve: bool = False
    """Whether a server of one's own gets it alone, to be judged as that server likes."""
    callers: int = 4
    """How many visits at a time."""
    pause: float = 0.02
    """Seconds from a visit to the next."""
    kinds: frozenset[Kind] = _ALL
    """In front of what."""

    def may_be_told(self, kind: Kind) -> frozenset[int]:
        """In front of such a server."""
        served = self.others_may_serve and kind is not Kind.OURS
        return self.told | SERVED if served else self.told


@dataclass(slots=True, kw_only=True)
class Theme:
    """Attacks that can be told apart when they are run together."""

    name: str
    together: int
    """How many at a time."""
    attacks: list[Attack] = field(default_factory=list)

    def attack(self, **how: Any) -> Callable[[Run], Run]:
        """Note an attack, named as its function is."""

        def noted(run: Run) -> Run:
            name = run.__name__.replace("_", " ")
            self.attacks.append(Attack(name=name, run=run, **how))
            return run

        return noted
