"""Which waiting rows share a batch, where each needs its adapter in one of few slots. Pure.

A batch has at most as many adapters as there are slots. Those that the device has are preferred,
for each other one must be copied and makes another one leave. Rows of the others wait until enough
have come, or until one would be late otherwise or has waited for a while: then its adapter is
copied, and all its rows go along. At most half of the slots change with a batch, as long as others
fill it. So rows of many adapters take turns at the slots and none of them waits for ever.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from batchedmodel_scheduling.lora.slots import AdapterSlots
from batchedmodel_scheduling.queue.items import Item

Chosen = Callable[[Sequence[Item], int, float], list[int]]
"""The places of the waiting rows that leave together, at most so many, at this time."""
LOOKED_AT: Final = 8
"""Rows that are looked at, for each that a batch takes."""
_PATIENCE: Final = 8.0
"""Batches that a row lets pass for others' adapters."""
_NEXT: Final = 4.0
"""Batches ahead in which a row should not be late: others press as well, and copies take time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The batch that is to be made."""

    rows: int
    """At most so many."""
    now: float
    seconds: float
    """That such a batch takes, as far as is known."""

    def presses(self, item: Item) -> bool:
        """Whether a row should not let others pass any more."""
        late = item.due <= self.now + _NEXT * self.seconds
        return late or item.arrived <= self.now - _PATIENCE * self.seconds


def companions(waiting: Sequence[Item], slots: AdapterSlots, turn: Turn) -> list[int]:
    """The places of the rows to take, in their order; `waiting` is in the order of turns."""
    resident = slots.resident
    allowed: set[int] = set()
    for item in waiting:
        if len(allowed) == max(1, slots.slots // 2):
            break
        if item.adapter and item.adapter not in resident and turn.presses(item):
            allowed.add(item.adapter)
    places: dict[int, None] = {}
    # Those that press first, or rows in front of them could fill the batch again and again.
    for at, item in enumerate(waiting):
        if len(places) < turn.rows and item.adapter in allowed and turn.presses(item):
            places[at] = None
    for fresh in (False, True):
        for at, item in enumerate(waiting):
            if len(places) == turn.rows:
                break
            adapter = item.adapter
            if adapter and adapter not in allowed:
                if len(allowed) == slots.slots or (adapter not in resident and not fresh):
                    continue
                allowed.add(adapter)
            places[at] = None
    return sorted(places)
