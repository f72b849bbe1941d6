"""The plan for everything that waits: which batch is first, who is given up, what can be put off.

Batches are of items of one key, merged by length or packed by tokens, within all bounds. Pure:
reads lanes, times and bounds, changes nothing. Called by `Deadline` when the device can take a
batch, and for the batches that late items and the starvation guard lead.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_scheduling.batching.companions import LOOKED_AT, Chosen
from batchedmodel_scheduling.batching.overload import (
    LARGEST,
    LARGEST_BATCH,
    Candidate,
    Device,
    WorkerTimeline,
    first_batch,
    select,
)
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.ready_queue import Lane, Limits, QueuedItem, ReadyQueue

_LOOKED_AT: Final = 8
"""Batches by which queues of different items are looked ahead; each has at least its first."""
_order: Final = attrgetter("order")
_PRICE: Final = 0.8
"""What a freed second of the device is worth: this part of what arrives in it, as far as the device
would be busy with it anyway."""
_KEYS_SEEN: Final = 16
_BATCHES_SEEN: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a plan depends on beside the waiting items."""

    free: Sequence[float]
    """When each worker could begin a batch that leaves now, the first one first."""
    start_spread: float
    """Standard deviation of that, seconds."""
    rate: float
    """Items that arrive per second."""
    target: float | None
    """Seconds from arrival to answer that are aimed at, of the usual item."""
    times: BatchTimes
    limits: Limits
    by_due: bool
    """Whether lanes are simply in order of due time."""
    hurried: bool
    """Whether due times are worth a smaller batch; not where the target is out of reach anyway."""

    @property
    def longest(self) -> float:
        """Expected seconds of a batch that takes all of the target."""
        return math.inf if self.target is None else self.target / self.times.upper

    @property
    def turn(self) -> float:
        """Expected seconds of a batch behind another one that is to meet the target."""
        return self.longest / 2

    @property
    def start(self) -> float:
        """When a batch that leaves now could begin."""
        return self.free[0]


class Run(NamedTuple):
    """Length classes of one key that share batches, shortest items first."""

    lanes: list[Lane]
    cap: int
    """How many share a batch if the longest is among them."""


class LengthClass:
    """What is known of the items of one lane."""

    __slots__ = ("cap", "items", "table")

    def __init__(self, items: int, cap: int, table: list[float]) -> None:
        self.items = items
        self.cap = cap
        """How many share a batch if the longest of this class is among them."""
        self.table = table
        """Seconds by number of items of which the longest is of this class, at least to `cap`."""


def merged(classes: Sequence[LengthClass]) -> list[slice]:
    """Runs of classes, shortest items first, that share batches: least total time of the device.

    Merging classes pads more and launches less. Dynamic programming over the contiguous merges
    finds the least sum: the idea of TurboTransformers (PPoPP 2021), applied to classes.
    """
    least = [0.0]
    cut_at = [0]
    for end, longest in enumerate(classes, 1):
        cap, table = longest.cap, longest.table
        whole = table[cap]
        items = 0
        best = math.inf
        best_cut = end - 1
        for begin in range(end - 1, -1, -1):
            items += classes[begin].items
            together = items // cap * whole + table[items % cap]
            if together >= best:
                break  # with more classes it only takes longer
            seconds = least[begin] + together
            if seconds < best:
                best, best_cut = seconds, begin
        least.append(best)
        cut_at.append(best_cut)
    runs: list[slice] = []
    end = len(classes)
    while end:
        runs.append(slice(cut_at[end], end))
        end = cut_at[end]
    return runs[::-1]


def together(late: list[QueuedItem], edges: tuple[int, ...], now: Situation) -> list[QueuedItem]:
    """Of late items of one key, in turn: the first, and those that best share a batch with it."""
    if now.times.rule is CostRule.PACKED:
        rows, _ = _packed_rows([entry.length for entry in late], 0.0, now)
        return late[:rows]
    lanes = ReadyQueue(edges)
    for entry in late:
        lanes.add(entry)
    (by_length,) = lanes.by_key()
    classes = [_length_class(lane, now) for lane in by_length]
    for run in merged(classes):
        chosen = {entry.id for lane in by_length[run] for entry in lane.entries}
        if late[0].id in chosen:
            return [entry for entry in late if entry.id in chosen][: classes[run.stop - 1].cap]
    raise AssertionError("the runs together hold every item")


