"""Finds the rows that spoil a batch: what fails as a whole is tried again in parts.

Pure: the caller asks which rows to send next, sends them, and reports what became of them. A batch
that is refused is cut in two, between calls, until the calls to blame are alone. Where one half was
answered, the other is known to be bad and is cut without being sent. One bad row of 32 costs at
most 11 requests (1 + 2 log2 32). The idea is that of group testing (Dorfman, 1943; Hwang's halving,
1972).

Used where a server gives one verdict for a whole batch: by the model server for a forward pass, by
the sidecar for an upstream server's answer.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

Rows = tuple[int, ...]
"""Positions in the batch."""

_PATIENCE: Final = 20
"""So many refusals in the same words, with no answer between them, end a search, or end it for one
caller. Up to 10 calls are told apart within them. Of more, good calls may be refused with the bad
ones of the same caller."""
_SEVERAL: Final = 4


@dataclass(slots=True, kw_only=True, eq=False)
class _Part:
    rows: Rows
    bad: bool = False
    """Whether the server is known to refuse something in it."""
    twin: "_Part | None" = None
    """The other half of a part that is bad: if this half is fine, the other is bad."""


class Isolation:
    """The search in one batch: `next`, then `fine`, `spoilt`, `outgrown` or `whole`."""

    def __init__(
        self,
        owners: Sequence[int],
        deadlines: Sequence[float],
        *,
        idempotent: bool,
        callers: Sequence[Hashable] = (),
        fits: Callable[[Rows], bool] = lambda rows: True,
        gives_up: bool = True,
        trial: Callable[[Rows], bool] = lambda rows: False,
    ) -> None:
        """`owners` is the call of each row, `deadlines` when nobody waits for it any longer.

        `callers` is who asked for each row; unless it is given, one caller asked for all. Refusals
        of one caller's rows end the search for this caller alone. Rows that do not `fits` are cut
        without being sent. A search that `gives_up` ends when the server refuses everything in the
        same words: the server is broken then, and no row is to blame. Any other search tells every
        call apart; once more parts were refused than a search for one bad call meets, it sends the
        calls one by one, which is cheaper when many are bad. Where rows of several calls want a
        `trial`, one call is sent before the others, if possible one that is not half of the rows.
        """
        self._owners = owners
        self._callers = callers or [None] * len(owners)
        self._deadlines = deadlines
        self._idempotent = idempotent
        self._fits = fits
        self._wants_trial = trial
        self._gives_up = gives_up
        ordered = sorted(range(len(owners)), key=lambda row: owners[row])
        self._parts = [_Part(rows=tuple(ordered))]
        self._sent = self._parts[0]
        self._members = len(set(owners))
        depth = math.ceil(math.log2(max(2, self._members)))
        self._patience = max(_PATIENCE, 2 * depth + 2)
        self._of_one_search = depth + 1
        # So many parts of several callers are cut on the way to a caller whose rows are good.
        self._of_a_descent = 2 * math.ceil(math.log2(max(2, len(owners)))) + 2
        self._refusals = 0
        self._alike: list[set[Hashable]] = []
        """The callers of each refusal in the present words, since the last answer."""
        self._words: Hashable = None
        self._answered: set[int] = set()
        self.largest_fine = 0
        """The most rows that were answered in one request."""
        self._outgrown: list[Rows] = []
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
                self._cut(part)
                continue
            if not self._of_one_call(part.rows) and self._wants_trial(part.rows):
                self._try_one_first(part)
                continue
            if len(part.rows) > 1 and not self._fits(part.rows):
                self._split(part, len(part.rows) // 2, bad=False)
                continue
            self._sent = part
            self.calls += 1
            return part.rows
        return None

    def fine(self) -> None:
        """The rows were answered."""
        self._alike.clear()
        self._answered.update(self._sent.rows)
        self.largest_fine = max(self.largest_fine, len(self._sent.rows))
        if self._sent.twin is not None:
            self._sent.twin.bad = True

    def spoilt(self, words: Hashable) -> Rows:
        """The rows were refused, in these words; returns the rows whose answer that is."""
        if words != self._words:
            self._alike.clear()
        self._words = words
        self._refusals += 1
        callers = {self._callers[row] for row in self._sent.rows}
        self._alike.append(callers)
        if not self._gives_up or len(self._alike) < self._patience:
            return self._refused(by_rows=False)
        alone = Counter(caller for one in self._alike if len(one) == 1 for caller in one)
        ((caller, most),) = alone.most_common(1) or [(None, 0)]
        if len(self._alike) - most > self._of_a_descent:
            return self.whole()
        if most >= self._patience and callers == {caller}:
            return self._sent.rows + self._taken_out(caller)
        return self._refused(by_rows=False)

    def outgrown(self) -> Rows:
        """The server's memory did not hold the rows; returns those whose answer that is."""
        self._outgrown.append(self._sent.rows)
        return self._refused(by_rows=True)

    def whole(self) -> Rows:
        """The search is over; returns all rows that have no answer yet."""
        rows = self._sent.rows + tuple(row for part in self._parts for row in part.rows)
        self._parts.clear()
        return rows

    @property
    def broken(self) -> bool:
        """Whether the server refused all of several calls in the same words: no row is to blame."""
        return not self._parts and len(self._alike) == self.calls and self._members >= _SEVERAL

    @property
    def room(self) -> int | None:
        """How many rows the server's memory seems to hold; None when it was never too small."""
        if not any(map(self._was_too_many, self._outgrown)):
            return None
        # A search without any answer has learnt only what is too much.
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

    def _taken_out(self, caller: Hashable) -> Rows:
        """The rows that a caller has left in the search, which goes on without them.

        No part is known to be bad any more, for these rows may have been the bad ones.
        """
        left = [part.rows for part in self._parts]
        others = [tuple(row for row in rows if self._callers[row] != caller) for rows in left]
        self._parts = [_Part(rows=rows) for rows in others if rows]
        return tuple(row for rows in left for row in rows if self._callers[row] == caller)

    def _refused(self, *, by_rows: bool) -> Rows:
        part = self._sent
        alone = len(part.rows) == 1 if by_rows else self._of_one_call(part.rows)
        if alone or not self._idempotent:
            return part.rows
        if by_rows:
            self._split(part, len(part.rows) // 2, bad=False)
        else:
            self._cut(part)
        return ()

    def _cut(self, part: _Part) -> None:
        """Cut what is known to be bad, between two calls."""
        if self._gives_up or self._refusals <= self._of_one_search:
            self._split(part, self._boundary(part.rows), bad=True)
            return
        self._parts += [_Part(rows=rows) for rows in reversed(self._calls(part.rows))]

    def _split(self, part: _Part, cut: int, *, bad: bool) -> None:
        right = _Part(rows=part.rows[cut:])
        left = _Part(rows=part.rows[:cut], twin=right if bad else None)
        self._parts += [right, left]

    def _try_one_first(self, part: _Part) -> None:
        calls = self._calls(part.rows)
        first = next((call for call in calls if 2 * len(call) != len(part.rows)), calls[0])
        caller = self._owners[first[0]]
        others = tuple(row for row in part.rows if self._owners[row] != caller)
        self._parts += [_Part(rows=others), _Part(rows=first)]

    def _calls(self, rows: Rows) -> list[Rows]:
        return [tuple(call) for _, call in groupby(rows, key=self._owners.__getitem__)]

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
