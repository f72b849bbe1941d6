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

from batchedmodel_contract.description import CostRule
from batchedmodel_scheduling.batch_times import BatchTimes
from batchedmodel_scheduling.deadline import outlook
from batchedmodel_scheduling.deadline.grouping import LengthClass, merged
from batchedmodel_scheduling.deadline.lanes import Entry, Lane, Lanes
from batchedmodel_scheduling.deadline.shedding import Candidate, select
from batchedmodel_scheduling.limits import Limits

_PRICE: Final = 0.8
"""What a freed second of the device is worth: this part of what arrives in it, as far as the device
would be busy with it anyway."""
_KEYS_SEEN: Final = 16
_BATCHES_SEEN: Final = 32
_LOOKED_AT: Final = 4
"""Batches by which queues of different items are looked ahead; each has at least its first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a plan depends on beside the waiting items."""

    start: float
    """When the device could begin a batch that leaves now."""
    start_spread: float
    """Standard deviation of that, seconds."""
    rate: float
    """Items that arrive per second."""
    target: float | None
    """Seconds from arrival to answer that are aimed at."""
    times: BatchTimes
    limits: Limits
    by_due: bool
    """Whether lanes are simply in order of due time."""
    hurried: bool
    """Whether due times are worth a smaller batch; not where the target is out of reach anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The first batch, and what it means for the others."""

    batch: list[Entry]
    table: list[float]
    """Upper seconds by number of items of the batch's kind."""
    given_up: list[Entry]
    """Those that are left out and late by the time this batch is over."""
    pressed: bool
    """Not everything that waits will be in time."""
    slack: float
    """Seconds by which all could be put off and still be in time; 0 under pressure."""
    load: float
    """What arrives, as a part of what the device could do of the batch's kind."""
    behind: Sequence[Candidate] = ()
    """Of each other kind the batch that is to run first."""


def plan(lanes: Lanes, now: Situation) -> Plan:
    """Plan for lanes that are not empty and whose items could each be in time alone."""
    keys = list(lanes.by_key())
    if len(keys) == 1 and len(keys[0]) == 1 and now.times.rule is not CostRule.PACKED:
        return _alike(keys[0][0], now)
    return _different(keys, now)


def _alike(lane: Lane, now: Situation) -> Plan:
    """All waiting items may share a batch and are about as long as each other."""
    entries = lane.entries
    cap = now.limits.rows_of(lane.longest)
    table = now.times.upper_table(lane.longest, cap)[: cap + 1]
    end, slack = now.start, float("inf")
    seen = min(len(entries), _BATCHES_SEEN * cap) if now.hurried else 0
    for first in range(0, seen, cap):
        part = entries[first : first + cap]
        end += table[len(part)]
        slack = min(slack, min([entry.due for entry in part]) - end)
        if slack < 0:
            break
    else:
        batch = entries[:cap]
        load = _load(table, now)
        return Plan(batch=batch, table=table, given_up=[], pressed=False, slack=slack, load=load)
    skipped = _passed_over(entries, table, now)
    viewed = entries[skipped : skipped + outlook.LARGEST]
    device = outlook.Device(
        table=[
            seconds * now.times.scale for seconds in now.times.table(lane.longest, cap)[: cap + 1]
        ],
        start=now.start,
        start_spread=now.start_spread,
        spread=now.times.spread,
    )
    first_batch = outlook.first_batch(viewed, device, _price(viewed, table, now))
    dropped = skipped + first_batch.dropped
    batch = entries[dropped : dropped + first_batch.size]
    return Plan(
        batch=batch,
        table=table,
        given_up=_lost(entries[:dropped], now.start + table[len(batch)]),
        pressed=True,
        slack=0.0,
        load=1.0,
    )


def _most_urgent(lanes: list[Lane]) -> float:
    return min([lane.entries[0].order for lane in lanes])


def _lost(entries: list[Entry], ends: float) -> list[Entry]:
    """Of those left out of a batch that ends then, the ones that cannot be in time after it."""
    return [entry for entry in entries if entry.due <= ends]


def together(late: list[Entry], edges: tuple[int, ...], now: Situation) -> list[Entry]:
    """Of late items of one key, in turn, the first and those that share a batch with it best."""
    if now.times.rule is CostRule.PACKED:
        return _packed_run(late, now)[0].entries
    lanes = Lanes(edges)
    for entry in late:
        lanes.add(entry)
    (by_length,) = lanes.by_key()
    longest = _longest(now)
    classes = [_length_class(lane, longest, now) for lane in by_length]
    for run in merged(classes):
        chosen = {entry.id for lane in by_length[run] for entry in lane.entries}
        if late[0].id in chosen:
            return [entry for entry in late if entry.id in chosen][: classes[run.stop - 1].cap]
    raise AssertionError("the runs together hold every item")