def within(batch: list[QueuedItem], seconds: float, now: Situation) -> list[QueuedItem]:
    """As many of the first items as safely run in so many seconds; perhaps none."""
    table = _table_of(batch, now)
    return batch[: bisect_right(table, seconds / now.times.upper, 0, len(batch) + 1) - 1]


def quick(batch: list[QueuedItem], now: Situation) -> list[QueuedItem]:
    """As many of the first items as do not keep others waiting for too long."""
    return batch[: _cap(_table_of(batch, now), len(batch), now.turn, now)]


def by_adapter(
    batch: list[QueuedItem], ready: ReadyQueue, chosen: Chosen, limits: Limits, now: float
) -> list[QueuedItem]:
    """As many that wait, in place of these where that spares the device adapters to copy."""
    if not any([entry.item.adapter for entry in batch]):  # noqa: C419  # compiled, a list is faster
        return batch
    others = ready.beside(batch, LOOKED_AT * len(batch))
    places = chosen([entry.item for entry in others], len(batch), now)
    members = [others[at] for at in places]
    return members[: limits.fitting([entry.length for entry in members])]


def most_urgent(lanes: list[Lane]) -> float:
    """When the first of all their items should leave."""
    return min([lane.entries[0].order for lane in lanes])


def _table_of(batch: list[QueuedItem], now: Situation) -> list[float]:
    lengths = [entry.length for entry in batch]
    if now.times.rule is CostRule.PACKED:
        return now.times.packed_table(lengths)
    return now.times.table(max(lengths), len(lengths))


def table_beyond(first: Candidate, now: Situation) -> list[float]:
    """Upper seconds of the batch by number of items; of a packed one also with more like them."""
    table = first.table
    if now.times.rule is CostRule.PACKED:
        lengths = [entry.length for entry in first.entries]
        usual = round(sum(lengths) / len(lengths))
        more = [usual] * (now.limits.rows_of(usual) - len(lengths))
        table = now.times.packed_table(lengths + more)
    return [seconds * first.factor for seconds in table]


def _least_first(entry: QueuedItem) -> tuple[int, float]:
    return -entry.item.priority, entry.due


def _length_class(lane: Lane, now: Situation) -> LengthClass:
    cap = now.limits.rows_of(lane.longest)
    table = now.times.table(lane.longest, cap)
    return LengthClass(len(lane.entries), _cap(table, cap, now.turn, now), table)


def _cap(table: list[float], cap: int, turn: float, now: Situation) -> int:
    """Rows of a batch behind another one that is to meet the target: `turn` seconds at most.

    Where not even one row is that quick, it may take all of the target. Where that is out of reach
    as well, a batch is full: small ones would only make everybody later.
    """
    longest = now.longest
    if table[1] > longest or table[cap] <= turn:
        return cap
    return bisect_right(table, turn if table[1] <= turn else longest, 0, cap + 1) - 1


def _in_order(run: list[Lane], at_most: int) -> list[QueuedItem]:
    """At most so many of the most urgent items of several lanes."""
    if len(run) == 1:
        return run[0].entries[:at_most]
    # Of each lane a part of its size: merging all of a long queue would take too long.
    part = min(1.0, 1.5 * at_most / waiting_in(run))
    entries: list[QueuedItem] = []
    for lane in run:
        entries += lane.entries[: int(part * len(lane.entries)) + 4]
    entries.sort(key=_order)  # among equally urgent items the shorter first
    return entries[:at_most]


def _runs(keys: list[list[Lane]], now: Situation) -> list[Run]:
    """The most urgent runs of length classes that share batches, and a full one."""
    runs: list[Run] = []
    for lanes in keys:
        classes = [_length_class(lane, now) for lane in lanes]
        runs += [Run(lanes[run], classes[run.stop - 1].cap) for run in merged(classes)]
    if len(runs) > _LOOKED_AT:
        runs.sort(key=lambda run: most_urgent(run.lanes))
        # A full batch may go while the others wait for company, however many they are.
        full = [run for run in runs[_LOOKED_AT:] if waiting_in(run.lanes) >= run.cap]
        runs = runs[:_LOOKED_AT] + full[:1]
    return runs


