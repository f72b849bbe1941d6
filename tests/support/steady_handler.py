"""Handler `hf` on a device whose times hardly depend on what else the machine does."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from batchedmodel_model_server.api.batch import Batch
from batchedmodel_model_server.handlers.hf import HuggingFace

A_PASS = "a pass over"
_SECONDS = 0.03  # against milliseconds that a tiny model computes, and as many of noise


class Steady(HuggingFace):
    """Takes as long for each pass as is measured in any idle moment, and tells of each."""

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Compute, then sleep."""
        logging.getLogger(__name__).info("%s %d items", A_PASS, len(batch.lengths))
        time.sleep(_SECONDS)
        return super().forward(batch)
