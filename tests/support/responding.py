"""What answers the calls of connections by a coroutine."""

import asyncio
from typing import Any, Protocol

from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.response import Reply, Response


class Responds(Protocol):
    """Whoever inherits from it says in `respond` what it answers."""

    async def respond(self, asked: Any, source: bytes, caller: str = "") -> Response: ...

    def answer(
        self, asked: Any, source: bytes, caller: str, reply: Reply
    ) -> EagerCoroutine[Response]:
        work = self.respond(asked, source, caller)
        return EagerCoroutine(work, reply, asyncio.get_running_loop())
