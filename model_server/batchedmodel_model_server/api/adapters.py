"""What the server asks of a model that takes adapters.

The server owns which adapters there are and which of them the device has. An `AdapterBank` owns the
memory on the device and computes with what is in it.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Weights = Any
"""One adapter in main memory, as its bank made it."""
NO_SLOT = -1
"""In place of a slot: a row without an adapter."""


class AdapterBank(Protocol):
    """Slots for adapters on the device, from 0 on."""

    def read(self, folder: Path) -> Weights:
        """The adapter in a folder, checked against the model.

        On any thread, beside forward passes. Raises `CannotLoad` with a sentence.
        """
        ...

    def bytes_of(self, weights: Weights) -> int:
        """Main memory that it takes."""
        ...

    def put(self, slot: int, weights: Weights) -> None:
        """Copy it into a slot, whatever is there. On the compute thread."""
        ...

    def clear(self, slot: int) -> None:
        """Nothing is in this slot any more. On the compute thread."""
        ...

    def using(
        self, slots: NDArray[np.int32], lengths: NDArray[np.int64] | None = None
    ) -> AbstractContextManager[object]:
        """Around a forward: the slot of each item, or `NO_SLOT`. On the compute thread.

        `lengths`: of the items that are packed in one row; None where each has a row of its own.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRoom:
    """What the manifest asks of a bank."""

    slots: int
    max_rank: int
