"""A caller of the model server's engine: frames over its Unix socket."""

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from batchedmodel_contract.generation.frames import (
    Frame,
    FrameReader,
    Refused,
    StepReport,
    Submit,
    Token,
    write_frame,
)
from batchedmodel_contract.processes.server_api import engine_socket_path


def submit(
    number: int, ids: Sequence[int] = (65, 66), *, max_tokens: int = 8, **others: object
) -> Submit:
    """A request for one text."""
    return Submit(id=number, ids=array("i", ids), max_tokens=max_tokens, **others)  # type: ignore[arg-type]


class EngineCaller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._frames = FrameReader()
        self._read: deque[Frame] = deque()
        self._last: StepReport | None = None

    def send(self, *frames: Frame) -> None:
        """Write them in one piece."""
        self.writer.write(b"".join(map(write_frame, frames)))

    async def next(self) -> Frame | None:
        """The next frame; None at the connection's end."""
        while not self._read:
            try:
                data = await asyncio.wait_for(self._reader.read(1 << 18), 20)
            except ConnectionError:
                return None
            if not data:
                return None
            self._read.extend(self._frames.feed(data))
        frame = self._read.popleft()
        if isinstance(frame, StepReport):
            self._last = frame
        return frame

    async def report(self) -> StepReport:
        """The next report; what was refused by then is an error."""
        frame = await self.next()
        assert isinstance(frame, StepReport), frame
        return frame

    async def refused(self) -> Refused:
        """The next refusal, whatever reports come first."""
        while not isinstance(frame := await self.next(), Refused):
            assert frame is not None
        return frame

    async def texts(self, count: int) -> dict[tuple[int, int], list[Token]]:
        """The tokens by request and choice, until so many texts have ended."""
        found: dict[tuple[int, int], list[Token]] = {}
        while count:
            for token in (await self.report()).tokens:
                found.setdefault((token.id, token.choice), []).append(token)
                count -= bool(token.finish)
        return found

    async def idle(self) -> StepReport:
        """The last report of an engine once it has nothing."""
        while self._last is None or self._last.running or self._last.waiting:
            await self.report()
        return self._last


@asynccontextmanager
async def engine_caller(model_socket: Path) -> AsyncIterator[EngineCaller]:
    """A connection to the engine of the server with this socket."""
    reader, writer = await asyncio.open_unix_connection(engine_socket_path(str(model_socket)))
    try:
        yield EngineCaller(reader, writer)
    finally:
        writer.close()
