"""The plan for everything that waits: which batch is first, who is given up, what can be put off.

Pure: reads lanes, times and bounds, changes nothing. Called by `Deadline` when the device can take
a batch.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_scheduling.deadline import look_ahead
from batchedmodel_scheduling.deadline.batches import (
    Situation,
    by_itself,
    most_urgent,
    packed,
    padded,
    table_beyond,
    waiting_in,
    worth_splitting,
)
from batchedmodel_scheduling.deadline.ready_queue import Lane, QueuedItem, ReadyQueue
from batchedmodel_scheduling.deadline.shedding import Candidate, WorkerTimeline, select

_PRICE: Final = 0.8
"""What a freed second of the device is worth: this part of what arrives in it, as far as the device
would be busy with it anyway."""
_KEYS_SEEN: Final = 16
_BATCHES_SEEN: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The first batch, and what it means for the others."""

    batch: list[QueuedItem]
    table: list[float]
    """Upper seconds by number of items of the batch's kind."""
    given_up: Sequence[QueuedItem] = ()
    """Those that are left out and late by the time this batch is over."""
    pressed: bool = False
    """Not everything that waits will be in time."""
    slack: float = 0.0
    """Seconds by which all could be put off and still be in time; 0 under pressure."""
    load: float = 1.0
    """What arrives, as a part of what the device could do of the batch's kind."""
    behind: Sequence[Candidate] = ()
    """Of each other kind the batch that is to run first."""

    @property
    def room(self) -> int:
        """How many more may go along without making anybody late."""
        rows = len(self.batch)
        longest = self.table[rows] + self.slack / 2
        return bisect_right(self.table, longest, rows) - 1 - rows


def plan(lanes: ReadyQueue, now: Situation) -> Plan:
    """Plan for lanes that are not empty and whose items could each be in time alone."""
    keys = list(lanes.by_key())
    by_tokens = now.times.rule is CostRule.PACKED
    if len(keys) == 1 and len(keys[0]) == 1 and now.by_due and not by_tokens:
        return _alike(keys[0][0], now)
    return _different(keys, now)


