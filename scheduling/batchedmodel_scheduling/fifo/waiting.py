"""The set of waiting items, in groups whose members may share a batch.

A group is a compatibility key within one length class. Owned by one policy.
"""

import bisect
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from batchedmodel_scheduling.core.limits import Limits
from batchedmodel_scheduling.core.policy import Item, ItemId


class Group(NamedTuple):
    """What the members of a batch have in common."""

    key: Hashable
    length_class: int


class WaitingSet:
    """Waiting items by group, each group in order of arrival."""

    def __init__(self, edges: tuple[int, ...] = ()) -> None:
        """Edges are upper bounds of the length classes, ascending; longer items form a last one."""
        self._edges = edges
        self._groups: dict[Group, dict[ItemId, Item]] = {}
        self._group_of: dict[ItemId, Group] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def add(self, item: Item) -> None:
        """Append an item that is not here yet."""
        if item.id in self._group_of:
            raise ValueError(f"item {item.id} waits already: identifiers must not repeat")
        group = Group(item.key, bisect.bisect_left(self._edges, item.length))
        self._group_of[item.id] = group
        self._groups.setdefault(group, {})[item.id] = item

    def discard(self, item_id: ItemId) -> None:
        """Remove an item if it is here."""
        group = self._group_of.pop(item_id, None)
        if group is None:
            return
        members = self._groups[group]
        del members[item_id]
        if not members:
            del self._groups[group]

    def groups(self) -> Iterator[tuple[Group, Item, int]]:
        """Each group with its oldest member and its size."""
        for group, members in self._groups.items():
            yield group, next(iter(members.values())), len(members)

    def __iter__(self) -> Iterator[Item]:
        for members in self._groups.values():
            yield from members.values()

    def cut(self, group: Group, limits: Limits, now: float) -> tuple[list[Item], list[Item]]:
        """Remove those met whose deadline has passed or, if there are none, the oldest members.

        Returns the members to release and the late ones; one of the two is empty.
        """
        chosen: list[Item] = []
        late: list[Item] = []
        for item in self._groups[group].values():
            if len(chosen) == limits.rows:
                break
            (chosen if now < item.deadline else late).append(item)
        del chosen[limits.fitting([item.length for item in chosen]) :]
        for item in late or chosen:
            self.discard(item.id)
        return ([] if late else chosen), late

    def regroup(self, edges: tuple[int, ...]) -> None:
        """Sort every item into other length classes, order of arrival kept within each."""
        if edges == self._edges:
            return
        items = [item for members in self._groups.values() for item in members.values()]
        self._edges = edges
        self._groups.clear()
        self._group_of.clear()
        for item in sorted(items, key=lambda item: (item.arrived, item.id)):
            self.add(item)
