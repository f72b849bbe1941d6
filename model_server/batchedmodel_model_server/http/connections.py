"""The connections of the socket. Batches with small bodies are answered on them directly.

aiohttp's application takes a quarter of a millisecond for a request, for which a lone caller waits.
It answers everything else, and large bodies, beside which that is little.
"""

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from batchedmodel_contract.inference.packed import PACKED
from batchedmodel_contract.inference.v2 import HEADER_LENGTH
from batchedmodel_contract.processes.server_api import infer_path
from batchedmodel_http.connection import Connection
from batchedmodel_http.connection_set import ConnectionSet
from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.head_cache import HeadCache
from batchedmodel_http.interfaces import Reply
from batchedmodel_http.request_head import path_and_query
from batchedmodel_http.response import Response
from batchedmodel_http.streaming import StreamingProtocol
from batchedmodel_model_server.http.inference import failure, infer, told
from batchedmodel_model_server.http.shared_regions import Regions
from batchedmodel_model_server.lifecycle.service import ModelService

MOST_CONNECTIONS: Final = 512
"""The proxy has a handful; a process may have 1,024 files open."""


class RequestHead:
    """The head of one request or of many that have the same, and which inference it asks for.

    It inherits nothing, since the head of the package for both may be compiled.
    """

    __slots__ = (
        "declared",
        "header_length",
        "infers",
        "method",
        "packed",
        "packs",
        "path",
        "version",
    )

    def __init__(
        self, model: str, *, method: str, target: str, headers: Mapping[str, str], declared: int
    ) -> None:
        """As the head cache makes it, for the model of this name."""
        self.path, _ = path_and_query(target)
        named = re.fullmatch(infer_path(re.escape(model), "([^/]+)"), self.path)
        plain = self.path == infer_path(model, None)
        self.method = method
        self.declared = declared
        self.version = None if named is None else unquote(named[1])
        self.infers = method == "POST" and (plain or named is not None)
        self.header_length = headers.get(HEADER_LENGTH)
        self.packed = headers.get("Content-Type") == PACKED
        self.packs = headers.get("Accept") == PACKED


class Connections:
    """Keeps them, and answers batches. Needs a running loop."""

    def __init__(self, service: ModelService, application: web.Server, regions: Regions) -> None:
        """`application` answers what is no small batch; `regions`: the memory that is shared."""
        self._service = service
        self._regions = regions
        self._application = application
        self._loop = asyncio.get_running_loop()
        self._open = ConnectionSet()
        self._present: set[Connection[RequestHead]] = set()
        self._heads = HeadCache(self._loop, partial(RequestHead, service.name))

    def open(self) -> Connection[RequestHead]:
        """The connection of a caller that comes."""
        return Connection(self, self, self._heads, self._loop)

    async def close(self, seconds: float) -> None:
        """Hang up behind the answers that are under way, which have so long."""
        await self._open.close(seconds)

    def is_call(self, asked: RequestHead) -> bool:
        """Whether it is an inference."""
        return asked.infers

    def answer(
        self, asked: RequestHead, source: bytes, caller: str, reply: Reply
    ) -> EagerCoroutine[Response]:
        """Begin to answer an inference."""
        return EagerCoroutine(self._inferred(asked, source), reply, self._loop)

    async def _inferred(self, asked: RequestHead, source: bytes) -> Response:
        try:
            return await infer(
                self._service,
                asked.version,
                asked.header_length,
                source,
                self._regions,
                packed=asked.packed,
                packs=asked.packs,
            )
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            return failure(error, f"{asked.method} {asked.path}")

    def streaming(self, connection: Connection[RequestHead]) -> StreamingProtocol:
        """What answers the other requests of a connection."""
        return StreamingProtocol(
            self._application.request_handler,
            self._application.request_factory,
            unreadable=told,
            ends=partial(self.ends, connection),
            used=connection.used,
            loop=self._loop,
        )

    def ends(self, connection: Connection[RequestHead]) -> bool:
        """Whether a connection should end behind its present answer."""
        return self._open.closing or self._service.lifecycle.ended

    def entered(self, connection: Connection[RequestHead]) -> bool:
        """A caller has come; False when there are too many, and all of them are at work.

        Otherwise the one that has been idle longest makes room.
        """
        if len(self._open) >= MOST_CONNECTIONS:
            idle = [one for one in self._present if not one.at_work]
            if not idle:
                return False
            min(idle, key=lambda one: one.last_used).transport.abort()
        self._present.add(connection)
        self._open.add(connection)
        return True

    def pipelined(self, connection: Connection[RequestHead], size: int) -> bool:
        """Much came behind a request; the sidecar asks one at a time on a connection."""
        return True

    def unread(self, connection: Connection[RequestHead]) -> None:
        """A large answer was written. The callers of this socket are trusted to read it."""

    def left(self, connection: Connection[RequestHead]) -> None:
        """A caller has gone."""
        self._present.discard(connection)
        self._open.remove(connection)
