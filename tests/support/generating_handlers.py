"""Handlers that generate as `simulated` does, each with one habit."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from batchedmodel_model_server.api.generator import Sampled, StepPart, StepRunner
from batchedmodel_model_server.errors import DeviceLost
from batchedmodel_model_server.execution import watchdog
from batchedmodel_model_server.handlers.simulated import Simulated

HANGS, FAILS, FILLS, LOSES = 1, 2, 3, 4
"""Tokens that make a step that reads them do so."""
HANG_SECONDS: Final = 1.5
_HUNG_SECONDS: Final = 0.5


class _Troubled:
    """Steps of another runner, and what a token makes of them."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self.blocks = runner.blocks
        self.block_tokens = runner.block_tokens

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        read = {token for part in parts for token in part.ids}
        if LOSES in read:
            raise DeviceLost("the device is lost: a test said so")
        if FILLS in read:
            raise MemoryError
        if FAILS in read:
            raise RuntimeError("2 brings bad luck")
        if HANGS in read:
            time.sleep(HANG_SECONDS)
        return self._runner.run(parts)

    def copy_block(self, source: int, target: int) -> None:
        self._runner.copy_block(source, target)


class Troubled(Simulated):
    """Has steps that fail, hang for a while, or lose the device; half a second counts as hung."""

    def load(self, path: Path | None, device: str) -> None:
        """Load, and put the runner behind another one."""
        super().load(path, device)
        vars(watchdog)["LEAST_SECONDS"] = _HUNG_SECONDS
        assert self.generator is not None
        self.generator = self.generator._replace(runner=_Troubled(self.generator.runner))


class Versioned(Simulated):
    """Has a vocabulary as large as its folder's factor says."""

    def load(self, path: Path | None, device: str) -> None:
        """Read the factor."""
        super().load(path, device)
        assert path is not None
        assert self.generator is not None
        factor = int((path / "factor.txt").read_text())
        self.generator = self.generator._replace(vocabulary=300 + factor)