def _usual_rows(table: list[float], now: Situation) -> int:
    """Rows of a batch that can run back to back and meet the target: twice its time must fit."""
    if now.target is None:
        return len(table) - 1
    return max(1, bisect_right(table, now.target / 2) - 1)


def _passed_over(entries: list[Entry], table: list[float], now: Situation) -> int:
    """Of a queue too long to be looked at as a whole, the heads that would make batches small."""
    if len(entries) <= outlook.LARGEST:
        return 0
    end = now.start + table[_usual_rows(table, now)]
    first = next((n for n, entry in enumerate(entries) if entry.due >= end), len(entries))
    return min(first, len(entries) - outlook.LARGEST)


def _price(entries: Sequence[Entry], table: list[float], now: Situation) -> float:
    worth = sum(entry.weight for entry in entries) / len(entries)
    best = _best_rate(table, now)
    load = min(1.0, now.rate / best)
    return _PRICE * best * load * load * worth if load else 0.0


def _best_rate(table: list[float], now: Situation) -> float:
    rows = _usual_rows(table, now)
    return rows / table[rows] if table[rows] > 0 else float("inf")


def _load(table: list[float], now: Situation) -> float:
    return now.rate / _best_rate(table, now)


def _different(keys: list[list[Lane]], now: Situation) -> Plan:
    """Several keys or lengths: merge what is cheaper together, then batches by due time."""
    if len(keys) > _KEYS_SEEN:
        # Callers choose the keys: a decision must not grow with them. Others have their turn.
        keys = heapq.nsmallest(_KEYS_SEEN, keys, key=_most_urgent)
    queues = (_packed if now.times.rule is CostRule.PACKED else _padded)(keys, now)
    heads = [queue[0] for queue in queues]
    candidates = [candidate for queue in queues for candidate in queue]
    if not now.hurried:
        first = min(candidates, key=lambda candidate: candidate.turn)
        table = [seconds * first.factor for seconds in first.table]
        load = _load(table, now)
        return Plan(
            batch=first.entries,
            table=table,
            given_up=[],
            pressed=False,
            slack=float("inf"),
            load=load,
            behind=[head for head in heads if head is not first],
        )
    chosen = select(candidates, now.start, partial(_by_itself, now), _launch_price(candidates, now))
    if not chosen.run:
        last = max((e for candidate in chosen.put_off for e in candidate.entries), key=_due)
        alone = now.times.upper_table(last.length, 1)
        return Plan(batch=[last], table=alone, given_up=[], pressed=True, slack=0.0, load=1.0)
    first = chosen.run[0]
    end, slack = now.start, float("inf")
    for candidate in chosen.run:
        end += candidate.seconds
        slack = min(slack, candidate.due - end)
    pressed = bool(chosen.given_up or chosen.put_off)
    table = [seconds * first.factor for seconds in first.table]
    return Plan(
        batch=first.entries,
        table=table,
        given_up=_lost(chosen.given_up, now.start + first.seconds),
        pressed=pressed,
        slack=0.0 if pressed else slack,
        load=1.0 if pressed else _load(table, now),
        behind=[head for head in heads if head is not first],
    )


def _launch_price(candidates: list[Candidate], now: Situation) -> float:
    """Worth that a second of the device would make of what arrives, if it runs such batches."""
    seconds = sum([candidate.seconds for candidate in candidates])
    items = sum([len(candidate.entries) for candidate in candidates])
    if seconds <= 0:
        return 0.0
    load = min(1.0, now.rate * seconds / items)
    worth = sum([candidate.weight for candidate in candidates])
    return _PRICE * load * load * worth / seconds


def _least_first(entry: Entry) -> tuple[int, float]:
    return -entry.item.priority, entry.due


_due: Final = attrgetter("due")
_length: Final = attrgetter("length")
_weight: Final = attrgetter("weight")


def _length_class(lane: Lane, longest: float, now: Situation) -> LengthClass:
    cap = now.limits.rows_of(lane.longest)
    table = now.times.table(lane.longest, cap)
    return LengthClass(len(lane.entries), _cap(table, cap, longest), table)


def _longest(now: Situation) -> float:
    """Expected seconds of a batch that takes all of the target."""
    return math.inf if now.target is None else now.target / now.times.upper


