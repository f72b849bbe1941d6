"""A handler with several inputs and outputs, letters of its own, least sizes and halves."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from batchedmodel_model_server.api.handler import Batch, Param, Spec
from support.model_server_handlers import OnHost


class Lettered(OnHost):
    """Answers what it takes; `found` has a letter that is in no input."""

    inputs: Mapping[str, Spec] = {
        "steps": Spec("FP32", ("L", 4), max=512, min=2),
        "kinds": Spec("INT16", ("L",), max=400, min=3, vocab=5),
        "image": Spec("UINT8", ("H", "W", 3), max=64, min=8),
        "half": Spec("FP16", (2,)),
        "on": Spec("BOOL", ()),
    }
    outputs: Mapping[str, Spec] = {
        "steps": Spec("FP32", ("L", 4)),
        "found": Spec("INT64", ("N", 2)),
        "on": Spec("BOOL", ()),
    }
    params: Mapping[str, Param] = {
        "scale": Param("FP32", 1.0, min=0, max=2),
        "way": Param("BYTES", "up", choices=("up", "down")),
    }

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Echo, and one pair for each item."""
        rows = len(batch.lengths)
        found = np.ones((rows, 1, 2), np.int64), np.ones(rows, np.int64)
        return {"steps": batch.array("steps"), "found": found, "on": batch.array("on")}
