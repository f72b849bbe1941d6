"""Slots of a device, and who needs the adapters in them: batches for a pass, texts while they run.

On the compute thread. Others may look at what is `resident` from anywhere, though it may be
otherwise a moment later.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from batchedmodel_contract.lora import NO_ADAPTER
from batchedmodel_model_server.api.adapters import Adapters as Bank
from batchedmodel_model_server.errors import DeviceLost, ForwardFailed, NoSlotFree, translating
from batchedmodel_model_server.lora.registry import Weights
from batchedmodel_scheduling.engine.step_planner import EngineSequence
from batchedmodel_scheduling.lora.slots import AdapterSlots
from batchedmodel_scheduling.lora.text_turns import WaitingText, may_begin

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


@dataclass(slots=True, eq=False)
class _Use:
    """What one sequence needs; `slot`: where it is while the sequence runs."""

    number: int
    weights: Weights
    since: float
    slot: int = NO_SLOT


class TextAdapters:
    """Who needs which adapter. Sequences without one are not known here."""

    def __init__(self, device: DeviceAdapters | None) -> None:
        """`device`: None for a model without adapters."""
        self._device: Final = device
        self._uses: Final[dict[EngineSequence, _Use]] = {}

    def add(self, one: EngineSequence, number: int, weights: Weights, now: float) -> None:
        """A text came."""
        if number != NO_ADAPTER:
            self._uses[one] = _Use(number, weights, now)

    def fork(self, one: EngineSequence, other: EngineSequence) -> None:
        """Another text goes on from one that runs, and runs as well."""
        use = self._uses.get(one)
        if use is not None:
            self._uses[other] = _Use(use.number, use.weights, use.since)

    def forget(self, one: EngineSequence) -> None:
        """A text has ended."""
        self.leave(one)
        self._uses.pop(one, None)

    def may_run(self, waiting: Sequence[EngineSequence], now: float) -> Sequence[EngineSequence]:
        """Those of the waiting whose adapters have room."""
        if not self._uses or self._device is None:
            return waiting
        running = Counter([use.number for use in self._uses.values() if use.slot != NO_SLOT])
        texts = [self._waiting(one, now) for one in waiting]
        allowed = may_begin(texts, running, self._device.table.slots, now)
        return [one for one, may in zip(waiting, allowed, strict=True) if may]

    def enter(self, one: EngineSequence) -> str | None:
        """A text runs from now on; why not, where its adapter cannot be copied.

        Raises `DeviceLost`.
        """
        use = self._uses.get(one)
        if use is None or self._device is None or use.slot != NO_SLOT:
            return None
        try:
            use.slot = translating(partial(self._device.enter, use.number, use.weights))
        except DeviceLost:
            raise
        except ForwardFailed as error:
            return f"its adapter finds no room: {error}"
        return None

    def leave(self, one: EngineSequence) -> None:
        """It does not run any more."""
        use = self._uses.get(one)
        if use is not None and self._device is not None and use.slot != NO_SLOT:
            self._device.table.unpin(use.number)
            use.slot = NO_SLOT

    def slot(self, one: EngineSequence) -> int:
        """Where the adapter of a running text is; `NO_SLOT` for one without."""
        use = self._uses.get(one)
        return NO_SLOT if use is None else use.slot

    def _waiting(self, one: EngineSequence, now: float) -> WaitingText:
        use = self._uses.get(one)
        return WaitingText(NO_ADAPTER, now) if use is None else WaitingText(use.number, use.since)
