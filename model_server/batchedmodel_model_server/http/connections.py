"""The connections of the socket. Batches with small bodies are answered on them directly.

What aiohttp's application costs for a request is a quarter of a millisecond, which a caller that is
alone waits for. It gets everything else, and large bodies, beside which that is little.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from batchedmodel_contract.server_api import infer_path
from batchedmodel_contract.v2 import HEADER_LENGTH
from batchedmodel_http import request_head
from batchedmodel_http.connection import Door
from batchedmodel_http.connection_set import Doors
from batchedmodel_http.head_cache import Headings
from batchedmodel_http.response import Response
from batchedmodel_http.streaming import General
from batchedmodel_model_server.http.error_responses import failure, told
from batchedmodel_model_server.http.inference import infer
from batchedmodel_model_server.lifecycle.service import ModelService

MOST_CONNECTIONS: Final = 512
"""The proxy has a handful; a process may have 1,024 files open."""


class Asked(request_head.Asked):
    """A head, and which version it asks for an inference, if it does."""

    __slots__ = ("header_length", "infers", "version")

    def __init__(
        self,
        model: str,
        *,
        method: str,
        target: str,
        headers: Mapping[str, str],
        declared: int,
    ) -> None:
        super().__init__(method=method, target=target, headers=headers, declared=declared)
        named = re.fullmatch(infer_path(re.escape(model), "([^/]+)"), self.path)
        self.version = None if named is None else unquote(named[1])
        plain = self.path == infer_path(model, None)
        self.infers = method == "POST" and (plain or named is not None)
        self.header_length = headers.get(HEADER_LENGTH)


class Connections:
    """Keeps them, and answers batches. Needs a running loop."""

    def __init__(self, service: ModelService, application: web.Server) -> None:
        """`application` answers what is no small batch."""
        self._service = service
        self._application = application
        self._loop = asyncio.get_running_loop()
        self._doors = Doors()
        self._present: set[Door[Asked]] = set()
        self._headings = Headings(self._loop, partial(Asked, service.name))

    def open(self) -> Door[Asked]:
        """A door for a caller that comes."""
        return Door(self, self, self._headings, self._loop)

    def let_go(self) -> None:
        """In a process that was forked off: leave them to this one.

        Held there as well they would outlive it, and whoever waits for an answer would not see it
        end.
        """
        for door in self._present:
            os.close(door.transport.get_extra_info("socket").fileno())

    async def close(self, seconds: float) -> None:
        """Hang up behind the answers that are under way, which have so long."""
        await self._doors.close(seconds)

    def is_call(self, asked: Asked) -> bool:
        """Whether it is an inference."""
        return asked.infers

    async def respond(self, asked: Asked, source: bytes, caller: str = "") -> Response:
        """The answer to an inference."""
        try:
            return await infer(self._service, asked.version, asked.header_length, source)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            return failure(error, f"{asked.method} {asked.path}")

    def general(self, door: Door[Asked]) -> General:
        """What answers the other requests of a connection."""
        return General(
            self._application.request_handler,
            self._application.request_factory,
            unreadable=told,
            ends=partial(self.ends, door),
            used=door.used,
            loop=self._loop,
        )

    def ends(self, door: Door[Asked]) -> bool:
        """Whether a connection should end behind its present answer."""
        return self._doors.closing or self._service.lifecycle.ended

    def entered(self, door: Door[Asked]) -> bool:
        """A caller has come; False when there are too many, and all of them are at work.

        Otherwise the one that has been idle longest makes room.
        """
        if len(self._doors) >= MOST_CONNECTIONS:
            idle = [one for one in self._present if not one.at_work]
            if not idle:
                return False
            min(idle, key=lambda one: one.last_used).transport.abort()
        self._present.add(door)
        self._doors.add(door)
        return True

    def behind(self, door: Door[Asked], size: int) -> bool:
        """Much came behind a request; the sidecar asks one at a time on a connection."""
        return True

    def unread(self, door: Door[Asked]) -> None:
        """A large answer was written; whoever can come here reads."""

    def left(self, door: Door[Asked]) -> None:
        """A caller has gone."""
        self._present.discard(door)
        self._doors.remove(door)
