"""The port for the kubelet's probes and for the operator's own metrics, plain HTTP.

Opened before the election: an operator that waits for the Lease answers too, as Kopf's own probes
would not. aiohttp's server bounds neither its connections nor the time that a request may take to
come, and two fixed answers need no library.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from batchedmodel_contract.manifest.tenants import address_group

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


async def serve_probes(port: int, vitals: Callable[[], Vitals]) -> asyncio.Server:
    """Answer `/healthz` and `/metrics` from now on. Raises `OSError` when the port is taken."""
    connections: dict[asyncio.StreamWriter, str] = {}
    """Each with its caller's address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= _MOST_CONNECTIONS:
            going = _gives_way(connections)
            del connections[going]
            going.transport.abort()
        peer = writer.get_extra_info("peername")
        connections[writer] = address_group(str(peer[0])) if peer else ""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(head, vitals()))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the caller asks again
        finally:
            connections.pop(writer, None)
            writer.close()

    return await asyncio.start_server(
        serve, port=port, limit=_LARGEST_REQUEST, backlog=_MOST_CONNECTIONS
    )


def _gives_way(connections: Mapping[asyncio.StreamWriter, str]) -> asyncio.StreamWriter:
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
