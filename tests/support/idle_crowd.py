"""Connections that say nothing, from addresses of their own, by a process of their own.

    python -m support.idle_crowd PORT COUNT ADDRESS RECONNECTS_A_SECOND

It opens them, prints how many its limit of descriptors allowed, and opens the oldest anew so often
a second until its input ends. One that the other end has closed counts as one that is there: its
caller has not looked.
"""

import asyncio
import contextlib
import itertools
import os
import resource
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

_OWN_DESCRIPTORS: Final = 64
_PER_ADDRESS: Final = 10_000
"""Of the ports of one address."""
_TESTS: Final = Path(__file__).parents[1]


@contextlib.asynccontextmanager
async def idle_crowd(
    port: int, *, count: int, rate: float = 0.0, address: str = "127.0.66.1"
) -> AsyncIterator[int]:
    """Runs it beside a test or a benchmark, from when all are there to the end of the block.

    Gives how many there are: fewer than `count` where a process may not have as many descriptors.
    """
    words = (str(port), str(count), address, str(rate))
    crowd = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.idle_crowd", *words),
        env={**os.environ, "PYTHONPATH": str(_TESTS)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert crowd.stdin is not None
    assert crowd.stdout is not None
    try:
        yield int(await crowd.stdout.readline())
    finally:
        crowd.stdin.close()
        await crowd.wait()


def _connected(port: int, address: str) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.bind((address, 0))
    with contextlib.suppress(BlockingIOError):
        made.connect(("127.0.0.1", port))
    return made


async def _crowd(port: int, count: int, address: str, rate: float) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    ended = asyncio.ensure_future(reader.read())
    network = address.rpartition(".")[0]
    first = int(address.rpartition(".")[2])
    numbers = itertools.count()
    crowd: deque[socket.socket] = deque()

    def come() -> None:
        number = next(numbers) % count
        crowd.append(_connected(port, f"{network}.{first + number // _PER_ADDRESS}"))

    for number in range(count):
        come()
        if number % 100 == 99:
            await asyncio.sleep(0)
    print(count, flush=True)  # noqa: T201
    while not ended.done():
        await asyncio.wait([ended], timeout=1 / rate if rate else None)
        if not ended.done():
            crowd.popleft().close()
            come()


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = hard - _OWN_DESCRIPTORS if hard != resource.RLIM_INFINITY else sys.maxsize
    wanted = min(int(sys.argv[2]), most)
    asyncio.run(_crowd(int(sys.argv[1]), wanted, sys.argv[3], float(sys.argv[4])))
