"""Which heads to give up and how many to run when not all can be in time: a look ahead.

A dynamic programme over (items left, time): V(i, t) is the least expected loss from the i-th item
on when the device is free at t. Either the i-th item is given up, or a batch begins with it. A
member is lost by the chance that its batch ends after it is due. Every second of the device costs
`price`: what later arrivals would make of it. Only the first step is used, so it is exact; later
steps are on a coarse grid of times and sizes. Several workers whose batches end in turn count
as one device that is as many times as fast, and whose answers come later by the difference.
Pure; called by `next_batch` under pressure.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchedmodel_scheduling.deadline.ready_queue import QueuedItem

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
    left[0] = 0.0  # read with the others but not used, as somebody leaves
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
    found = np.zeros((len(due) + 1, len(ends)))
    np.cumsum(worth[:, None] / (1 + np.exp(away)), axis=0, out=found[1:])
    return found
