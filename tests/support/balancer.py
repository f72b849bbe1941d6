"""A pretended Service of Kubernetes: new connections go to the pods that were ready when last seen.

Readiness is asked for once a second, as by a kubelet. A connection that is there stays with its
pod, whatever becomes of that.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from batchedmodel_contract.processes.sidecar_api import READY
from support.chain import Chain

_PROBE_SECONDS: Final = 1.0
_PIECE: Final = 64 * 1024


class Balancer:
    """In front of several chains, each of which stands for a pod."""

    def __init__(self, pods: Sequence[Chain]) -> None:
        self._pods = pods
        self._ready = list(pods)
        self._turn = itertools.count()
        self.port = 0

    @classmethod
    @asynccontextmanager
    async def in_front_of(cls, pods: Sequence[Chain]) -> AsyncIterator["Balancer"]:
        """Takes connections to the end of the block."""
        made = cls(pods)
        server = await asyncio.start_server(made._serve, "127.0.0.1")
        made.port = int(server.sockets[0].getsockname()[1])
        probing = asyncio.create_task(made._probe())
        try:
            yield made
        finally:
            probing.cancel()
            server.close()
            await asyncio.gather(probing, return_exceptions=True)

    async def _probe(self) -> None:
        while True:
            told = [(pod, (await pod.admin(READY))[0]) for pod in self._pods]
            self._ready = [pod for pod, status in told if status == 200]
            await asyncio.sleep(_PROBE_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = self._ready
        if not ready:
            writer.transport.abort()
            return
        pod = ready[next(self._turn) % len(ready)]
        pod_reader, pod_writer = await asyncio.open_connection("127.0.0.1", pod.port)
        await asyncio.gather(_pump(reader, pod_writer), _pump(pod_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
    writer.close()
