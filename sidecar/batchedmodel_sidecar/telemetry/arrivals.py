"""The flight recorder: what arrived lately, when, how long it was and what became of it.

The batcher and the data handler write, the admin port reads, and `batchedmodel simulate` replays
it. No bodies: a row is 18 bytes in arrays that are made once, 1.8 MB for the whole ring.
"""

from __future__ import annotations  # array.array takes no type argument at run time

from array import array
from collections.abc import Collection, Iterator
from typing import Final

from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_contract.processes.sidecar_api import ARRIVALS_COLUMNS, ARRIVALS_PENDING
from batchedmodel_scheduling.core.policy import Priority

_CAPACITY: Final = 100_000
_ROWS_IN_A_PIECE: Final = 200  # half a millisecond to write
_VERDICTS: Final = (ARRIVALS_PENDING, *dict.fromkeys([*Outcome, *Rejection]))
_CODES: Final = {verdict: code for code, verdict in enumerate(_VERDICTS)}
_PENDING: Final = _CODES[ARRIVALS_PENDING]
_NO_WORK: Final = frozenset({Rejection.INVALID, Rejection.TOO_LARGE, Rejection.ABANDONED})
"""No pod would have served these, so a replay must not meet them."""


class RecentArrivals:
    """A ring of the last rows, in the order of their arrival; times are monotonic seconds."""

    def __init__(self, started: float, capacity: int = _CAPACITY) -> None:
        self._started: Final = started
        self._capacity: Final = capacity
        self._seconds = array("d", bytes(8 * capacity))
        self._lengths = array("q", bytes(8 * capacity))
        self._priorities = bytearray(capacity)
        self._verdicts = bytearray(capacity)
        self._recorded = 0

    def accepted(self, lengths: Collection[int], priority: Priority, now: float) -> int:
        """Note the rows of a call; returns the number of the first, for `settled`."""
        first = self._recorded
        self._note(lengths, priority, now, _PENDING)
        return first

    def settled(self, first: int, rows: int, outcome: Outcome) -> None:
        """Note what became of rows that were accepted; some may have left the ring."""
        code = _CODES[outcome]
        for number in range(max(first, self._recorded - self._capacity), first + rows):
            self._verdicts[number % self._capacity] = code

    def refused(
        self, lengths: Collection[int], priority: Priority, reason: Rejection, now: float
    ) -> None:
        """Note the rows of a call that was not accepted."""
        if reason not in _NO_WORK:
            self._note(lengths, priority, now, _CODES[reason])

    def refused_unread(self, reason: Rejection, rows: int, now: float) -> None:
        """Note a call of so many rows at least that was refused before they were read.

        Their length is nobody's knowledge; that of the row before stands in, which leaves the
        distribution of lengths what it is.
        """
        length = self._lengths[(self._recorded - 1) % self._capacity] if self._recorded else 1
        self.refused([length] * rows, Priority.NORMAL, reason, now)

    def csv(self) -> Iterator[bytes]:
        """The ring as CSV, oldest row first, in pieces between which others may go on recording.

        Rows that arrive meanwhile are left out, and so are those that they push out of the ring.
        """
        yield (",".join(ARRIVALS_COLUMNS) + "\n").encode()
        at, end = self._oldest(), self._recorded
        while (at := max(at, self._oldest())) < end:
            after = min(end, at + _ROWS_IN_A_PIECE)
            yield "".join(
                self._line(number % self._capacity) for number in range(at, after)
            ).encode()
            at = after

    def _oldest(self) -> int:
        return max(0, self._recorded - self._capacity)

    def _note(self, lengths: Collection[int], priority: int, now: float, code: int) -> None:
        seconds, number = now - self._started, self._recorded
        for length in lengths:
            slot = number % self._capacity
            self._seconds[slot] = seconds
            self._lengths[slot] = length
            self._priorities[slot] = priority
            self._verdicts[slot] = code
            number += 1
        self._recorded = number

    def _line(self, slot: int) -> str:
        verdict = _VERDICTS[self._verdicts[slot]]
        length, priority = self._lengths[slot], self._priorities[slot]
        return f"{self._seconds[slot]:.6f},{length},{priority},{verdict}\n"
