"""Bisection of a failed batch: halves are sent again until the calls to blame are alone.

Pure: the caller asks which rows to send next, sends them, and reports the outcome. A refused part
is cut in two between calls. Where its first half is answered, the second half is known to be bad
and is cut without being sent. One bad call of 32 costs at most 11 requests (1 + 2 log2 32). This is
group testing (Dorfman, 1943; Hwang's halving, 1972).

The model server bisects forward passes, the sidecar requests to an upstream server: both give one
verdict for a whole batch.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

Rows = tuple[int, ...]
"""Positions in the batch."""

_MOST_ALIKE: Final = 20
"""Refusals in the same words, with no answer between them, that end a bisection, or end it for one
caller: 10 calls are told apart within 19. Of more calls of one caller, good ones may be refused
with the bad ones."""
_SEVERAL: Final = 4
"""Calls whose refusal says that the server is broken."""


@dataclass(slots=True, eq=False)
class _Part:
    rows: Rows
    bad: bool = False
    """Whether the server is known to refuse something in it."""
    has_other_half: bool = False
    """Whether the next part is the other half, and one of both is bad."""


class Bisection:
    """One batch: `next`, then `fine`, `refused`, `outgrown` or `whole`, until `next` gives None."""

    def __init__(
        self,
        owners: Sequence[int],
        deadlines: Sequence[float],
        *,
        idempotent: bool,
        callers: Sequence[Hashable] = (),
        fits: Callable[[Rows], bool] = lambda rows: True,
        gives_up: bool = True,
    ) -> None:
        """`owners`: the call of each row; `callers`: who asks for it; `deadlines`: its last moment.

        Unless `idempotent`, no row is sent twice. Rows that do not `fits` are cut unsent. One that
        `gives_up` ends when the server refuses everything in the same words.
        """
        self._owners = owners
        self._callers = callers or [None] * len(owners)
        self._deadlines = deadlines
        self._idempotent = idempotent
        self._fits = fits
        self._gives_up = gives_up
        # Rows of one caller lie together, and so do the bad ones, where one caller's are bad.
        first: dict[Hashable, int] = {}
        for row, caller in enumerate(self._callers):
            first.setdefault(caller, row)
        order = sorted(range(len(owners)), key=lambda row: (first[self._callers[row]], owners[row]))
        self._parts = [_Part(tuple(order))]
        self._sent = self._parts[0]
        self._members = len(set(owners))
        levels = math.ceil(math.log2(max(2, self._members)))
        self._most_alike = max(_MOST_ALIKE, 2 * levels + 2)
        # So many parts of several callers are cut on the way to a caller whose rows are good.
        self._most_of_others = 2 * math.ceil(math.log2(max(2, len(owners)))) + 2
        self._words: Hashable = None
        self._alike = 0
        """Refusals in these words since the last answer."""
        self._alike_of: Counter[Hashable] = Counter()
        """Those of parts of one caller."""
        self._answered: set[int] = set()
        self._outgrown: list[Rows] = []
        self.largest_fine = 0
        """The most rows that were answered in one request."""
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
                part.rows = tuple([row for row in part.rows if row not in late])
            if not part.rows:
                continue
            if part.bad and self._has_several(part.rows, self._owners):
                self._cut(part.rows, self._owners, one_is_bad=True)
            elif len(part.rows) > 1 and not self._fits(part.rows):
                self._cut(part.rows, self._owners)
            else:
                self._sent = part
                self.calls += 1
                return part.rows
        return None

    def fine(self) -> None:
        """The rows were answered."""
        self._forget_refusals()
        self._answered.update(self._sent.rows)
        self.largest_fine = max(self.largest_fine, len(self._sent.rows))
        if self._sent.has_other_half:
            self._parts[-1].bad = True

    def refused(self, words: Hashable, *, by_caller: bool = False) -> Rows:
        """The rows were refused, in these words; returns the rows whose answer that is.

        `by_caller`: no row of one caller can be to blame more than its others.
        """
        if words != self._words:
            self._forget_refusals()
            self._words = words
        rows, caller = self._sent.rows, self._callers[self._sent.rows[0]]
        is_one_callers = not self._has_several(rows, self._callers)
        self._alike += 1
        self._alike_of[caller] += is_one_callers
        if self._gives_up and self._alike >= self._most_alike:
            most = max(self._alike_of.values())
            if self._alike - most > self._most_of_others:
                return self.whole()
            if is_one_callers and self._alike_of[caller] == most >= self._most_alike:
                return rows + self._take_out(caller)
        keys = self._callers if by_caller else self._owners
        if not self._idempotent or not self._has_several(rows, keys):
            return rows
        self._cut(rows, keys, one_is_bad=not by_caller)
        return ()

    def outgrown(self) -> Rows:
        """The server's memory did not hold the rows; returns those whose answer that is."""
        rows = self._sent.rows
        self._outgrown.append(rows)
        if len(rows) == 1 or not self._idempotent:
            return rows
        self._cut(rows, range(len(self._owners)))
        return ()

    def whole(self) -> Rows:
        """End the bisection; returns all rows that have no answer yet."""
        rows = self._sent.rows + tuple([row for part in self._parts for row in part.rows])
        self._parts.clear()
        return rows

    @property
    def broken(self) -> bool:
        """Whether the server refused all of several calls in the same words: no row is to blame."""
        return not self._parts and self._alike == self.calls and self._members >= _SEVERAL

    @property
    def room(self) -> int | None:
        """How many rows the server's memory seems to hold; None when it was never too small."""
        if not any(map(self._was_too_many, self._outgrown)):
            return None
        # Without any answer only what is too much is known.
        return max(1, self.largest_fine or len(self._sent.rows) // 2)

    def _was_too_many(self, outgrown: Rows) -> bool:
        """Whether their number did not fit, and not the size of one of them.

        Where unanswered rows were not sent again, because their time was over, this is believed of
        the rows of several callers only.
        """
        giants = {rows[0] for rows in self._outgrown if len(rows) == 1}
        if not giants.isdisjoint(outgrown):
            return False
        unanswered = {self._callers[row] for row in outgrown if row not in self._answered}
        return not self._idempotent or len(unanswered) != 1

    def _forget_refusals(self) -> None:
        self._alike = 0
        self._alike_of.clear()

    def _take_out(self, caller: Hashable) -> Rows:
        """The rows left of a caller, without which the others go on.

        No part is known to be bad any more, for these rows may have been the bad ones.
        """
        left = [part.rows for part in self._parts]
        others = [tuple([row for row in rows if self._callers[row] != caller]) for rows in left]
        self._parts = [_Part(rows) for rows in others if rows]
        return tuple([row for rows in left for row in rows if self._callers[row] == caller])

    def _cut(self, rows: Rows, keys: Sequence[Hashable], *, one_is_bad: bool = False) -> None:
        """Two halves, cut nearest to the middle where `keys` of neighbours differ, if any do."""
        middle = len(rows) // 2
        cuts = [at for at in range(1, len(rows)) if keys[rows[at]] != keys[rows[at - 1]]]
        cut = min(cuts, key=lambda at: abs(2 * at - len(rows)), default=middle)
        self._parts.append(_Part(rows[cut:]))
        self._parts.append(_Part(rows[:cut], has_other_half=one_is_bad))

    @staticmethod
    def _has_several(rows: Rows, keys: Sequence[Hashable]) -> bool:
        first = keys[rows[0]]
        return any(keys[row] != first for row in rows)