def _alike(lane: Lane, now: Situation) -> Plan:
    """All waiting items may share a batch and are about as long as each other."""
    entries = lane.entries
    cap = now.limits.rows_of(lane.longest)
    table = now.times.upper_table(lane.longest, cap)[: cap + 1]
    timeline, slack = WorkerTimeline(now.free), math.inf
    seen = min(len(entries), _BATCHES_SEEN * cap) if now.hurried else 0
    for first in range(0, seen, cap):
        part = entries[first : first + cap]
        end = timeline.add(table[len(part)])
        slack = min(slack, min([entry.due for entry in part]) - end)
        if slack < 0:
            break
    else:
        load = now.rate / _best_rate(table, now)
        rows = min(len(entries), cap)
        first = worth_splitting(table, rows, min(1.0, load))
        extra = table[first] + table[rows - first] - table[rows]
        # As nobody is late, a size that nobody has timed yet is tried instead of divided.
        if first < rows and (extra > slack or not now.times.sure_of(lane.longest, rows)):
            first = rows
        return Plan(batch=entries[:first], table=table, slack=slack, load=load)
    together = -(-cap // look_ahead.LARGEST_BATCH)
    viewed = entries[: together * look_ahead.LARGEST]
    expected = now.times.table(lane.longest, cap)[: cap + 1 : together]
    device = look_ahead.Device(
        table=[seconds * now.times.drift.scale for seconds in expected],
        start=now.start,
        start_spread=now.start_spread,
        spread=now.times.drift.spread,
        # One that is busy for longer is no help to any that this batch could have.
        workers=sum(one <= now.start + table[-1] for one in now.free),
    )
    price = _price(viewed, table, now)
    first_batch = look_ahead.first_batch(_bundled(viewed, together), device, price)
    dropped = together * first_batch.dropped
    batch = entries[dropped : dropped + together * first_batch.size]
    return Plan(
        batch=batch,
        table=table,
        given_up=_lost(entries[:dropped], table[len(batch)], now),
        pressed=True,
    )


def _bundled(entries: list[QueuedItem], together: int) -> list[QueuedItem]:
    """So many items at a time as one, which is due when the first of them is."""
    if together == 1:
        return entries
    return [
        QueuedItem(
            entries[first].item,
            order=entries[first].order,
            work=entries[first].work,
            weight=sum([entry.weight for entry in entries[first : first + together]]),
        )
        for first in range(0, len(entries), together)
    ]


def _lost(entries: list[QueuedItem], seconds: float, now: Situation) -> list[QueuedItem]:
    """Of those left out of a batch that takes so long, the ones that are late before the next."""
    timeline = WorkerTimeline(now.free)
    timeline.add(seconds)
    return [entry for entry in entries if entry.due <= timeline.begins]


def _usual_rows(table: list[float], now: Situation) -> int:
    """Rows of a batch that can run back to back and meet the target: twice its time must fit."""
    if now.target is None:
        return len(table) - 1
    return max(1, bisect_right(table, now.target / 2) - 1)


def _price(entries: Sequence[QueuedItem], table: list[float], now: Situation) -> float:
    worth = sum(entry.weight for entry in entries) / len(entries)
    best = _best_rate(table, now)
    load = min(1.0, now.rate / best)
    return _PRICE * best * load * load * worth if load else 0.0


def _best_rate(table: list[float], now: Situation) -> float:
    rows = _usual_rows(table, now)
    return len(now.free) * rows / table[rows] if table[rows] > 0 else math.inf


def _different(keys: list[list[Lane]], now: Situation) -> Plan:
    """Several keys or lengths: merge what is cheaper together, then batches by due time."""
    if len(keys) > _KEYS_SEEN:
        # Callers choose the keys: a decision must not take longer the more there are.
        fullest = max(keys, key=waiting_in)
        keys = heapq.nsmallest(_KEYS_SEEN, keys, key=most_urgent)
        if fullest not in keys:
            keys.append(fullest)  # it may have a full batch
    queues = (packed if now.times.rule is CostRule.PACKED else padded)(keys, now)
    heads = [queue[0] for queue in queues]
    candidates = [candidate for queue in queues for candidate in queue]
    if not now.hurried:
        first = min(candidates, key=lambda candidate: candidate.turn)
        table = table_beyond(first, now)
        return Plan(
            batch=first.entries,
            table=table,
            slack=math.inf,
            load=now.rate / _best_rate(table, now),
            behind=[head for head in heads if head is not first],
        )
    chosen = select(candidates, now.free, partial(by_itself, now), _launch_price(candidates, now))
    if not chosen.run:
        last = max((e for one in chosen.put_off for e in one.entries), key=attrgetter("due"))
        return Plan(batch=[last], table=now.times.upper_table(last.length, 1), pressed=True)
    first = chosen.run[0]
    timeline, slack = WorkerTimeline(now.free), math.inf
    for candidate in chosen.run:
        slack = min(slack, candidate.due - timeline.add(candidate.seconds))
    pressed = bool(chosen.given_up or chosen.put_off)
    table = table_beyond(first, now)
    return Plan(
        batch=first.entries,
        table=table,
        given_up=_lost(chosen.given_up, first.seconds, now),
        pressed=pressed,
        slack=0.0 if pressed else slack,
        load=1.0 if pressed else now.rate / _best_rate(table, now),
        behind=[head for head in heads if head is not first],
    )


def _launch_price(candidates: list[Candidate], now: Situation) -> float:
    """Worth that a second of a worker would make of what arrives, if it runs such batches."""
    seconds = sum([candidate.seconds for candidate in candidates])
    items = sum([len(candidate.entries) for candidate in candidates])
    if seconds <= 0:
        return 0.0
    load = min(1.0, now.rate * seconds / items / len(now.free))
    worth = sum([candidate.weight for candidate in candidates])
    return _PRICE * load * load * worth / seconds
