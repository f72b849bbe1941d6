"""Where items wait for their turn: one lane per compatibility key and length class.

A lane is in the order in which its items should leave. What leaves is nearly always its head,
whether released or given up.
"""

import bisect
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import Objective
from batchedmodel_scheduling.queue.items import Item, ItemId, Priority

_BEHIND: Final = {Priority.HIGH: -1.0, Priority.NORMAL: 0.0, Priority.LOW: 1.0}
_WEIGHTS: Final = {Priority.HIGH: 4.0, Priority.NORMAL: 1.0, Priority.LOW: 0.25}
_BY_WORK: Final = Objective.WORK  # an enum finds its members by Python's code
_OWED_SHARE: Final = 0.05
_CLASSES: Final = 128  # more than there are narrow classes of any length


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a batch; `cost` is in what the device pays for, None for no bound."""

    rows: int
    cost: int | None
    rule: CostRule

    def rows_of(self, longest: int) -> int:
        """How many items go together if all are as long as this; at least 1."""
        if self.cost is None:
            return self.rows
        each = 1 if self.rule is CostRule.ROWS else max(1, longest)
        return max(1, min(self.rows, self.cost // each))

    def fitting(self, lengths: Sequence[int]) -> int:
        """How many of these items, from the first on, go together; at least 1 if there is one."""
        if self.cost is None:
            return min(self.rows, len(lengths))
        count = longest = total = 0
        for length in lengths:
            longest, total = max(longest, length), total + length
            cost = self.rule.paid(rows=count + 1, longest=longest, total=total)
            if count == self.rows or (count and cost > self.cost):
                break
            count += 1
        return count

    def full(self, lengths: Sequence[int]) -> bool:
        """Whether not even one more as short as the shortest of these would go with them."""
        if self.cost is None or len(lengths) >= self.rows:
            return len(lengths) >= self.rows
        return self.fitting([*lengths, min(lengths)]) == len(lengths)


class QueuedItem:
    """A waiting item as plans see it; sorts by urgency, then by age.

    Compiled, its numbers lie in it, and nothing is fetched from elsewhere to read them.
    """

    __slots__ = ("due", "id", "item", "length", "order", "weight", "work")

    def __init__(self, item: Item, *, order: float, work: float, weight: float) -> None:
        self.item: Final = item
        self.id: Final = item.id
        self.due: Final = item.due
        self.length: Final = item.length
        self.order: Final = order
        self.work: Final = work
        """Its share of a full batch, seconds."""
        self.weight: Final = weight
        """What it is worth to have it in time, by its priority."""

    def __lt__(self, other: "QueuedItem") -> bool:
        return self.order < other.order or (self.order == other.order and self.id < other.id)

    def __hash__(self) -> int:
        return self.id  # compiled, what has an order has no other


def entry_of(item: Item, work: float, step: float, objective: Objective) -> QueuedItem:
    """An item in order of due time, in which a priority is `step` seconds ahead of the next one.

    So whatever waits long enough comes first in the end. By objective its worth is its work; or
    all items are worth the same, and long ones are given up first.
    """
    worth = work if objective is _BY_WORK else 1.0
    order = item.due + item.yields + _BEHIND[item.priority] * step
    return QueuedItem(item, order=order, work=work, weight=_WEIGHTS[item.priority] * worth)


class Lane:
    """Items of one key and one length class, most urgent first."""

    __slots__ = ("entries", "key", "leaving", "length_class", "longest")

    def __init__(self, key: Hashable, length_class: int) -> None:
        self.key: Final = key
        self.length_class: Final = length_class
        self.entries: list[QueuedItem] = []
        self.longest = 0
        """At least the longest length here: lowered only when the lane runs empty."""
        self.leaving = 0
        """How many are about to leave; not 0 only while they do."""


class ReadyQueue:
    """Items that a policy may choose from."""

    def __init__(self, edges: tuple[int, ...], *, narrow: bool = True) -> None:
        """`edges` bound the length classes from above; `narrow` ones are cut again."""
        self._edges: Final = edges
        self._narrow: Final = narrow
        self._by_key: dict[Hashable, list[Lane]] = {}
        self._lane_of: dict[ItemId, tuple[Lane, QueuedItem]] = {}
        self.priorities: Final = dict.fromkeys(Priority, 0)
        """How many of each wait."""
        self._work = dict.fromkeys(Priority, 0.0)
        self._yielding = 0

    def __len__(self) -> int:
        return len(self._lane_of)

    def __iter__(self) -> Iterator[Item]:
        return iter([entry.item for _, entry in self._lane_of.values()])

    def entries(self) -> list[QueuedItem]:
        """All items."""
        return [entry for _, entry in self._lane_of.values()]

    def alike(self) -> "ReadyQueue":
        """An empty one with the same classes."""
        return ReadyQueue(self._edges, narrow=self._narrow)

    def by_key(self) -> Iterable[list[Lane]]:
        """For each key its lanes that are not empty, shortest items first."""
        return self._by_key.values()

    def lane_of(self, entry: QueuedItem) -> Lane:
        """The lane of an item, which must wait here."""
        return self._lane_of[entry.id][0]

    def like_all(self, entry: QueuedItem) -> bool:
        """Whether all are of the same length class."""
        number = self._class_of(entry.length)
        return all(lane.length_class == number for lanes in self._by_key.values() for lane in lanes)

    def feasible(self, newcomer: QueuedItem, start: float, scale: float) -> bool:
        """Whether the item and all of its and higher priorities could be in time, in full batches.

        `start` is when the device is free, `scale` how long a second of work takes.
        """
        priority = newcomer.item.priority
        whole = start + scale * sum([work for one, work in self._work.items() if one <= priority])
        if whole <= newcomer.due:
            return True
        lanes = [lane for lanes in self._by_key.values() for lane in lanes]
        if all(lane.entries[-1] < newcomer for lane in lanes):
            return False
        if whole + scale * newcomer.work > max(lane.entries[-1].due for lane in lanes):
            return False  # another item would be late
        before = 0.0
        for lane in lanes:
            ahead = lane.entries[: bisect.bisect_left(lane.entries, newcomer)]
            before += sum([one.work for one in ahead if one.item.priority <= priority])
        return start + scale * before <= newcomer.due

    def add(self, entry: QueuedItem) -> Lane:
        """Let an item wait."""
        if entry.id in self._lane_of:
            raise ValueError(f"item {entry.id} waits already: identifiers must not repeat")
        lane = self._lane(entry.item.key, entry.length)
        entries = lane.entries
        if not entries or entries[-1] < entry:
            entries.append(entry)
        else:
            bisect.insort(entries, entry)
        if entry.length > lane.longest:
            lane.longest = entry.length
        self._lane_of[entry.id] = (lane, entry)
        self._count(entry.item.priority, 1, entry.work)
        self._yielding += entry.item.yields > 0
        return lane

    def discard(self, item_id: ItemId) -> QueuedItem | None:
        """Forget an item; None if it is not here."""
        place = self._lane_of.pop(item_id, None)
        if place is None:
            return None
        lane, entry = place
        self._count(entry.item.priority, -1, -entry.work)
        self._yielding -= entry.item.yields > 0
        entries = lane.entries
        if entries[0] is entry:
            del entries[0]
        else:
            del entries[bisect.bisect_left(entries, entry)]
        if not entries:
            self._close(lane)
        return entry

    def take(self, chosen: Sequence[QueuedItem]) -> None:
        """Forget items that leave together; usually the heads of their lanes."""
        if len(chosen) == 1:
            self.discard(chosen[0].id)
            return
        lane_of = self._lane_of
        for priority, waiting in self.priorities.items():
            if waiting:
                work = [entry.work for entry in chosen if entry.item.priority is priority]
                self._count(priority, -len(work), -sum(work))
        if self._yielding:
            self._yielding -= sum([entry.item.yields > 0 for entry in chosen])
        lanes: list[Lane] = []
        for entry in chosen:
            lane, _ = lane_of[entry.id]
            del lane_of[entry.id]
            if not lane.leaving:
                lanes.append(lane)
            lane.leaving += 1
        for lane in lanes:
            entries, count, lane.leaving = lane.entries, lane.leaving, 0
            if lane_of.keys().isdisjoint([entry.id for entry in entries[:count]]):
                del entries[:count]
            else:
                entries[:] = [entry for entry in entries if entry.id in lane_of]
            if not entries:
                self._close(lane)

    @property
    def by_due(self) -> bool:
        """Whether lanes are simply in order of due time."""
        if self._yielding:
            return False
        waiting = 0
        for items in self.priorities.values():
            waiting += items > 0
        return waiting <= 1

    def oldest(self) -> float:
        """When the one that waits for the longest time arrived; there must be one."""
        return min([entry.item.arrived for _, entry in self._lane_of.values()])

    def beside(self, batch: Sequence[QueuedItem], at_most: int) -> list[QueuedItem]:
        """The most urgent items of the lanes from which a batch comes."""
        lanes = dict.fromkeys([self._lane_of[entry.id][0] for entry in batch])
        entries = [entry for lane in lanes for entry in lane.entries[:at_most]]
        entries.sort()
        return entries[:at_most]

    def due_by(self, now: float) -> list[QueuedItem]:
        """Those whose due time has come."""
        return [entry for _, entry in self._lane_of.values() if entry.due <= now]

    def led_by(self, priority: Priority, limits: Limits) -> list[QueuedItem]:
        """The oldest item of a priority and, from its lane, those that go with it."""
        heads = [
            (entry.item.arrived, entry.id, lane, entry)
            for lanes in self._by_key.values()
            for lane in lanes
            for entry in lane.entries
            if entry.item.priority is priority
        ]
        if not heads:
            return []
        _, _, lane, head = min(heads, key=lambda one: one[:2])
        batch = [head, *(entry for entry in lane.entries if entry is not head)]
        return batch[: limits.fitting([entry.length for entry in batch])]

    def _count(self, priority: Priority, items: int, work: float) -> None:
        self.priorities[priority] += items
        self._work[priority] += work
        if not self.priorities[priority]:
            self._work[priority] = 0.0  # what rounding left

    def _lane(self, key: Hashable, length: int) -> Lane:
        lanes = self._by_key.get(key)
        if lanes is None:
            lanes = self._by_key[key] = []
        length_class = self._class_of(length)
        for index, lane in enumerate(lanes):
            if lane.length_class == length_class:
                return lane
            if lane.length_class > length_class:
                lane = Lane(key, length_class)
                lanes.insert(index, lane)
                return lane
        lane = Lane(key, length_class)
        lanes.append(lane)
        return lane

    def _class_of(self, length: int) -> int:
        """One class up to each edge; narrow, two per doubling: (2, 3], (3, 4], (4, 6], (6, 8], ...

        They are narrow where all items of one are taken for as long as its longest.
        """
        wide = bisect.bisect_left(self._edges, length)
        if not self._narrow:
            return wide
        bits = (length - 1).bit_length()
        narrow = 2 * bits - (length <= 3 << bits >> 2) if length > 2 else length
        return _CLASSES * wide + narrow

    def _close(self, lane: Lane) -> None:
        lanes = self._by_key[lane.key]
        lanes.remove(lane)
        if not lanes:
            del self._by_key[lane.key]


class StarvationGuard:
    """Lets the priority that others keep waiting lead a batch from time to time.

    It counts batches, not seconds: a priority that waits while others are served is owed a
    twentieth of a batch for each.
    """

    def __init__(self) -> None:
        self._owed: dict[Priority, float] = {}

    def released(self, served: Set[Priority], waiting: Mapping[Priority, int]) -> None:
        """A batch left with items of these priorities; so many of each still wait."""
        for priority in _BEHIND:
            if priority in served or not waiting.get(priority):
                self._owed.pop(priority, None)
            else:
                self._owed[priority] = self._owed.get(priority, 0.0) + _OWED_SHARE

    def overdue(self) -> Priority | None:
        """The priority that must lead the next batch, if any."""
        if not self._owed:
            return None
        priority = max(self._owed, key=lambda one: self._owed[one])
        # Twenty times a twentieth is a little less than one.
        return priority if self._owed[priority] > 1 - _OWED_SHARE / 2 else None
