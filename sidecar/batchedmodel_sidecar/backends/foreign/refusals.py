"""What a foreign server's refusals say: whose fault they are, and what its memory holds.

Pure; `upstream.link` asks for each answer of the server.
"""

import re
from enum import Enum, auto
from typing import Final

_INSUFFICIENT_STORAGE: Final = 507
_OUT_OF_MEMORY: Final = re.compile(
    rb"out of memory|outofmemory|cannot allocate memory|failed to allocate|bad_alloc"
    rb"|resource_exhausted|resource exhausted|memoryerror",
    re.IGNORECASE,
)
_BUSY: Final = frozenset({429, 503})
# About the request as such, about who sends it, or from a proxy on the way.
_NEVER_A_ROWS: Final = frozenset({401, 403, 404, 405, 406, 407, 408, 415, 501, 502, 504, 505})


class Verdict(Enum):
    """What an answer of the server says about the rows that it was sent."""

    FINE = auto()
    SPOILT = auto()
    """A row may be to blame."""
    OUTGROWN = auto()
    """Its memory does not hold so many."""
    BUSY = auto()
    """It wants to be left alone for a while, and has done nothing."""
    WHOLE = auto()
    """No row can be to blame."""


def judged(status: int, body: bytes) -> Verdict:
    """The verdict in a status and the first kilobytes of a body."""
    if 200 <= status < 300:
        return Verdict.FINE
    if status == _INSUFFICIENT_STORAGE or (status >= 500 and _OUT_OF_MEMORY.search(body)):
        return Verdict.OUTGROWN
    if status in _BUSY:
        return Verdict.BUSY
    if status in _NEVER_A_ROWS or status < 400:
        return Verdict.WHOLE
    return Verdict.SPOILT


class MemoryRoom:
    """How many rows a server's memory is believed to hold: falls at once, grows slowly."""

    def __init__(self, *, grow_after: float) -> None:
        """`grow_after` is how many seconds a full batch must have gone well for a bit more."""
        self._grow_after = grow_after
        self._since = 0.0
        self.rows: int | None = None
        """None while it never was too small."""

    def outgrown(self, room: int, now: float) -> None:
        """A batch did not fit, and so many rows do."""
        self.rows = room if self.rows is None else min(self.rows, room)
        self._since = now

    def fine(self, rows: int, now: float) -> bool:
        """So many rows were answered in one request; returns whether more are believed in now."""
        if self.rows is None or rows < self.rows or now - self._since < self._grow_after:
            return False
        self.rows += max(1, self.rows // 8)
        self._since = now
        return True