def waiting_in(run: list[Lane]) -> int:
    """Items in several lanes."""
    return sum([len(lane.entries) for lane in run])


def _padded(run: Run, batches: int, now: Situation) -> list[Candidate]:
    """The first batches of a run."""
    lanes, cap = run
    entries = _in_order(lanes, batches * cap)
    candidates = []
    for first in range(0, len(entries), cap):
        part = entries[first : first + cap]
        if not now.by_due:
            part.sort(key=_least_first)
        longest = lanes[0].longest if len(lanes) == 1 else max([entry.length for entry in part])
        candidates.append(_candidate(part, now.times.table(longest, cap), now))
    return _in_turn(candidates)


def packed(keys: list[list[Lane]], now: Situation) -> list[list[Candidate]]:
    """Per key its first batches, by tokens."""
    each = now.rate / len(now.free) / sum([waiting_in(lanes) for lanes in keys])
    return [_packed_run(lanes, each * waiting_in(lanes), now) for lanes in keys]


def _packed_run(run: list[Lane], rate: float, now: Situation) -> list[Candidate]:
    """By tokens: as many as fit the bounds and the target, in order.

    `rate`: items that come per second, for each worker.
    """
    entries = _in_order(run, 3 * now.limits.rows)
    lengths = [entry.length for entry in entries]
    candidates: list[Candidate] = []
    while entries and len(candidates) < _LOOKED_AT:
        rows, table = _packed_rows(lengths, rate, now)
        part = entries[:rows]
        if now.by_due:
            candidates.append(_candidate(part, table[: rows + 1], now))
        else:
            part.sort(key=_least_first)
            candidates.append(by_itself(now, part))
        entries, lengths = entries[rows:], lengths[rows:]
    return _in_turn(candidates)


def _packed_rows(lengths: list[int], rate: float, now: Situation) -> tuple[int, list[float]]:
    """How many of these share a batch, from the first on, and its seconds by rows.

    Behind another batch they take half of the target. But where more comes than is done in that,
    what is left of the target when a batch has run need only bring as much as will be served of it.
    So a device that does much more at a time in a little more than half does so under load.
    """
    most = now.limits.fitting(lengths)
    table = now.times.packed_table(lengths[:most])
    half = max(1, bisect_right(table, now.longest / 2, 0, most + 1) - 1)
    load = rate * table[half] * now.times.drift.scale / half
    turn = now.longest * max(0.5, load / (1 + load))
    return _cap(table, most, turn, now), table


def _remaining(times: BatchTimes, entries: list[QueuedItem]) -> list[float]:
    return times.packed_table([entry.length for entry in reversed(entries)])[:0:-1]


def by_itself(now: Situation, entries: list[QueuedItem]) -> Candidate:
    """A batch of just these, which is within the bounds."""
    return _candidate(entries, _table_of(entries, now), now)


def _in_turn(batches: list[Candidate]) -> list[Candidate]:
    """Keep the batches of a run in order: each is as urgent as the most urgent one behind it.

    By due times alone a batch with one urgent item of low priority, filled up with newer items of
    high priority, would pass older items of high priority.
    """
    for first in range(len(batches) - 2, -1, -1):
        batches[first].turn = min(batches[first].turn, batches[first + 1].turn)
    return batches


