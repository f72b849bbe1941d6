"""Handlers that fail at certain numbers, with torch and without, for tests of failures."""

import threading
from collections.abc import Mapping
from typing import Any

from batchedmodel_model_server.api.handler import Batch, Handler, Spec
from support.model_server_handlers import OnHost

POISON = 13.0
"""A pass that holds it raises."""
EMPTY = 17.0
"""Its row is no number."""
DEADLY = 19.0
"""A pass that holds it loses the device."""
HEAVY = 23.0
"""With it a pass has memory for `FITS` rows."""
GIANT = 29.0
"""With it a pass has memory for nothing."""
STICKY = 31.0
"""A pass in which it has company does not end."""
FITS = 8

INPUTS: Mapping[str, Spec] = {"x": Spec("FP32", ("L",), max=16)}
OUTPUTS: Mapping[str, Spec] = {"y": Spec("FP32", ("L",))}


class Tender(Handler):
    """Doubles its numbers with torch, and raises what torch raises."""

    inputs = INPUTS
    outputs = OUTPUTS

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Double, or fail."""
        import torch

        x = batch["x"]
        if (x == POISON).any():
            raise ValueError("poison")
        if (x == DEADLY).any():
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        if (x == HEAVY).any() and batch.rows > FITS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        if (x == GIANT).any():
            # What the allocator of the CPU itself says.
            torch.empty(1 << 50)
        return {"y": torch.where(x == EMPTY, torch.nan, 2 * x)}


class TenderOnHost(OnHost):
    """The same without torch, and it can hang."""

    inputs = INPUTS
    outputs = OUTPUTS

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Double, or fail."""
        x = batch.array("x")
        if (x == HEAVY).any() and batch.rows > FITS:
            raise MemoryError
        if (x == STICKY).any() and batch.rows > 1:
            threading.Event().wait()
        return {"y": 2 * x}
