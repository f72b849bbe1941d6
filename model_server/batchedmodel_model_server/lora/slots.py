"""Slots of a device, for adapters that batches need for a pass and texts while they run.

On the compute thread. Others may look at what is `resident` from anywhere, though it may be
otherwise a moment later.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from batchedmodel_contract.lora import NO_ADAPTER
from batchedmodel_model_server.api.adapters import Adapters as Bank
from batchedmodel_model_server.errors import NoSlotFree
from batchedmodel_model_server.lora.registry import Weights
from batchedmodel_scheduling.lora.slots import AdapterSlots

NO_SLOT: Final = 0
"""In place of a slot: a row without an adapter."""


class DeviceAdapters:
    """One model's slots and what is in them."""

    def __init__(self, bank: Bank, slots: int) -> None:
        self.bank: Final = bank
        self.table: Final = AdapterSlots(slots)

    def slots_of(
        self, numbers: NDArray[np.int32], weights: Mapping[int, Weights]
    ) -> NDArray[np.int32]:
        """The slot of each row's adapter, where it is from now on; raises what the bank raises.

        Raises `NoSlotFree` where there are more adapters than slots for them.
        """
        wanted = [number for number in np.unique(numbers).tolist() if number != NO_ADAPTER]
        self._put(wanted, weights)
        slots = self.table.place(wanted).slots
        # Banks count slots from 1.
        return np.array([slots.get(number, -1) + 1 for number in numbers.tolist()], np.int32)

    def enter(self, number: int, weights: Weights) -> int:
        """A text of this adapter runs until it is unpinned: its slot; raises as `slots_of` does."""
        self._put([number], {number: weights})
        self.table.pin(number)
        return self.table.place([number]).slots[number] + 1

    def _put(self, wanted: list[int], weights: Mapping[int, Weights]) -> None:
        if not self.table.fits(wanted):
            raise NoSlotFree(f"{len(wanted)} adapters do not fit beside those of running texts")
        copies = self.table.place(wanted).copies
        for at, (slot, number) in enumerate(copies):
            try:
                self.bank.put(slot + 1, weights[number])
            except BaseException:
                for _, missing in copies[at:]:
                    self.table.forget(missing)
                self.bank.clear(slot + 1)
                raise
