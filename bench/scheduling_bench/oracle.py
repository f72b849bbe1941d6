"""The clairvoyant optimum: the most requests that any schedule could have on time, exactly.

For one device, items of equal length and equal relative deadlines. Then batches may be taken as
consecutive requests, and dropped requests as lying in front of a batch: instead of one in the
middle of a batch its first may as well be dropped, which arrived and was due no later. So a dynamic
programme over (requests considered, requests dropped) with the least completion time as its value
is exact. A batch begins when the one before it has ended and its last member has had the hand-off.
All members are on time if it ends when the first is due.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from batchedmodel_cli.simulator.engine import NANOSECONDS, Curve, Request

_NEVER: Final = 1 << 60  # so far off that a batch time may be added
_FIRST_GUESS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the clairvoyant schedules on; times in nanoseconds."""

    batch_times: tuple[int, ...]
    """Of 1, 2, ... rows, as many as a batch may have."""
    hand_off: int = 0


def machine(
    curve: Curve, *, max_rows: int, length: int = 1, hand_off_seconds: float = 0.0
) -> Machine:
    """An undisturbed plant with this curve, rounded as the plant rounds."""
    seconds = (curve.seconds([length] * rows) for rows in range(1, max_rows + 1))
    return Machine(
        batch_times=tuple(max(1, round(each * NANOSECONDS)) for each in seconds),
        hand_off=round(hand_off_seconds * NANOSECONDS),
    )


def on_time_at_least(requests: Sequence[Request], fraction: float, machine: Machine) -> bool:
    """Whether some schedule has this fraction of all requests on time.

    It stops at the first request by which too many are lost, so that a clear no is cheap.
    """
    needed = math.ceil(fraction * len(requests) - 1e-9)
    return least_dropped(requests, machine, at_most=len(requests) - needed) is not None


def least_dropped(
    requests: Sequence[Request], machine: Machine, *, at_most: int | None = None
) -> int | None:
    """How many requests the best schedule drops; None if more than `at_most`.

    Takes requests x drops x rows steps, in arrays of drops x rows. Raises ValueError if lengths or
    relative deadlines differ.
    """
    if not requests:
        return 0
    if len({(request.length, request.due - request.at) for request in requests}) > 1:
        raise ValueError("the optimum is known for equal lengths and equal targets only")
    limit = len(requests) if at_most is None else min(at_most, len(requests))
    if limit < 0:
        return None
    # Few drops are the common case, and the work grows with the number that is thought possible.
    tried = min(_FIRST_GUESS, limit)
    while True:
        found = _least(requests, machine, tried)
        if found is not None or tried == limit:
            return found
        tried = min(4 * tried, limit)


def _least(requests: Sequence[Request], machine: Machine, most: int) -> int | None:
    at = np.array([request.at for request in requests], dtype=np.int64)
    due = np.array([request.due for request in requests], dtype=np.int64)
    took = np.array(machine.batch_times, dtype=np.int64)
    if np.any(np.diff(at) < 0):
        raise ValueError("requests must ascend in time")
    ready = (at + machine.hand_off).tolist()
    # The most rows of a batch that ends in each request and could at all be on time.
    widest = np.zeros(len(at), dtype=np.int64)
    for rows, seconds in enumerate(machine.batch_times[: len(at)], start=1):
        fits = at[rows - 1 :] + machine.hand_off + seconds <= due[: len(at) - rows + 1]
        widest[rows - 1 :][fits] = rows
    # ends[j, m]: the least time by which the first j are served but for at most m of them.
    ends = np.full((len(requests) + 1, most + 1), _NEVER, dtype=np.int64)
    ends[0] = 0
    for done in range(1, len(requests) + 1):
        row, before = ends[done], ends[done - 1]
        row[1:] = before[:-1]
        rows = int(widest[done - 1])
        if rows:
            # Row b - 1 stands for the batch of the last b requests.
            finish = np.maximum(ends[done - rows : done][::-1], ready[done - 1])
            finish += took[:rows, None]
            finish[finish > due[done - rows : done][::-1, None]] = _NEVER
            np.minimum(row, finish.min(axis=0), out=row)
        if row[-1] >= _NEVER:
            return None
    return int(np.argmax(ends[-1] < _NEVER))
