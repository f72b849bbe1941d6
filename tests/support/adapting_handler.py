"""A model without torch that takes adapters: each adds its number to what the model gives."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchedmodel_model_server.api.handler import Batch, Spec
from batchedmodel_model_server.errors import CannotLoad
from support.model_server_handlers import OnHost


class AddingBank:
    """Slots for numbers; an adapter's folder has its number in a file `adds`."""

    def __init__(self, slots: int) -> None:
        self._added = np.zeros(slots + 1, np.float32)

    def read(self, folder: Path) -> Any:
        """See `AdapterBank`."""
        try:
            return float((folder / "adds").read_text())
        except (OSError, ValueError) as error:
            raise CannotLoad(f"it adds nothing: {type(error).__name__}") from error

    def bytes_of(self, weights: Any) -> int:
        """See `AdapterBank`."""
        return 4

    def labels_of(self, weights: Any) -> None:
        """See `AdapterBank`."""

    def put(self, slot: int, weights: Any) -> None:
        """See `AdapterBank`."""
        self._added[slot] = weights

    def clear(self, slot: int) -> None:
        """See `AdapterBank`."""
        self._added[slot] = 0

    def added(self, slots: NDArray[np.int32]) -> NDArray[np.float32]:
        """To each row with such a slot."""
        return self._added[slots]


class Adding(OnHost):
    """Answers its numbers, to which a row's adapter adds."""

    inputs: Mapping[str, Spec] = {"x": Spec("FP32", ("L",), max=100)}
    outputs: Mapping[str, Spec] = {"y": Spec("FP32", ("L",))}

    def load(self, path: Path | None, device: str) -> None:
        """Make the bank."""
        super().load(path, device)
        if self.adapters is not None:
            self._bank = AddingBank(self.adapters.slots)
            self.bank = self._bank

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Compute."""
        y = batch.array("x")
        slots = batch.adapters
        return {"y": y if slots is None else y + self._bank.added(slots)[:, None]}
