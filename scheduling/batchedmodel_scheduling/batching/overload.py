"""What to give up when not all can be in time.

Items that are alike: a look ahead (`first_batch`). A dynamic programme over (items left, time):
V(i, t) is the least expected loss from the i-th item on when the device is free at t. Either the
i-th item is given up, or a batch begins with it. A member is lost by the chance that its batch ends
after it is due. Every second of the device costs `price`: what later arrivals would make of it.
Only the first step is used, so it is exact; later steps are on a coarse grid of times and sizes.
Several workers whose batches end in turn count as one device that is as many times as fast, and
whose answers come later by the difference.

Items that differ: Moore and Hodgson's rule (1968) on batches (`select`). Run them by deadline. When
one would be late, give up what costs the most time for its worth, either a whole batch or the
oldest members of the late one. No item is given up where the late batch can be cut in two that are
both in time, and the second launch costs others less. A batch that is worth less than what later
arrivals would make of its time is put off as long as there is another one to run.

Pure; called by `next_batch`.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchedmodel_scheduling.queue.ready_queue import QueuedItem

Floats = NDArray[np.floating]
LARGEST: Final = 160
"""Items that can be looked at."""
LARGEST_BATCH: Final = 80
"""Items of the largest batch, so that two of them are looked at."""
_CELLS: Final = 64
_BEHIND: Final = 3  # cells behind the latest due time
_SIZES: Final = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 90)
_FINAL: Final = 1.02
"""What giving up now costs more than giving up later, which may turn out not to be needed."""
_LEAST_SPREAD: Final = 1e-5  # seconds
_CELL_SPREAD: Final = 0.15  # cells: what rounding to the grid makes unsure anyway


class FirstBatch(NamedTuple):
    """Give up the first `dropped` items and run the `size` after them."""

    dropped: int
    size: int


class Device(NamedTuple):
    """What the programme knows of the device."""

    table: list[float]
    """Expected seconds by number of items, from 0 on."""
    start: float
    """When it could begin."""
    start_spread: float
    """Standard deviation of that, seconds."""
    spread: float
    """Standard deviation of a batch's time, as a part of it."""
    workers: int = 1
    """That begin a batch within the time of one."""


def first_batch(entries: list[QueuedItem], device: Device, price: float) -> FirstBatch:
    """Decide for 1 to `LARGEST` items in the order in which they should leave.

    `price` is in units of the entries' weights per second.
    """
    count = len(entries)
    due = np.array([entry.due for entry in entries]) - device.start
    worth = np.array([entry.weight for entry in entries])
    largest = min(len(device.table) - 1, count)
    seconds = np.array(device.table[: largest + 1])
    paces = seconds / device.workers
    # By then everything is over: all served in the largest batches, or the last one late.
    all_served = (count // largest + 1) * paces[largest]
    horizon = max(float(min(due.max(), all_served)), float(paces[1]), _LEAST_SPREAD)
    # What ends behind the grid counts as ending with it, and must be late there.
    cell = horizon / (_CELLS - _BEHIND)
    left = _losses(due - (seconds - paces)[largest], worth, paces, cell, device.spread, price)

    ends, next_begins = seconds[1:], paces[1:]
    spread = np.hypot(device.start_spread, device.spread * ends)
    late = _late(due, worth, ends, np.maximum(spread, _LEAST_SPREAD))
    at = np.minimum(next_begins / cell, _CELLS - 1e-9)
    low = at.astype(int)
    after = left[:, low] + (left[:, low + 1] - left[:, low]) * (at - low)
    after += price * np.maximum(0, next_begins - _CELLS * cell)
    dropped, column = np.arange(count)[:, None], np.arange(largest)[None, :]
    rest = dropped + column + 1
    exists = rest <= count
    rest = np.minimum(rest, count)
    given_up = _FINAL * np.concatenate([[0.0], np.cumsum(worth)])[:count]
    loss = given_up[:, None] + late[rest, column] - late[:count] + after[rest, column]
    loss[~exists] = np.inf
    best = int(np.argmin(loss))
    return FirstBatch(best // largest, best % largest + 1)


def _losses(
    due: Floats, worth: Floats, seconds: Floats, cell: float, spread: float, price: float
) -> Floats:
    """V by item and cell of time; one row more than there are items, for none left."""
    count, largest = len(due), len(seconds) - 1
    cells = np.arange(_CELLS + 1)
    times = cells * cell
    late = _late(due, worth, times, np.maximum(spread * times, _CELL_SPREAD * cell))
    # Later batches have one of a few sizes.
    sizes = np.array([size for size in _SIZES if size < largest] + [largest])
    shifts = np.rint(seconds / cell).astype(int)
    ends = np.minimum(cells + shifts[:, None], _CELLS)
    # Time beyond the grid costs what it costs on it.
    beyond = price * cell * (cells + shifts[:, None] - ends)
    left = np.empty((count + 1, _CELLS + 1))
    left[0] = 0.0  # read with the others, but not used: at least one item leaves
    left[count] = price * times
    with_late = np.empty_like(left)
    with_late[count] = left[count] + late[count]
    usual_ends, usual_beyond = ends[sizes], beyond[sizes]
    for first in range(count - 1, 0, -1):
        rest = count - first
        if rest >= largest:
            chosen, chosen_ends, chosen_beyond = sizes, usual_ends, usual_beyond
        else:
            chosen = np.append(sizes[sizes < rest], rest)
            chosen_ends, chosen_beyond = ends[chosen], beyond[chosen]
        served = with_late[(first + chosen)[:, None], chosen_ends]
        served += chosen_beyond - late[first][chosen_ends]
        left[first] = np.minimum(worth[first] + left[first + 1], served.min(axis=0))
        with_late[first] = left[first] + late[first]
    return left


def _late(due: Floats, worth: Floats, ends: Floats, spread: Floats) -> Floats:
    """Expected worth of the late ones among the first i items, by end time.

    The logistic stands in for the normal distribution; they differ by less than 0.01.
    """
    away = np.clip(1.702 * (due[:, None] - ends[None, :]) / spread[None, :], -40, 40)
    expected = np.zeros((len(due) + 1, len(ends)))
    np.cumsum(worth[:, None] / (1 + np.exp(away)), axis=0, out=expected[1:])
    return expected


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
        *("by_due", "due", "entries", "factor", "remaining", "seconds", "table", "turn"),
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
    cheap: list[Candidate] = []  # worth less than what their time brings elsewhere
    put_off: list[Candidate] = []
    timeline = WorkerTimeline(free)  # of all that run before the last
    for candidate in candidates:
        if run:
            timeline.add(run[-1].seconds)
        run.append(candidate)
        while run:
            last, begins = run[-1], timeline.begins
            if begins + last.seconds <= last.due:
                if last.weight < launch_price * last.seconds:
                    cheap.append(run.pop())
                    timeline = _before_the_last(run, free)
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
            given_up += last.entries[:dropped]
            last.entries = last.entries[dropped:]
            if last.without is not None:
                last.without = last.without[dropped:]
            left = last.without[0] if last.without is not None else last.table[len(last.entries)]
            last.seconds = left * last.factor
            last.due = due
            last.weight -= loss
    if not run and cheap:
        # Its time would bring nothing elsewhere.
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
    """The first members by themselves and then the rest, if none is late and it costs little.

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
