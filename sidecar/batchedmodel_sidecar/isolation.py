"""Finds the rows that spoil a batch for a server which has one status for all of it.

Pure: `upstream.link` asks which rows to send next and says what became of them. A batch that is
refused is cut in two until those to blame are alone, calls staying whole; where one half was
answered, the other is known to be bad and is cut without being asked. One bad call of 32 costs at
most 11 requests (1 + 2 log2 32). A server that refuses everything in the same words is broken,
and not a row: then the search ends early.
"""

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

Rows = tuple[int, ...]
"""Positions in the batch."""

_INSUFFICIENT_STORAGE: Final = 507
_OUT_OF_MEMORY: Final = re.compile(
    rb"out of memory|outofmemory|cannot allocate memory|failed to allocate|bad_alloc"
    rb"|resource_exhausted|resource exhausted|memoryerror",
    re.IGNORECASE,
)
_BUSY: Final = frozenset({429, 503})
# About the request as such, about who sends it, or from a proxy on the way.
_NEVER_A_ROWS: Final = frozenset({401, 403, 404, 405, 406, 407, 408, 415, 501, 502, 504, 505})

_PATIENCE: Final = 20
"""Refusals in the same words, with no answer between, after which a search ends. All of 10 calls
are told apart within these; of more, some may suffer for many others that are bad alike."""
_SEVERAL: Final = 4


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


@dataclass(slots=True, kw_only=True, eq=False)
class _Part:
    rows: Rows
    bad: bool = False
    """Something in it is known to be refused."""
    twin: "_Part | None" = None
    """The other half of what is bad: if this one is fine, that one is not."""


class Isolation:
    """The search in one batch: `next`, then one of `fine`, `spoilt`, `outgrown`, `whole`."""

    def __init__(
        self, owners: Sequence[int], deadlines: Sequence[float], *, idempotent: bool
    ) -> None:
        """`owners` is the call of each row; no row is sent again after its deadline."""
        self._owners = owners
        self._deadlines = deadlines
        self._idempotent = idempotent
        ordered = sorted(range(len(owners)), key=lambda row: owners[row])
        self._parts = [_Part(rows=tuple(ordered))]
        self._sent = self._parts[0]
        members = len(set(owners))
        self._members = members
        self._patience = max(_PATIENCE, 2 * math.ceil(math.log2(max(2, members))) + 2)
        self._alike = 0
        self._words: Hashable = None
        self.largest_fine = 0
        """Most rows that were answered in one request."""
        self._outgrew = False
        self._giant = False
        self.calls = 0
        self.expired: list[int] = []
        """Rows that were not sent again because their time was over."""

    def next(self, now: float) -> Rows | None:
        """The rows to send now; None when every row is settled."""
        while self._parts:
            part = self._parts.pop()
            if self.calls:
                late = [row for row in part.rows if self._deadlines[row] <= now]
                self.expired += late
                part.rows = tuple(row for row in part.rows if row not in late)
            if not part.rows:
                continue
            if part.bad and not self._of_one_call(part.rows):
                self._split(part, self._boundary(part.rows), bad=True)
                continue
            self._sent = part
            self.calls += 1
            return part.rows
        return None

    def fine(self) -> None:
        """The rows were answered."""
        self._alike = 0
        self.largest_fine = max(self.largest_fine, len(self._sent.rows))
        if self._sent.twin is not None:
            self._sent.twin.bad = True

    def spoilt(self, words: Hashable) -> Rows:
        """The rows were refused, in these words; returns the rows whose answer that is."""
        self._alike = self._alike + 1 if words == self._words else 1
        self._words = words
        if self._alike >= self._patience:
            return self.whole()
        return self._refused(by_rows=False)

    def outgrown(self) -> Rows:
        """The rows were too many for the server's memory; returns those whose answer that is."""
        self._outgrew |= len(self._sent.rows) > 1
        self._giant |= len(self._sent.rows) == 1
        return self._refused(by_rows=True)

    def whole(self) -> Rows:
        """Nothing more is to be tried; returns all rows that have no answer yet."""
        rows = self._sent.rows + tuple(row for part in self._parts for row in part.rows)
        self._parts.clear()
        return rows

    @property
    def broken(self) -> bool:
        """Whether the server refused all of several calls, and alike: it is that and not a row."""
        settled = not self._parts
        return settled and self._alike == self.calls and self._members >= _SEVERAL

    @property
    def room(self) -> int | None:
        """Rows that the server's memory seems to hold; None when it was never too small."""
        if not self._outgrew or self._giant:
            return None  # a row that is too large by itself says nothing of how many fit
        # A search that ended before anything was answered has learnt only what is too much.
        return max(1, self.largest_fine or len(self._sent.rows) // 2)

    def _refused(self, *, by_rows: bool) -> Rows:
        part = self._sent
        alone = len(part.rows) == 1 if by_rows else self._of_one_call(part.rows)
        if alone or not self._idempotent:
            return part.rows if self._idempotent else self.whole()
        cut = len(part.rows) // 2 if by_rows else self._boundary(part.rows)
        self._split(part, cut, bad=not by_rows)
        return ()

    def _split(self, part: _Part, cut: int, *, bad: bool) -> None:
        right = _Part(rows=part.rows[cut:])
        left = _Part(rows=part.rows[:cut], twin=right if bad else None)
        self._parts += [right, left]

    def _of_one_call(self, rows: Rows) -> bool:
        return self._owners[rows[0]] == self._owners[rows[-1]]

    def _boundary(self, rows: Rows) -> int:
        """Where to cut between two calls, nearest to the middle."""
        cuts = [
            index
            for index in range(1, len(rows))
            if self._owners[rows[index]] != self._owners[rows[index - 1]]
        ]
        return min(cuts, key=lambda cut: abs(2 * cut - len(rows)))


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
