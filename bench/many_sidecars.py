"""One process that answers for the sidecars of thousands of pods, at addresses of its own.

Started by `control_plane_world` inside the cluster's network, where a whole range of addresses
leads to it. All pods have the same load. Each line of standard input is a list of addresses, as
JSON: pods that have read new settings. It is answered with a line: the longest time between two
answers about the load from the same address since the line before, and of how many addresses. The
process ends with its standard input. Knows HTTP just as far as its callers need it.

    python many_sidecars.py '{"/path": ["200 OK", "body"], ...}' '{"/path": ...}' /v1/stats

The second answers are those of pods with new settings, where they differ.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.kubernetes_names import ADMIN_PORT

_BACKLOG: Final = 4096


class Gaps:
    """How long each address waited between two questions."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._last: dict[str, float] = {}
        self._longest = 0.0

    def asked(self, address: str, now: float) -> None:
        """It was asked."""
        gap = now - max(self._last.get(address, now), self._since)
        self._longest = max(self._longest, gap)
        self._last[address] = now

    def longest(self, now: float) -> tuple[float, int]:
        """Seconds, waits that have not ended included, and addresses; then counts anew."""
        waits = (now - max(last, self._since) for last in self._last.values())
        found = max(self._longest, max(waits, default=0.0)), len(self._last)
        self._since, self._longest = now, 0.0
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    """What is answered."""

    answers: Mapping[bytes, bytes]
    edited_answers: Mapping[bytes, bytes]
    counted: bytes
    gaps: Gaps
    edited: set[str]


class _Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self, pods: _Pods) -> None:
        self._pods = pods
        self._head = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" not in self._head:
            return
        path = self._head.split(b" ", 2)[1]
        self._head = b""
        address = self._transport.get_extra_info("sockname")[0]
        pods = self._pods
        if path == pods.counted:
            pods.gaps.asked(address, self._loop.time())
        answers = pods.edited_answers if address in pods.edited else pods.answers
        self._transport.write(answers.get(path, _written("404 Not Found", "")))


def _written(status: str, body: str) -> bytes:
    text = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return head.encode() + b"\r\n\r\n" + text


def _read(answers: str) -> dict[bytes, bytes]:
    return {path.encode(): _written(*answer) for path, answer in json.loads(answers).items()}


async def _serve(answers: str, edited_answers: str, counted: str) -> None:
    loop = asyncio.get_running_loop()
    pods = _Pods(
        answers=_read(answers),
        edited_answers=_read(answers) | _read(edited_answers),
        counted=counted.encode(),
        gaps=Gaps(loop.time()),
        edited=set(),
    )
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    server = await loop.create_server(
        lambda: _Answering(pods), "0.0.0.0", ADMIN_PORT, backlog=_BACKLOG
    )
    print("listening", flush=True)
    async with server:
        while line := await lines.readline():
            pods.edited.update(json.loads(line))
            print(json.dumps(pods.gaps.longest(loop.time())), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
