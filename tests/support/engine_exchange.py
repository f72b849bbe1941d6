"""One request at the simulated engine's server: its sequence, and how its tokens are written."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from support import engine_events as events
from support.engine import Sequence
from support.engine_events import chunk_of
from support.engine_script import Script

_FAILED: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange(Sequence):
    """A sequence whose caller is connected."""

    script: Script
    mark: int
    received: float
    wording: events.Wording
    streamed: bool
    tells_usage: bool
    reason: str
    transport: asyncio.Transport | None = None
    over: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Done once all is written, or the answer is to be made."""
    broke_off: bool = False
    failed: bool = False

    def take_token(self) -> bool:
        """Write the token that the step has given it; whether this was the end of it."""
        transport = self.transport
        assert transport is not None
        if transport.is_closing():
            return False  # its handler is told
        self.failed = self.script.error_after == self.emitted
        if self.streamed:
            transport.write(b"".join(map(chunk_of, self._due())))
        if self.script.breaks_off_after == self.emitted:
            # What is written arrives, as it does from a process that dies.
            transport.close()
            self.broke_off = self.gone = True
        elif self.failed or self.finished:
            if not self.over.done():
                self.over.set_result(None)
        else:
            return False
        return True

    def usage(self) -> dict[str, int]:
        """What was read and written so far."""
        return events.usage_of(self.prompt_tokens, self.emitted)

    def _due(self) -> list[bytes]:
        """The events that the newest token makes."""
        place = self.emitted - 1
        opening = self.wording.opening() if place == 0 else b""
        due = [opening] if opening else []
        if self.failed:
            return [*due, self.wording.token(place), *events.error_events(_FAILED)]
        if not self.finished:
            return [*due, self.wording.token(place)]
        due.append(self.wording.last_token(place, self.reason))
        if self.tells_usage:
            due.append(self.wording.usage(self.usage()))
        return [*due, events.DONE]


def write_whole(exchange: Exchange) -> web.Response:
    """The answer of one that does not stream, all of whose tokens are there."""
    if exchange.failed:
        document = events.error_document(500, "InternalServerError", _FAILED)
        return web.json_response(document, status=500)
    body = exchange.wording.whole(exchange.emitted, exchange.reason, exchange.usage())
    return web.Response(body=body, content_type="application/json")
