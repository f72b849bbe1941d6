"""A handler that answers how many objects of its process no collection of garbage looks at."""

import gc
from collections.abc import Mapping
from typing import Any

import numpy as np

from batchedmodel_model_server.api.handler import Batch, Spec
from support.model_server_handlers import OnHost


class Frozen(OnHost):
    """Looks anew in each pass."""

    inputs: Mapping[str, Spec] = {"x": Spec("INT64", ("L",), max=8)}
    outputs: Mapping[str, Spec] = {"frozen": Spec("INT64", ())}

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Count."""
        return {"frozen": np.full(batch.rows, gc.get_freeze_count())}
