"""One process that answers for the sidecars of many pods, each address in its own way.

    python -m support.plane_attacks.sidecars FIRST_THREE_NUMBERS

It listens at addresses of this machine that begin so. Each line of standard input is a list of
addresses with what is said there from now on, as JSON; it is answered with a line: the longest time
between two questions for stats at a steady address since the line before. It ends with its input.
"""

import asyncio
import gzip
import json
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from batchedmodel_contract.processes.listening import raise_descriptors
from batchedmodel_contract.processes.sidecar_api import (
    ADMIN_PORT,
    MODEL_HEADER,
    POD_HEADER,
    SETTINGS,
    STATS,
)
from batchedmodel_contract.processes.stats import BUCKETS, SidecarStats

_BOMB_BYTES: Final = 64 * 2**20
_ADDRESSES: Final = range(1, 255)


class Behaviour(StrEnum):
    """How an admin port answers."""

    STEADY = "steady"
    DRIP = "drip"
    """A byte now and then."""
    MUTE = "mute"
    """It accepts and never answers."""
    GARBAGE = "garbage"
    ENDLESS = "endless"
    """A body without an end, as fast as it is taken."""
    HEADS = "heads"
    """Headers without an end."""
    BOMB = "bomb"
    """A small compressed body that is large when it is read."""
    OTHER = "other"
    """The sidecar of another model."""
    NESTED = "nested"
    """JSON of very many brackets."""
    NUMBERS = "numbers"
    """Stats of numbers that nobody can count with."""


@dataclass(slots=True, kw_only=True)
class _Told:
    """What stands for one address."""

    behaviour: Behaviour = Behaviour.STEADY
    model: str = ""
    pod: str = ""
    settings: str = ""
    work: float = 0.0
    """Seconds of the device that are asked for in a second."""


@dataclass(slots=True)
class _Pods:
    told: dict[str, _Told] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    longest: float = 0.0
    bomb: bytes = b""

    def order(self, orders: list[dict[str, Any]], now: float) -> float:
        """Take the orders; seconds of the longest wait since the last call."""
        waits = (now - at for at in self.asked.values())
        found, self.longest = max(self.longest, max(waits, default=0.0)), 0.0
        for one in orders:
            address = one.pop("address")
            behaviour = Behaviour(one.pop("behaviour", Behaviour.STEADY))
            self.told[address] = _Told(behaviour=behaviour, **one)
            self.asked.pop(address, None)
        # Waits from now on count from now on.
        self.asked = dict.fromkeys(self.asked, now)
        return found

    def note(self, address: str, now: float) -> None:
        """A steady sidecar was asked for stats."""
        self.longest = max(self.longest, now - self.asked.get(address, now))
        self.asked[address] = now


async def _answer(
    pods: _Pods, told: _Told, path: str, address: str, writer: asyncio.StreamWriter
) -> None:
    match told.behaviour:
        case Behaviour.STEADY:
            if path == STATS:
                pods.note(address, asyncio.get_running_loop().time())
            writer.write(_steady(told, path))
        case Behaviour.DRIP:
            for byte in _steady(told, path):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.2)
        case Behaviour.MUTE:
            await asyncio.sleep(3600)
        case Behaviour.GARBAGE:
            writer.write(b"\x00\xff\r\n\r\nHTTP/9.9 abc\r\n\r\n{]" * 100)
        case Behaviour.ENDLESS:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"[" * 65_536)
                await writer.drain()
        case Behaviour.HEADS:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                writer.write(b"X-Long: " + b"y" * 4_000 + b"\r\n")
                await writer.drain()
        case Behaviour.BOMB:
            writer.write(_written(told, pods.bomb, "Content-Encoding: gzip"))
        case Behaviour.OTHER:
            other = _Told(model="somebody-else", pod="another-pod", settings="0" * 16, work=1e6)
            writer.write(_steady(other, path))
        case Behaviour.NESTED:
            writer.write(_written(told, b"[" * 30_000 + b"]" * 30_000))
        case Behaviour.NUMBERS:
            writer.write(_written(told, _numbers()))


def _numbers() -> bytes:
    stats = json.dumps(_stats(_Told(work=0.1)))
    return (
        stats.replace("0.1", "1e308")
        .replace('"age_seconds": 3600.0', '"age_seconds": NaN')[:60_000]
        .encode()
    )


def _steady(told: _Told, path: str) -> bytes:
    if path == SETTINGS:
        return _written(told, json.dumps({"hash": told.settings, "startup": "ready"}).encode())
    if path == STATS:
        return _written(told, json.dumps(_stats(told)).encode())
    return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def _stats(told: _Told) -> dict[str, Any]:
    return SidecarStats(
        instance=told.pod,
        model_ready=True,
        draining=False,
        profile_known=True,
        offered_work=(told.work,) * BUCKETS,
        age_seconds=3600.0,
        backlog_work=0.0,
        queue_length=0,
        outstanding=1,
        settings_hash=told.settings,
        max_batch_size=32,
    ).to_mapping()


def _written(told: _Told, body: bytes, *headers: str) -> bytes:
    named = [f"{MODEL_HEADER}: {told.model}", f"{POD_HEADER}: {told.pod}"] if told.pod else []
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *named, *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def _serve(prefix: str) -> None:
    loop = asyncio.get_running_loop()
    raise_descriptors()
    pods = _Pods(bomb=gzip.compress(b" " * _BOMB_BYTES))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("sockname")[0]
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                told = pods.told.get(address)
                if told is None:
                    return
                path = head.split(b" ", 2)[1].decode()
                await _answer(pods, told, path, address, writer)
                await writer.drain()
                if told.behaviour is not Behaviour.STEADY:
                    return
        except (OSError, EOFError, asyncio.LimitOverrunError):
            return
        finally:
            writer.close()

    for number in _ADDRESSES:
        await asyncio.start_server(talk, f"{prefix}.{number}", ADMIN_PORT, backlog=4096)
    lines = asyncio.StreamReader(limit=2**22)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("listening", flush=True)  # noqa: T201
    while line := await lines.readline():
        print(json.dumps(pods.order(json.loads(line), loop.time())), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
