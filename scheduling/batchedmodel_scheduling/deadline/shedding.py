"""Which batches to run and what to give up when not all can be in time.

Moore and Hodgson's rule (1968) on batches: run them by deadline. When one would be late, give up
what costs the most time for its worth, either a whole batch or the oldest members of the late one.
Nobody is given up where the late batch can be cut in two that are both in time, and the second
launch costs others less. Pure.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from batchedmodel_scheduling.deadline.ready_queue import QueuedItem


class WorkerTimeline:
    """When batches end that leave one after the other, each where a worker is free first.

    Graham's list scheduling (1966). The pipeline says when the workers are free of what has left.
    """

    def __init__(self, free: Sequence[float]) -> None:
        """`free` says of each worker, at least of one, from when on it is."""
        self._free = sorted(free)

    @property
    def begins(self) -> float:
        """When the next batch does."""
        return self._free[0]

    def add(self, seconds: float) -> float:
        """One more batch takes so long; returns when it ends."""
        ends = self._free[0] + seconds
        heapq.heapreplace(self._free, ends)
        return ends


class Candidate:
    """Items that would share a batch, in the order in which they would be given up."""

    # Not a dataclass, whose constructor is not compiled.
    __slots__ = (
        *("behind", "by_due", "due", "entries", "factor", "remaining", "seconds", "table", "turn"),
        *("weight", "without"),
    )

    def __init__(
        self,
        *,
        entries: list[QueuedItem],
        table: list[float],
        remaining: "Remaining | None",
        factor: float,
        due: float,
        turn: float,
        weight: float,
        by_due: bool,
    ) -> None:
        self.entries = entries
        self.table = table
        """Expected seconds by number of items, before `factor`."""
        self.remaining = remaining
        """None where only the number of items counts."""
        self.without: list[float] | None = None
        """Expected seconds when the first 0, 1, ... are gone, once it was asked for that."""
        self.factor = factor
        """From expected to safe seconds."""
        self.due = due
        self.turn = turn
        """Where it stands in the order; before `due` if one that must come after it is due then."""
        self.seconds = table[len(entries)] * factor
        self.weight = weight
        self.by_due = by_due
        """Whether the entries are in order of due time."""
        self.behind: Candidate | None = None
        """The next batch of the same kind, which may fill up what this one gives up."""


Remaining = Callable[[list[QueuedItem]], list[float]]
"""Expected seconds of a batch when the first 0, 1, ... of its items are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to run, first batch first; what was given up, and which batches were put off."""

    run: list[Candidate]
    given_up: list[QueuedItem]
    put_off: list[Candidate]


class _Oldest(NamedTuple):
    """How many of the first must go so that the rest is in time."""

    dropped: int
    loss: float
    """What they are worth."""
    due: float
    """When the first of the rest is due."""


Remake = Callable[[list[QueuedItem]], Candidate]
"""A batch of some members of another one."""


def select(
    candidates: list[Candidate], free: Sequence[float], remake: Remake, launch_price: float
) -> Selection:
    """Decide for workers that are free at these times; candidates need not be in order.

    `launch_price` is the worth of a second of a worker.
    """
    candidates.sort(key=lambda candidate: candidate.turn)
    run: list[Candidate] = []
    given_up: list[QueuedItem] = []
    cheap: list[Candidate] = []
    put_off: list[Candidate] = []
    timeline = WorkerTimeline(free)  # of all that run before the last
    for candidate in candidates:
        if not candidate.entries:
            continue  # all of it has gone along with the batch before it
        if run:
            timeline.add(run[-1].seconds)
        run.append(candidate)
        while run:
            last, begins = run[-1], timeline.begins
            if begins + last.seconds <= last.due:
                break
            worst = run[0]
            for one in run:
                if one.seconds * worst.weight > worst.seconds * one.weight:
                    worst = one
            dropped, loss, due = _oldest(last, begins)
            if not dropped:
                break  # in time after all, but for what rounding made of the sum
            most = min(worst.weight, loss) / launch_price if launch_price else math.inf
            parts = _cut(last, dropped, begins, most, remake)
            if parts is not None:
                run[-1:] = parts
                timeline.add(parts[0].seconds)
                break
            if worst.weight < loss or dropped == len(last.entries):
                run.remove(worst)
                put_off.append(worst)
                timeline = _before_the_last(run, free)
                continue
            gone = last.entries[:dropped]
            given_up += gone
            last.entries = last.entries[dropped:]
            if last.without is not None:
                last.without = last.without[dropped:]
            left = last.without[0] if last.without is not None else last.table[len(last.entries)]
            last.seconds = left * last.factor
            last.due = due
            last.weight -= loss
            _refill(last, gone, begins, remake)
            if last.weight < launch_price * last.seconds:
                # What is left is worth less than what its time brings elsewhere.
                cheap.append(run.pop())
                timeline = _before_the_last(run, free)
                break
    if not run and cheap:
        # There is no elsewhere.
        run.append(cheap.pop(cheap.index(max(cheap, key=lambda one: one.weight / one.seconds))))
    put_off += cheap
    return Selection(run=run, given_up=given_up, put_off=put_off)


def _before_the_last(run: list[Candidate], free: Sequence[float]) -> WorkerTimeline:
    timeline = WorkerTimeline(free)
    for one in run[:-1]:
        timeline.add(one.seconds)
    return timeline


def _cut(
    late: Candidate, count: int, start: float, most: float, remake: Remake
) -> tuple[Candidate, Candidate] | None:
    """The first members by themselves and then the rest, if nobody is late and it costs little.

    A batch may hold members that are due long before the others, which can wait. `most` is how many
    seconds longer two batches may take than one.
    """
    first, rest = late.entries[:count], late.entries[count:]
    if not rest:
        return None
    without, table = late.without, late.table
    seconds = table[count] * late.factor
    ends = (table[count] + (without[count] if without else table[len(rest)])) * late.factor
    if ends - late.seconds > most or seconds > late.due - start or ends > rest[0].due - start:
        return None
    before, after = remake(first), remake(rest)
    seconds = start + before.seconds
    return (before, after) if seconds + after.seconds <= after.due else None


def _refill(candidate: Candidate, gone: list[QueuedItem], begins: float, remake: Remake) -> None:
    """Let items of the next batch take the places of those that were given up.

    Nobody is late by them, and the batch costs no more than before. Otherwise batches become the
    smaller the more there is to do.
    """
    behind = candidate.behind
    if behind is None or not candidate.by_due:
        return
    kept = candidate.entries
    # Packed, only the sum of lengths counts.
    longest = math.inf
    if candidate.remaining is None:
        longest = float(max([entry.length for entry in gone + kept]))
    room = sum([entry.length for entry in gone])
    count = 0
    for entry in behind.entries[: len(gone)]:
        room -= entry.length
        if entry.length > longest or room < 0:
            break
        count += 1
    fuller = remake(kept + behind.entries[:count])
    in_time = (fuller.due - begins) / fuller.factor
    first = len(kept)
    taken = max(0, bisect_right(fuller.table, in_time, first, first + count + 1) - 1 - first)
    if not taken:
        return
    _become(candidate, fuller if taken == count else remake(kept + behind.entries[:taken]))
    rest = behind.entries[taken:]
    if rest:
        _become(behind, remake(rest))
    else:
        behind.entries = []


def _become(candidate: Candidate, other: Candidate) -> None:
    """Hold the items of another one; its place in the order stays."""
    candidate.entries, candidate.table = other.entries, other.table
    candidate.remaining, candidate.without = other.remaining, other.without
    candidate.seconds, candidate.weight, candidate.due = other.seconds, other.weight, other.due


def _oldest(candidate: Candidate, start: float) -> _Oldest:
    entries, table = candidate.entries, candidate.table
    if candidate.without is None and candidate.remaining is not None:
        candidate.without = candidate.remaining(entries)
    without, count = candidate.without, len(entries)
    dues = None
    if not candidate.by_due:
        # Priorities stand before due times here: the rest must meet the earliest of all.
        dues = list(accumulate([entry.due for entry in reversed(entries)], min))[::-1]
    factor = candidate.factor
    # The fewer are left the sooner they are ready, and the later is the first of them due.
    few, many = 0, count
    while few < many:
        middle = (few + many) // 2
        due = dues[middle] if dues else entries[middle].due
        seconds = without[middle] if without is not None else table[count - middle]
        if start + seconds * factor <= due:
            many = middle
        else:
            few = middle + 1
    loss = 0.0
    for entry in entries[:few]:
        loss += entry.weight
    if few == count:
        return _Oldest(few, loss, math.inf)
    return _Oldest(few, loss, dues[few] if dues else entries[few].due)
