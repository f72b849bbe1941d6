"""The load generator of streams: a process that is told a load and tells what became of it.

    python stream_load.py result.json < load.json

Started by `stream_plan.run_streams`. Streams begin at their times, however long others take, or
each as soon as one before it has ended.
"""

import asyncio
import gc
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvloop

from batchedmodel_contract.processes.listening import raise_descriptors
from stream_client import Client, clock
from stream_plan import BIN_SECONDS, Record, Stream, StreamLoad, StreamResult, load_of, text_of

_REST: Final = 0.1
"""Seconds for which a caller of a closed loop waits after it was refused."""
_SOON: Final = 0.05


class _Running:
    """A load that is being offered."""

    def __init__(self, load: StreamLoad) -> None:
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._began = clock() + _SOON
        self._free: dict[str, list[Client]] = defaultdict(list)
        self._clients: set[Client] = set()
        self._records: list[Record] = []
        self._arrivals = [0] * int((load.seconds + load.grace_seconds) / BIN_SECONDS + 100)
        self._connecting: set[asyncio.Task[None]] = set()
        self._next: Iterator[Stream] = iter(load.streams)
        self._unfinished = 0
        self._idle = asyncio.Event()
        self._is_over = False

    async def result(self) -> StreamResult:
        """Offer all of it, and wait for the end."""
        load = self._load
        await asyncio.sleep(self._began - clock())
        if load.closed is None:
            asked = [one for one in load.streams if one.at < load.seconds]
            self._unfinished = len(asked)
            for stream in asked:
                self._loop.call_later(
                    self._began + stream.at - clock(), self._begin, stream, stream.at
                )
        else:
            self._unfinished = load.closed
            for _ in range(load.closed):
                self._follow()
        await asyncio.sleep(self._began + load.seconds - clock())
        open_at_end = sum(one.ended is None for one in self._records)
        try:
            async with asyncio.timeout(load.grace_seconds):
                await self._idle.wait()
        except TimeoutError:
            pass
        self._is_over = True
        for client in list(self._clients):
            client.hang_up()
        await asyncio.sleep(_SOON)
        return StreamResult(
            records=self._records,
            arrivals=self._arrivals,
            began=self._began,
            open_at_end=open_at_end,
            cpu_seconds=time.process_time(),
        )

    def _follow(self) -> None:
        """A caller of the closed loop takes the next stream."""
        now = clock() - self._began
        stream = next(self._next, None) if now < self._load.seconds else None
        if stream is None:
            self._finish()
        else:
            self._begin(stream, now)

    def _finish(self) -> None:
        self._unfinished -= 1
        if self._unfinished == 0:
            self._idle.set()

    def _begin(self, stream: Stream, due: float) -> None:
        sent = clock() - self._began
        record = Record(mark=stream.mark, expected=stream.tokens, due=due, sent=sent)
        self._records.append(record)
        free = self._free[stream.address]
        while free and stream.receive_buffer is None:
            client = free.pop()
            if client.is_open:
                client.ask(stream, record)
                return
        task = self._loop.create_task(self._connect(stream, record))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, stream: Stream, record: Record) -> None:
        own = socket.socket()
        own.setblocking(False)
        try:
            if stream.receive_buffer is not None:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, stream.receive_buffer)
            own.bind((stream.address, 0))
            await self._loop.sock_connect(own, ("127.0.0.1", self._load.port))
        except OSError:
            own.close()
            record.ended = clock() - self._began
            self._after(stream, record)
            return
        _, client = await self._loop.create_connection(
            lambda: Client(self._began, self._count, self._over), sock=own
        )
        self._clients.add(client)
        client.ask(stream, record)

    def _count(self, now: float, tokens: int) -> None:
        place = int(now / BIN_SECONDS)
        if 0 <= place < len(self._arrivals):
            self._arrivals[place] += tokens

    def _over(self, client: Client, stream: Stream, record: Record) -> None:
        if client.is_open and stream.receive_buffer is None:
            self._free[stream.address].append(client)
        else:
            self._clients.discard(client)
        self._after(stream, record)

    def _after(self, stream: Stream, record: Record) -> None:
        if self._load.closed is None or self._is_over:
            self._finish()
        elif record.completed:
            self._follow()
        else:
            self._loop.call_later(_REST, self._follow)


async def _run(text: bytes) -> StreamResult:
    running = _Running(load_of(text))
    gc.collect()
    gc.freeze()
    return await running.result()


if __name__ == "__main__":
    raise_descriptors()
    Path(sys.argv[1]).write_bytes(text_of(uvloop.run(_run(sys.stdin.buffer.read()))))
