"""What it would cost to decide in a process of its own: a sketch for docs/adr/0032.

One process stands for those that would read requests and write answers: it passes rows, 36 bytes
each, over a Unix socket to another, which offers them to `Deadline`, forms batches, and passes
their numbers back. CPU of both, per row.

    python bench/two_processes.py [--quick] [--json FILE]
"""

import asyncio
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import uvloop

from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Model, Spec
from batchedmodel_scheduling.batching.decisions import Finished, HandedOver, Slots
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.queue.items import Item, ItemId
from bench_report import Figure, new_parser, of_rounds, report

_ROW: Final = struct.Struct("<QQIdd")  # number, key, length, arrived, deadline
_CHUNK: Final = 16
_WAITING: Final = 512
_SECONDS: Final = 30.0
_PASS: Final = 0.005


def main(arguments: Sequence[str]) -> int:
    """Measure and report."""
    options = new_parser("What deciding in a process of its own would cost.").parse_args(arguments)
    rows, rounds = (50_000, 1) if options.quick else (200_000, 5)
    found = [_measured(rows) for _ in range(rounds)]
    names = "passing a row, both ways", "deciding, with its passing"
    figures = [
        of_rounds(partial(_microseconds, name), values)
        for name, values in zip(names, zip(*found, strict=True), strict=True)
    ]
    return report(figures, options.json)


def _microseconds(name: str, value: float) -> Figure:
    return Figure(name=name, value=value, unit="us")


def _measured(rows: int) -> tuple[float, float]:
    ours, theirs = socket.socketpair()
    told, tells = os.pipe()
    for end in (ours, theirs):
        end.setblocking(False)
    if os.fork() == 0:
        ours.close()
        spent = uvloop.run(_decide(theirs, rows))
        os.write(tells, f"{spent}".encode())
        os._exit(0)
    theirs.close()
    passing = uvloop.run(_pass(ours, rows))
    os.wait()
    deciding = float(os.read(told, 100))
    os.close(told)
    os.close(tells)
    return 1e6 * passing / rows, 1e6 * deciding / rows


async def _decide(end: socket.socket, rows: int) -> float:
    loop = asyncio.get_running_loop()
    spec = Spec(model=Model(), batching=Batching(max_batch_size=64))
    policy = new_policy(batch_settings(spec), None)
    slots = Slots(depth=2, in_flight=0)
    behind, decided = b"", 0
    began = time.process_time()
    while decided < rows:
        behind += await loop.sock_recv(end, 1 << 18)
        whole = len(behind) // _ROW.size * _ROW.size
        now = time.monotonic()
        for number, _, length, arrived, deadline in _ROW.iter_unpack(behind[:whole]):
            policy.offer(Item(ItemId(number), None, length, arrived, deadline, deadline), now)
        behind = behind[whole:]
        while (batch := policy.poll(now, slots).release) is not None:
            policy.observe(HandedOver(batch=batch.id), now)
            policy.observe(Finished(batch=batch.id, compute_seconds=_PASS), now)
            numbers = [item.id for item in batch.items]
            await loop.sock_sendall(end, struct.pack(f"<{len(numbers)}Q", *numbers))
            decided += len(numbers)
    return time.process_time() - began


async def _pass(end: socket.socket, rows: int) -> float:
    loop = asyncio.get_running_loop()
    sent = answered = 0
    began = time.process_time()
    while answered < rows:
        while sent - answered < _WAITING and sent < rows:
            now = time.monotonic()
            some = range(sent, min(sent + _CHUNK, rows))
            packed = [_ROW.pack(number, 0, 1, now, now + _SECONDS) for number in some]
            await loop.sock_sendall(end, b"".join(packed))
            sent += len(some)
        answered += len(await loop.sock_recv(end, 1 << 16)) // 8
    return time.process_time() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
