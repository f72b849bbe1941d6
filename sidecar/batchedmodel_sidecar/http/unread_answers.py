"""Answers that their callers have not read: counted in the memory budget, and bounded in time.

The connections tell it what is written; the data handler asks it whether a large answer fits.
Answers take at most half of the budget, so that callers who do not read keep no bodies out.
"""

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.tenants import address_group
from batchedmodel_http.response import Response, size_of
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.errors import RETRY_SOON, CallError

SMALL: Final = 64 * 1024
"""Bytes of an answer that always fits, and what a caller must read within `PATIENCE`."""
PATIENCE: Final = 9.0
"""Seconds for `SMALL` bytes, once answers take half of their room."""
_LONGEST: Final = 150.0
"""Seconds without a byte read after which a caller is cut off, however much room there is."""
_MAKES_ROOM: Final = 2.0
"""Seconds after which a caller that does not read gives way to the next answer."""
_EACH: Final = 1.0
_FRESH: Final = 0.05
"""Seconds for which a measure counts. A large answer is written in pieces, of which the first tells
of it; to measure thousands takes a millisecond."""


@dataclass(slots=True, kw_only=True)
class _Unread:
    """What one caller has not read."""

    holder: str
    """Its caller's address, or network."""
    size: int
    """Bytes when last measured."""
    read_at: float
    """When it last read anything."""
    mark: int
    since: float
    """When it had read `SMALL` bytes last, and how many were unread then."""

    def measured(self, size: int, now: float) -> None:
        """So many bytes are unread now."""
        if size < self.size:
            self.read_at = now
        self.size = size
        if size > self.mark:
            self.mark = size
        elif self.mark - size >= SMALL:
            self.mark, self.since = size, now

    def is_late(self, now: float, *, short: bool) -> bool:
        """Whether its caller is cut off."""
        return now - self.read_at >= _LONGEST or (short and now - self.since >= PATIENCE)


class UnreadAnswers:
    """What was written to callers and lies in this process until they read it."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._room: Final = budget.limit // 2
        self._answers: dict[asyncio.WriteTransport, _Unread] = {}
        self.size = 0
        """Bytes that are unread, as last measured."""
        self._charged = 0
        self._measured_at = -math.inf
        """When all of it was."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, transport: asyncio.WriteTransport, holder: str = "") -> None:
        """Something large was written on this connection, or its caller reads slowly.

        `holder`: whose answers count together.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        answer = self._answers.get(transport)
        if answer is None:
            answer = self._answers[transport] = _Unread(
                holder=holder, size=0, read_at=now, mark=0, since=now
            )
        self._measure(transport, answer, now)
        if self._timer is None and self._answers:
            self._timer = loop.call_later(_EACH, self._look)

    def forget(self, transport: asyncio.WriteTransport) -> None:
        """The connection is gone."""
        answer = self._answers.pop(transport, None)
        if answer is not None:
            self._grow(-answer.size)

    def admitted(self, response: Response, caller: str = "") -> Response:
        """The same response, if there is room for it; raises `CallError` (503).

        The holder of most bytes gives way: the connection that reads slowest is cut off. To an
        answer of the same holder it gives way only if nothing was read for some seconds.
        """
        if size_of(response.parts) <= SMALL:
            return response
        now = asyncio.get_running_loop().time()
        if self.size < self._room and now - self._measured_at < _FRESH:
            return response
        holder = address_group(caller)
        self._measure_all(now)
        while self.size >= self._room:
            held = Counter[str]()
            for answer in self._answers.values():
                held[answer.holder] += answer.size
            (largest, most), *_ = held.most_common(1)
            theirs = [item for item in self._answers.items() if item[1].holder == largest]
            transport, slowest = min(theirs, key=lambda item: item[1].since)
            if held[holder] >= most and now - slowest.since < _MAKES_ROOM:
                message = f"callers have not read {self.size} bytes of answers; no more fit"
                raise CallError(message, status=503, retry_after=RETRY_SOON)
            self._cut(transport)
        return response

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._measure_all(now)
        short = self.size >= self._room // 2 or self._budget.held >= self._room
        for transport, answer in list(self._answers.items()):
            if answer.is_late(now, short=short):
                self._cut(transport)
        self._timer = loop.call_later(_EACH, self._look) if self._answers else None

    def _cut(self, transport: asyncio.WriteTransport) -> None:
        transport.abort()
        self.forget(transport)

    def _measure_all(self, now: float) -> None:
        self._measured_at = now
        for transport, answer in list(self._answers.items()):
            self._measure(transport, answer, now)

    def _measure(self, transport: asyncio.WriteTransport, answer: _Unread, now: float) -> None:
        before = answer.size
        answer.measured(transport.get_write_buffer_size(), now)
        self._grow(answer.size - before)
        if not answer.size:
            del self._answers[transport]

    def _grow(self, size: int) -> None:
        self.size += size
        # No more than the room, even if one answer is larger.
        charged = min(self.size, self._room)
        self._budget.hold_answers(charged - self._charged)
        self._charged = charged
