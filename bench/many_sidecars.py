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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.processes.listening import raise_descriptors
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT

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


class _Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self, answer: Callable[[str, bytes], bytes]) -> None:
        self._answer = answer
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" not in self._head:
            return
        path = self._head.split(b" ", 2)[1]
        self._head = b""
        self._transport.write(self._answer(self._transport.get_extra_info("sockname")[0], path))


async def answer_for_all(
    answer: Callable[[str, bytes], bytes], obey: Callable[[Any], object]
) -> None:
    """Answers a GET by address and path, and each line of standard input by what it says in JSON.

    Ends with the standard input.
    """
    loop = asyncio.get_running_loop()
    # Whoever asks may keep a connection to each address.
    raise_descriptors()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    server = await loop.create_server(
        lambda: _Answering(answer), "0.0.0.0", ADMIN_PORT, backlog=_BACKLOG
    )
    print("listening", flush=True)
    async with server:
        while line := await lines.readline():
            print(json.dumps(obey(json.loads(line))), flush=True)


def written(status: str, body: str) -> bytes:
    """An answer as it is sent."""
    text = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return head.encode() + b"\r\n\r\n" + text


NOT_FOUND: Final = written("404 Not Found", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    """All of them."""

    answers: Mapping[bytes, bytes]
    edited_answers: Mapping[bytes, bytes]
    counted: bytes
    clock: Callable[[], float]
    gaps: Gaps
    edited: set[str]

    def answer(self, address: str, path: bytes) -> bytes:
        """To a GET."""
        if path == self.counted:
            self.gaps.asked(address, self.clock())
        answers = self.edited_answers if address in self.edited else self.answers
        return answers.get(path, NOT_FOUND)

    def obey(self, addresses: list[str]) -> tuple[float, int]:
        """These have read new settings; returns how long one waited, and how many there are."""
        self.edited.update(addresses)
        return self.gaps.longest(self.clock())


def read_answers(answers: str) -> dict[bytes, bytes]:
    """Answers as they are sent, by path; `answers` as on the command line."""
    return {path.encode(): written(*answer) for path, answer in json.loads(answers).items()}


async def _serve(answers: str, edited_answers: str, counted: str) -> None:
    clock = asyncio.get_running_loop().time
    pods = _Pods(
        answers=read_answers(answers),
        edited_answers=read_answers(answers) | read_answers(edited_answers),
        counted=counted.encode(),
        clock=clock,
        gaps=Gaps(clock()),
        edited=set(),
    )
    await answer_for_all(pods.answer, pods.obey)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
