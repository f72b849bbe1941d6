"""Finds the rows that spoil a batch: what fails as a whole is tried again in parts.

Pure; its caller asks which rows to try next and says what became of them. A batch that is refused
is cut in two until those to blame are alone, calls staying whole; where one half was answered, the
other is known to be bad and is cut without being asked. One bad row of 32 costs at most 11 tries
(1 + 2 log2 32). The idea is that of group testing (Dorfman, 1943; Hwang's halving, 1972).

Used where a batch meets something that has one verdict for all of it: by the model server for a
forward pass, by the sidecar for a foreign server's answer.
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
"""Refusals in the same words, with no answer between, after which a search ends, or what it does
for one caller. All of 10 calls are told apart within these; of more, some may suffer for many
others of their own caller that are bad alike."""
_SEVERAL: Final = 4


@dataclass(slots=True, kw_only=True, eq=False)
class _Part:
    rows: Rows
    bad: bool = False
    """Something in it is known to be refused."""
    twin: "_Part | None" = None
    """The other half of what is bad: if this one is fine, that one is not."""


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
        """`owners` is the call of each row; no row is sent again after its deadline.

        `callers` is who asks for each row; unless it is given all are one's. What one of them
        meets says nothing of the server that others would have to suffer for. Rows that do not
        `fits` are cut without being tried. A search `gives_up` on what refuses everything in the
        same words: that is broken, and no row is to blame. One that does not tells every call
        apart; when more parts fail than a search for one bad call meets, it
        goes on call by call, which is cheaper for many. Of several calls whose rows want a
        `trial` when their turn comes, one goes before the others, if possible one that has not
        as many rows as these.
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
        members = len(set(owners))
        self._members = members
        depth = math.ceil(math.log2(max(2, members)))
        self._patience = max(_PATIENCE, 2 * depth + 2)
        self._of_one_search = depth + 1
        # Parts of several callers that are cut on the way to one whose rows are good.
        self._of_a_descent = 2 * math.ceil(math.log2(max(2, len(owners)))) + 2
        self._refusals = 0
        self._alike = 0
        self._alike_of: Counter[Hashable] = Counter()
        """The same refusals by the caller who was alone in what was refused."""
        self._words: Hashable = None
        self._answered: set[int] = set()
        self.largest_fine = 0
        """Most rows that were answered in one request."""
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
        self._forget_refusals()
        self._answered.update(self._sent.rows)
        self.largest_fine = max(self.largest_fine, len(self._sent.rows))
        if self._sent.twin is not None:
            self._sent.twin.bad = True

    def spoilt(self, words: Hashable) -> Rows:
        """The rows were refused, in these words; returns the rows whose answer that is."""
        if words != self._words:
            self._forget_refusals()
        self._words = words
        self._alike += 1
        self._refusals += 1
        callers = {self._callers[row] for row in self._sent.rows}
        if len(callers) == 1:
            self._alike_of.update(callers)
        if not self._gives_up or self._alike < self._patience:
            return self._refused(by_rows=False)
        ((caller, most),) = self._alike_of.most_common(1) or [(None, 0)]
        if self._alike - most > self._of_a_descent:
            return self.whole()
        if most >= self._patience and callers == {caller}:
            return self._sent.rows + self._taken_out(caller)
        return self._refused(by_rows=False)

    def outgrown(self) -> Rows:
        """The rows were too many for the server's memory; returns those whose answer that is."""
        self._outgrown.append(self._sent.rows)
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
        if not any(map(self._was_too_many, self._outgrown)):
            return None
        # A search that ended before anything was answered has learnt only what is too much.
        return max(1, self.largest_fine or len(self._sent.rows) // 2)

    def _was_too_many(self, outgrown: Rows) -> bool:
        """Whether it was their number that did not fit, and not one of them by its size.

        Of rows that were not tried again, because their caller's time was over, that is not known:
        then it takes several callers.
        """
        giants = {rows[0] for rows in self._outgrown if len(rows) == 1}
        if not giants.isdisjoint(outgrown):
            return False
        unanswered = {self._callers[row] for row in outgrown if row not in self._answered}
        return not self._idempotent or len(unanswered) != 1

    def _forget_refusals(self) -> None:
        self._alike = 0
        self._alike_of.clear()

    def _taken_out(self, caller: Hashable) -> Rows:
        """What a caller has left in the search, which goes on without it."""
        theirs: list[int] = []
        # Nothing is known to be bad any more: it may have been bad by what is taken out.
        parts, self._parts = self._parts, []
        for part in parts:
            theirs += [row for row in part.rows if self._callers[row] == caller]
            others = tuple(row for row in part.rows if self._callers[row] != caller)
            if others:
                self._parts.append(_Part(rows=others))
        return tuple(theirs)

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
