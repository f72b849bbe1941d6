"""A handler whose pass takes a minute over a certain value, though its warm-up took no time."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from batchedmodel_model_server.api.handler import Batch
from batchedmodel_model_server.execution import watchdog
from batchedmodel_model_server.handlers.simulated import Simulated

HANGS: Final = -1
_SECONDS: Final = 60.0
_FOR_GOOD_SECONDS: Final = 600.0
_HUNG_SECONDS: Final = 0.5


class Hanging(Simulated):
    """Answers as `simulated` does whatever does not hang."""

    seconds = _SECONDS

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Take far longer than any pass before."""
        if (batch.array("x") == HANGS).any():
            time.sleep(self.seconds)
        return super().forward(batch)


class SoonHung(Hanging):
    """Half a second counts as hung, and no test lasts until the pass ends."""

    seconds = _FOR_GOOD_SECONDS

    def load(self, path: Path | None, device: str) -> None:
        """There is nothing else to load."""
        super().load(path, device)
        vars(watchdog)["LEAST_SECONDS"] = _HUNG_SECONDS
