"""Reads an API server's answers as they arrive, one object at a time, within bounds.

Whoever may edit a namespace decides what its objects hold, and how large they are.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from batchedmodel_kube.object_text import (
    LARGE,
    LARGEST_OBJECT,
    ItemSplitter,
    Unreadable,
    members,
    parsed,
)

Object = Mapping[str, Any]
"""An object of Kubernetes, or a part of one, as JSON."""
CHUNK: Final = 65_536
"""Bytes of an answer that are read at one go."""
_SLOWEST: Final = 65_536
"""Bytes a second that an answer may come at for long. Large pages over slow lines come faster."""
_TURN_SECONDS: Final = 0.0005
"""So long the thread that reads keeps the loop waiting, which gives its turn away with each look at
a connection. With Python's five milliseconds a loop of many connections came to nothing else."""
_T = TypeVar("_T")
_READER: Final = ThreadPoolExecutor(
    1, "reader", initializer=sys.setswitchinterval, initargs=(_TURN_SECONDS,)
)


class LineSplitter:
    """Takes the messages of a watch as they arrive and gives them one line at a time."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that end in this chunk; to be used up. Raises `Unreadable`."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            whole = b"".join((*self._rest, line))
            self._rest, self._held = [], 0
            if whole:
                yield whole
        self._rest.append(rest)
        self._held += len(rest)
        if self._held > LARGEST_OBJECT:
            raise Unreadable(f"has a message of more than {LARGEST_OBJECT} bytes")


async def apart(text: bytes, read: Callable[[bytes], _T]) -> _T:
    """What `read` makes of the text. A large text is read in a thread: it takes milliseconds.

    One thread reads for all. Several would take turns with the loop and leave it less time.
    """
    if len(text) <= LARGE:
        return read(text)
    return await asyncio.get_running_loop().run_in_executor(_READER, read, text)


async def steadily(chunks: AsyncIterator[bytes], patience: float) -> AsyncGenerator[bytes, None]:
    """An answer as it arrives, unless it trickles.

    `patience`: seconds that it may be waited for, beside those that its bytes take at the slowest.
    What is done between two chunks is not waited for. Raises `TimeoutError`.
    """
    loop = asyncio.get_running_loop()
    left = patience
    while True:
        began = loop.time()
        async with asyncio.timeout(left):
            chunk = await anext(chunks, None)
        if chunk is None:
            return
        left += len(chunk) / _SLOWEST - (loop.time() - began)
        yield chunk


async def items_of(
    chunks: AsyncIterator[bytes],
    splitter: ItemSplitter,
    read: Callable[[bytes], _T],
    leave_out: Callable[[Unreadable], None],
) -> AsyncGenerator[tuple[_T, int], None]:
    """What is read of a list's items as they arrive, each with the bytes of its JSON.

    `leave_out` is told of each item that cannot be read. Raises `Unreadable` for the list.
    """
    async for chunk in chunks:
        for item in splitter.feed(chunk):
            try:
                found = await apart(item, read)
            except Unreadable as error:
                leave_out(error)
            else:
                yield found, len(item)
        # Chunks that have arrived already are had without leaving the loop to anybody else.
        await asyncio.sleep(0)


async def messages_of(
    chunks: AsyncIterator[bytes],
    read: Callable[[bytes], _T],
    leave_out: Callable[[Unreadable], None],
) -> AsyncGenerator[_T, None]:
    """What is read of a watch's messages as they arrive. As `items_of`."""
    splitter = LineSplitter()
    async for chunk in chunks:
        for line in splitter.feed(chunk):
            try:
                found = await apart(line, read)
            except Unreadable as error:
                leave_out(error)
            else:
                yield found


def message_of(line: bytes, read: Callable[[bytes], Object]) -> tuple[str, Object]:
    """The type of a watch's message, and what is read of its object. Raises `Unreadable`.

    Of an ERROR the object is a `Status`, which is read whole.
    """
    message = dict(members(line))
    if not message.keys() >= {"type", "object"}:
        raise Unreadable("is no message of a watch")
    kind = str(parsed(message["type"]))
    return kind, (parsed if kind == "ERROR" else read)(message["object"])
