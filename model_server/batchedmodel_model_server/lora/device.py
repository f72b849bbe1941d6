"""The adapters on the device: puts those that a pass needs into slots, on the compute thread.

Others may look at what is `resident` from anywhere, though it may be otherwise a moment later.
"""

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from batchedmodel_contract.lora.state import NO_ADAPTER
from batchedmodel_model_server.api.adapters import Adapters as Bank
from batchedmodel_model_server.api.adapters import AdapterWeights as Weights
from batchedmodel_model_server.errors import NoSlotFree
from batchedmodel_scheduling.lora.slots import AdapterSlots

NO_SLOT: Final = 0
"""In place of a slot: a row without an adapter."""


class DeviceAdapters:
    """One model's slots and what is in them."""

    def __init__(self, bank: Bank, slots: int) -> None:
        self.bank: Final = bank
        self.slots: Final = slots
        self._table: Final = AdapterSlots(slots)

    @property
    def resident(self) -> Collection[int]:
        """Numbers of the adapters that are in a slot."""
        return self._table.resident

    def slots_of(
        self, numbers: NDArray[np.int32], weights: Mapping[int, Weights]
    ) -> NDArray[np.int32]:
        """The slot of each row's adapter, where it is from now on; raises what the bank raises.

        Raises `NoSlotFree` where there are more adapters than slots for them.
        """
        wanted = [number for number in np.unique(numbers).tolist() if number != NO_ADAPTER]
        self._put(wanted, weights)
        slots = self._table.place(wanted).slots
        # Banks count slots from 1.
        return np.array([slots.get(number, -1) + 1 for number in numbers.tolist()], np.int32)

    def fits(self, numbers: Collection[int]) -> bool:
        """Whether texts of these adapters can run at the same time, beside those that do."""
        return self._table.fits(numbers)

    def enter(self, number: int, weights: Weights) -> int:
        """A text of this adapter runs from now on: its slot; raises as `slots_of` does."""
        self._put([number], {number: weights})
        self._table.pin(number)
        return self._table.place([number]).slots[number] + 1

    def leave(self, number: int) -> None:
        """The text does not run any more."""
        self._table.unpin(number)

    def leave_all(self) -> None:
        """No text runs any more."""
        self._table.unpin_all()

    def _put(self, wanted: list[int], weights: Mapping[int, Weights]) -> None:
        if not self._table.fits(wanted):
            raise NoSlotFree(f"{len(wanted)} adapters do not fit beside those of running texts")
        copies = self._table.place(wanted).copies
        for at, (slot, number) in enumerate(copies):
            try:
                self.bank.put(slot + 1, weights[number])
            except BaseException:
                for _, missing in copies[at:]:
                    self._table.forget(missing)
                self.bank.clear(slot + 1)
                raise
