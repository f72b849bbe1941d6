"""A proxy that leads every tunnel to one server, whatever address it is asked for."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Tunnel:
    """Listens on this machine, at a port of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.port = 0
        self.wanted: set[str] = set()
        """Where its clients wanted to go."""

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, where, _ = head.split(b" ", 2)
        assert method == b"CONNECT"
        self.wanted.add(where.decode())
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    async def listen(self, ready: threading.Event) -> None:
        """Until `end` is called; what is open then is torn."""
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._pass, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await self._over.wait()

    def end(self) -> None:
        """Called from another thread."""
        self._loop.call_soon_threadsafe(self._over.set)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65_536):
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass  # one of both has gone
    finally:
        writer.close()


@contextmanager
def tunnel_to(host: str, port: int) -> Iterator[Tunnel]:
    """A tunnel for the time of the block."""
    tunnel, ready = Tunnel(host, port), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(tunnel.listen(ready)))
    thread.start()
    assert ready.wait(10)
    try:
        yield tunnel
    finally:
        tunnel.end()
        thread.join(10)