def _cap(table: list[float], cap: int, longest: float) -> int:
    """Rows so that no batch keeps the others waiting for more than half of the target.

    Where not even one row is that quick, all of the target; where that is out of reach as well,
    small batches would only make everybody later.
    """
    if table[1] > longest or table[cap] <= longest / 2:
        return cap
    half = longest / 2
    return bisect_right(table, half if table[1] <= half else longest, 0, cap + 1) - 1


def _in_order(run: Sequence[Lane], at_most: int) -> list[Entry]:
    """The most urgent of several lanes; what is further back than `at_most` is not looked at."""
    if len(run) == 1:
        return run[0].entries[:at_most]
    waiting = sum(len(lane.entries) for lane in run)
    # Lanes share the look ahead by their sizes: merging all of a long queue would take too long.
    part = min(1.0, 1.5 * at_most / waiting)
    entries = [entry for lane in run for entry in lane.entries[: int(part * len(lane.entries)) + 4]]
    entries.sort()
    return entries[:at_most]


def _padded(keys: list[list[Lane]], now: Situation) -> list[list[Candidate]]:
    """Per run of length classes that share batches, its first ones."""
    runs: list[tuple[list[Lane], int]] = []
    longest = _longest(now)
    for lanes in keys:
        classes = [_length_class(lane, longest, now) for lane in lanes]
        runs += [(lanes[run], classes[run.stop - 1].cap) for run in merged(classes)]
    if len(runs) > _LOOKED_AT:
        runs = heapq.nsmallest(_LOOKED_AT, runs, key=lambda run: _most_urgent(run[0]))
    batches = max(1, _LOOKED_AT // len(runs))
    return [_padded_run(lanes, cap, batches, now) for lanes, cap in runs]


def _padded_run(run: list[Lane], cap: int, batches: int, now: Situation) -> list[Candidate]:
    entries = _in_order(run, batches * cap)
    found = []
    for first in range(0, len(entries), cap):
        part = entries[first : first + cap]
        if not now.by_due:
            part.sort(key=_least_first)
        longest = run[0].longest if len(run) == 1 else max(map(_length, part))
        found.append(_candidate(part, now.times.table(longest, cap), None, now))
    return _in_turn(found)


def _packed(keys: list[list[Lane]], now: Situation) -> list[list[Candidate]]:
    return [_packed_run(_in_order(lanes, 3 * now.limits.rows), now) for lanes in keys]


def _packed_run(entries: list[Entry], now: Situation) -> list[Candidate]:
    """By tokens: as many as fit the bounds and half of the target, in order."""
    found: list[Candidate] = []
    while entries:
        rows = now.limits.fitting([entry.length for entry in entries])
        table = now.times.packed_table([entry.length for entry in entries[:rows]])
        count = _cap(table, rows, _longest(now))
        found.append(_packed_batch(entries[:count], table[: count + 1], now))
        entries = entries[count:]
    return _in_turn(found)


def _packed_batch(entries: list[Entry], table: list[float], now: Situation) -> Candidate:
    without = now.times.packed_table([entry.length for entry in reversed(entries)])[:0:-1]
    return _candidate(entries, table, without, now)


def _by_itself(now: Situation, entries: list[Entry]) -> Candidate:
    """A batch of just these, which is within the bounds."""
    lengths = [entry.length for entry in entries]
    if now.times.rule is CostRule.PACKED:
        return _packed_batch(entries, now.times.packed_table(lengths), now)
    return _candidate(entries, now.times.table(max(lengths), len(lengths)), None, now)


def _in_turn(batches: list[Candidate]) -> list[Candidate]:
    """Keep the batches of a run in order: each is as urgent as the most urgent one behind it.

    Due times alone would let the batch of an urgent item of low priority, and the items of high
    priority that fill it up, pass older ones of high priority.
    """
    for batch, behind in zip(batches[-2::-1], batches[:0:-1], strict=True):
        batch.turn = min(batch.turn, behind.turn)
    return batches


def _candidate(
    entries: list[Entry], table: list[float], without: list[float] | None, now: Situation
) -> Candidate:
    factor = now.times.upper
    due: float = entries[0].due if now.by_due else min(map(_due, entries))
    return Candidate(
        entries=entries,
        table=table,
        without=without,
        factor=factor,
        due=due,
        turn=due if now.by_due else min([entry.due + entry.item.yields for entry in entries]),
        seconds=table[len(entries)] * factor,
        weight=sum(map(_weight, entries)),
        by_due=now.by_due,
    )
