"""Which adapter is in which slot of the device: the least recently used one makes room.

Pure. The model server decides by it what to copy; a sender of batches in order keeps another one,
and knows by it which adapters the server has in slots.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, KeysView
from typing import Final, NamedTuple


class Placement(NamedTuple):
    """Where adapters are, and what is to be copied before they are there."""

    slots: dict[int, int]
    """By number of the adapter."""
    copies: list[tuple[int, int]]
    """Slot and number."""


class AdapterSlots:
    """Slots from 0 on."""

    def __init__(self, slots: int) -> None:
        self.slots: Final = slots
        self._slot_of: Final[OrderedDict[int, int]] = OrderedDict()
        """By number, the one that was used last at the end."""
        self._empty: Final = list(range(slots - 1, -1, -1))
        self._pins: Final[dict[int, int]] = {}

    @property
    def resident(self) -> KeysView[int]:
        """The numbers of the adapters in slots."""
        return self._slot_of.keys()

    def fits(self, numbers: Collection[int]) -> bool:
        """Whether all of these can be there at the same time; no number comes twice."""
        others = sum([pinned not in numbers for pinned in self._pins])
        return len(numbers) + others <= self.slots

    def place(self, numbers: Iterable[int]) -> Placement:
        """Give each of these a slot; they must fit."""
        adapters = list(dict.fromkeys(numbers))
        copies: list[tuple[int, int]] = []
        for number in adapters:
            if number in self._slot_of:
                self._slot_of.move_to_end(number)
        for number in adapters:
            if number not in self._slot_of:
                slot = self._empty.pop() if self._empty else self._freed(adapters)
                self._slot_of[number] = slot
                copies.append((slot, number))
        return Placement({number: self._slot_of[number] for number in adapters}, copies)

    def pin(self, number: int) -> None:
        """A text needs this one in its slot until `unpin`; it is there."""
        self._pins[number] = self._pins.get(number, 0) + 1

    def unpin(self, number: int) -> None:
        """One text less needs it."""
        self._pins[number] -= 1
        if not self._pins[number]:
            del self._pins[number]

    def unpin_all(self) -> None:
        """No text needs any."""
        self._pins.clear()

    def forget(self, number: int) -> None:
        """It is not in its slot: to copy it has failed, or it is not served any more."""
        slot = self._slot_of.pop(number, None)
        if slot is not None:
            self._empty.append(slot)

    def _freed(self, adapters: Collection[int]) -> int:
        for number in self._slot_of:
            if number not in self._pins and number not in adapters:
                return self._slot_of.pop(number)
        raise ValueError("more adapters than there are slots")
