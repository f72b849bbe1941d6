"""A handler whose pass takes a minute over a certain value, though its warm-up took no time."""

import time
from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_model_server.api.handler import Batch
from batchedmodel_model_server.handlers.simulated import Simulated

HANGS: Final = -1
_SECONDS: Final = 60.0


class Hanging(Simulated):
    """Answers as `simulated` does whatever does not hang."""

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Take far longer than any pass before."""
        if (batch.array("x") == HANGS).any():
            time.sleep(_SECONDS)
        return super().forward(batch)
