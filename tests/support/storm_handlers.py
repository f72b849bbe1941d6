"""The simulated device of a storm, over rows of which passes fail or leave something behind."""

import os
import time
from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_model_server.api.handler import Batch
from batchedmodel_model_server.handlers.simulated import Simulated

VENOM: Final = -1
"""A value that fails the pass of which it is a part, behind the time that the pass takes."""
_FORKED_SECONDS: Final = 20.0


class Bitten(Simulated):
    """Answers as `simulated` does whatever holds no venom."""

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Fail for the whole batch, as a device does: who is to blame must be found out."""
        answer = super().forward(batch)
        if (batch.array("x") == VENOM).any():
            raise ValueError("a row in this batch is venomous")
        return answer


class Forking(Simulated):
    """Leaves a process behind with each pass, as workers of a data loader may be."""

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Fork, and answer."""
        if os.fork() == 0:
            os.closerange(0, 3)  # or whoever reads the log waits for this one
            time.sleep(_FORKED_SECONDS)
            os._exit(0)
        return super().forward(batch)
