"""The port for the kubelet's probes and for the operator's own metrics, plain HTTP.

Opened before the election: an operator that waits for the Lease answers too, as Kopf's own probes
would not. aiohttp's server bounds neither its connections nor the time that a request may take to
come, and two fixed answers need no library.
"""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from batchedmodel_contract.processes.listening import EVERY_ADDRESS, bound_socket
from batchedmodel_http.ports.acceptor import BACKLOG, Acceptor

STUCK_SECONDS: Final = 180.0
"""A reconcile that takes longer will never end: the process is to be started anew."""
_READ_SECONDS: Final = 5.0
_LARGEST_REQUEST: Final = 8_192
_MOST_CONNECTIONS: Final = 32
"""Each has a descriptor, of which the operator needs some itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What is told of the process."""

    leads: bool
    longest_reconcile_seconds: float
    keys: int
    """BatchedModels in the queue, those that rest included."""
    reconciles: Mapping[str, int]
    """How many reconciles ended, by result."""


class Probes:
    """The port, from its opening on."""

    def __init__(self, port: int, vitals: Callable[[], Vitals]) -> None:
        """Needs a running loop. Raises `OSError` when the port is taken."""
        self._vitals = vitals
        self._connections: dict[asyncio.Task[None], str] = {}
        """Each with its caller's address."""
        listening = bound_socket(EVERY_ADDRESS, port)
        listening.listen(BACKLOG)
        self._acceptor = Acceptor(listening, self._enter)

    def close(self) -> None:
        """Answer nobody any more."""
        self._acceptor.close()
        for connection in self._connections:
            connection.cancel()

    def _enter(self, accepted: socket.socket, address: str) -> None:
        if len(self._connections) >= _MOST_CONNECTIONS:
            going = _gives_way(self._connections)
            del self._connections[going]
            going.cancel()
        connection = asyncio.create_task(self._serve(accepted))
        self._connections[connection] = address
        connection.add_done_callback(lambda _: self._left(connection, accepted))

    def _left(self, connection: asyncio.Task[None], accepted: socket.socket) -> None:
        self._connections.pop(connection, None)
        if connection.cancelled():
            accepted.close()  # it may have no transport yet

    async def _serve(self, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted, limit=_LARGEST_REQUEST)
        try:
            async with asyncio.timeout(_READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(head, self._vitals()))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the caller asks again
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()


def _gives_way(connections: Mapping[asyncio.Task[None], str]) -> asyncio.Task[None]:
    """The oldest of whoever holds most: no crowd keeps out the kubelet or ends what it asks."""
    held = Counter(connections.values())
    most = max(held.values())
    return next(one for one, address in connections.items() if held[address] == most)


def health(vitals: Vitals) -> tuple[HTTPStatus, str]:
    """Whether the process does its work, or waits as it should; and a JSON text about it."""
    stuck = vitals.longest_reconcile_seconds > STUCK_SECONDS
    text = {
        "leads": vitals.leads,
        "longest_reconcile_seconds": round(vitals.longest_reconcile_seconds, 1),
    }
    return (HTTPStatus.SERVICE_UNAVAILABLE if stuck else HTTPStatus.OK), f"{json.dumps(text)}\n"


def exposition(vitals: Vitals) -> str:
    """The metrics, in the text format of Prometheus."""
    prefix = "batchedmodel_operator"
    lines = [
        f"# HELP {prefix}_leader 1 for the operator that works, 0 for one that waits.",
        f"# TYPE {prefix}_leader gauge",
        f"{prefix}_leader {int(vitals.leads)}",
        f"# HELP {prefix}_keys BatchedModels that the operator keeps an eye on.",
        f"# TYPE {prefix}_keys gauge",
        f"{prefix}_keys {vitals.keys}",
        f"# HELP {prefix}_longest_reconcile_seconds Age of the longest reconcile that runs.",
        f"# TYPE {prefix}_longest_reconcile_seconds gauge",
        f"{prefix}_longest_reconcile_seconds {vitals.longest_reconcile_seconds:.3f}",
        f"# HELP {prefix}_reconcile_total Reconciles that ended, by result.",
        f"# TYPE {prefix}_reconcile_total counter",
    ]
    for outcome, count in sorted(vitals.reconciles.items()):
        lines.append(f'{prefix}_reconcile_total{{result="{outcome}"}} {count}')
    return "\n".join(lines) + "\n"


def _answer(head: bytes, vitals: Vitals) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status, kind = HTTPStatus.OK, "text/plain; charset=utf-8"
    if method != b"GET":
        status = HTTPStatus.METHOD_NOT_ALLOWED
        text = f"{status.phrase}\n"
    elif path == b"/healthz":
        kind, (status, text) = "application/json", health(vitals)
    elif path == b"/metrics":
        kind, text = "text/plain; version=0.0.4; charset=utf-8", exposition(vitals)
    else:
        status = HTTPStatus.NOT_FOUND
        text = f"{status.phrase}\n"
    body = text.encode()
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body