def _candidate(entries: list[QueuedItem], table: list[float], now: Situation) -> Candidate:
    due = turn = entries[0].due
    if not now.by_due:
        due = min([entry.due for entry in entries])
        turn = min([entry.due + entry.item.yields for entry in entries])
    # A loop costs a fifth of a sum when it is compiled.
    weight = 0.0
    for entry in entries:
        weight += entry.weight
    return Candidate(
        entries=entries,
        table=table,
        remaining=partial(_remaining, now.times) if now.times.rule is CostRule.PACKED else None,
        factor=now.times.upper,
        due=due,
        turn=turn,
        weight=weight,
        by_due=now.by_due,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The first batch, and what it means for the others."""

    batch: list[QueuedItem]
    table: Sequence[float] = ()
    """Upper seconds by number of items of the batch's kind; none under pressure."""
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
        """How many more items fit without making another item late, where there is no pressure."""
        rows = len(self.batch)
        longest = self.table[rows] + self.slack / 2
        return bisect_right(self.table, longest, rows) - 1 - rows


def plan(lanes: ReadyQueue, now: Situation) -> Plan:
    """Plan for lanes that are not empty and whose items could each be in time alone."""
    keys = list(lanes.by_key())
    if len(keys) == len(keys[0]) == 1 and now.by_due and now.times.rule is not CostRule.PACKED:
        return _alike(keys[0][0], now)
    return _different(keys, lanes, now)


def _alike(lane: Lane, now: Situation) -> Plan:
    """All waiting items may share a batch and are about as long as each other."""
    entries = lane.entries
    cap = now.limits.rows_of(lane.longest)
    table = now.times.upper_table(lane.longest, cap)
    timeline, slack = WorkerTimeline(now.free), math.inf
    most = min(len(entries), _BATCHES_SEEN * cap) if now.hurried else 0
    for first in range(0, most, cap):
        part = entries[first : first + cap]
        end = timeline.add(table[len(part)])
        slack = min(slack, min([entry.due for entry in part]) - end)
        if slack < 0:
            break
    else:
        load = now.rate / _best_rate(table, now)
        return Plan(batch=entries[:cap], table=table, slack=slack, load=load)
    together = -(-cap // LARGEST_BATCH)
    viewed = entries[: together * LARGEST]
    expected = now.times.table(lane.longest, cap)[: cap + 1 : together]
    device = Device(
        table=[seconds * now.times.drift.scale for seconds in expected],
        start=now.start,
        start_spread=now.start_spread,
        spread=now.times.drift.spread,
        # One that is busy for longer is no help to any that this batch could have.
        workers=sum(one <= now.start + table[-1] for one in now.free),
    )
    price = _price(viewed, table, now)
    step = first_batch(_bundled(viewed, together), device, price)
    dropped = together * step.dropped
    batch = entries[dropped : dropped + together * step.size]
    return _pressed(batch, entries[:dropped], table[len(batch)], now)


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
    """The items outside a batch of so many seconds that are late before the next one."""
    timeline = WorkerTimeline(now.free)
    timeline.add(seconds)
    return [entry for entry in entries if entry.due <= timeline.begins]


def _usual_rows(table: list[float], now: Situation) -> int:
    """Rows of a batch that can run back to back and meet the target: twice its time must fit."""
    if now.target is None:
        return len(table) - 1
    return max(1, bisect_right(table, now.target / 2) - 1)


def _price(entries: Sequence[QueuedItem], table: list[float], now: Situation) -> float:
    worth = sum([entry.weight for entry in entries], 0.0) / len(entries)
    best = _best_rate(table, now)
    load = min(1.0, now.rate / best)
    return _PRICE * best * load * load * worth if load else 0.0


def _best_rate(table: list[float], now: Situation) -> float:
    rows = _usual_rows(table, now)
    return len(now.free) * rows / table[rows] if table[rows] > 0 else math.inf


def _different(keys: list[list[Lane]], waiting: ReadyQueue, now: Situation) -> Plan:
    """Several keys or lengths: merge what is cheaper together, then batches by due time."""
    if len(keys) > _KEYS_SEEN:
        # Callers choose the keys: a decision must not take longer the more there are.
        fullest = max(keys, key=waiting_in)
        keys = heapq.nsmallest(_KEYS_SEEN, keys, key=most_urgent)
        if fullest not in keys:
            keys.append(fullest)  # it may have a full batch
    runs: list[Run] = []
    if now.times.rule is CostRule.PACKED:
        queues = packed(keys, now)
    else:
        runs = _runs(keys, now)
        queues = [_padded(run, max(1, _LOOKED_AT // len(runs)), now) for run in runs]
    candidates = [candidate for queue in queues for candidate in queue]
    first, slack = min(candidates, key=lambda candidate: candidate.turn), math.inf
    if now.hurried:
        launch_price = _launch_price(candidates, now)
        chosen = select(candidates, now.free, partial(by_itself, now), launch_price)
        if not chosen.run:
            last = max((e for one in chosen.put_off for e in one.entries), key=attrgetter("due"))
            return Plan(batch=[last], pressed=True)
        first = chosen.run[0]
        if chosen.given_up or chosen.put_off:
            if runs and now.by_due:
                lane = waiting.lane_of(first.entries[0])
                own = next(run for run in runs if lane in run.lanes)
                wide = _wide(own, [run for run in runs if run.lanes[0].key == lane.key], now)
                cut = any(waiting.lane_of(entry) in wide.lanes for entry in chosen.given_up)
                window = _window(wide, now) if cut or wide is not own else None
                if window is not None:
                    return window
            return _pressed(first.entries, chosen.given_up, first.seconds, now)
        timeline = WorkerTimeline(now.free)
        for candidate in chosen.run:
            slack = min(slack, candidate.due - timeline.add(candidate.seconds))
    table = table_beyond(first, now)
    return Plan(
        batch=first.entries,
        table=table,
        slack=slack,
        load=now.rate / _best_rate(table, now),
        behind=[queue[0] for queue in queues if queue[0] is not first],
    )


def _wide(own: Run, near: list[Run], now: Situation) -> Run:
    """A run with those next to it by length, if no other batch of `near` brings as much per second.

    Runs take the device least time for all that waits. Where not all will be in time, batches of
    several runs, one after the other, make those late that a common one would have held.
    """
    near.sort(key=lambda run: run.lanes[0].length_class)
    tables = [now.times.table(run.lanes[-1].longest, run.cap) for run in near]
    most, best = -math.inf, [own]
    for begin in range(len(near)):
        waiting, worth = 0, 0.0
        for end in range(begin, len(near)):
            run = near[end]
            for lane in run.lanes:
                waiting += len(lane.entries)
                worth += len(lane.entries) * lane.entries[0].weight
            rows = min(run.cap, waiting)
            seconds = tables[end][rows]
            rate = worth * rows / waiting / seconds if seconds > 0 else math.inf
            # Of equal ones a run by itself, as they are better apart, and then the first.
            if rate > most or (rate == most and begin == end and len(best) > 1):
                most, best = rate, near[begin : end + 1]
    if len(best) == 1 or own not in best:
        return own
    return Run([lane for run in best for lane in run.lanes], best[-1].cap)


def _window(run: Run, now: Situation) -> Plan | None:
    """Of the most urgent items those in a row that are in time together and bring the most.

    Those before them count against them, and the time that they take. None where none is in time.
    """
    entries = _in_order(run.lanes, 2 * run.cap)
    table = now.times.upper_table(max([entry.length for entry in entries]), run.cap)
    price = _price(entries, table, now)
    worth = [0.0, *accumulate([entry.weight for entry in entries])]
    best, first, rows, fitting = -math.inf, 0, 0, 0
    for at, entry in enumerate(entries):
        # They are in order of due time: no fewer fit than before.
        while fitting < run.cap and table[fitting + 1] <= entry.due - now.start:
            fitting += 1
        size = min(fitting, len(entries) - at)
        if size:
            brings = worth[at + size] - 2 * worth[at] - price * table[size]
            if brings > best:
                best, first, rows = brings, at, size
    batch = entries[first : first + rows]
    return _pressed(batch, entries[:first], table[rows], now) if rows else None


def _pressed(
    batch: list[QueuedItem], left_out: list[QueuedItem], seconds: float, now: Situation
) -> Plan:
    return Plan(batch=batch, given_up=_lost(left_out, seconds, now), pressed=True)


def _launch_price(candidates: list[Candidate], now: Situation) -> float:
    """Worth that a second of a worker would make of what arrives, if it runs such batches."""
    seconds = sum([candidate.seconds for candidate in candidates])
    items = sum([len(candidate.entries) for candidate in candidates])
    if seconds <= 0:
        return 0.0
    load = min(1.0, now.rate * seconds / items / len(now.free))
    worth = sum([candidate.weight for candidate in candidates])
    return _PRICE * load * load * worth / seconds
