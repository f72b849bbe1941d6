"""The simulated device of a storm, over one kind of row of which every pass fails."""

from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_model_server.handler import Batch
from batchedmodel_model_server.handlers.simulated import Simulated

VENOM: Final = -1
"""A value that fails the pass of which it is a part, behind the time that the pass takes."""


class Bitten(Simulated):
    """Answers as `simulated` does whatever holds no venom."""

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Fail for the whole batch, as a device does: who is to blame must be found out."""
        answer = super().forward(batch)
        if (batch.array("x") == VENOM).any():
            raise ValueError("a row in this batch is venomous")
        return answer
