"""Handlers that generate as `simulated` does, each with one habit."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from batchedmodel_contract.generation.frames import Refused, StepReport, Submit
from batchedmodel_model_server.api.generator import Sampled, StepPart, StepRunner
from batchedmodel_model_server.errors import DeviceLost
from batchedmodel_model_server.execution import watchdog
from batchedmodel_model_server.generation import serving
from batchedmodel_model_server.generation.engine import Engine
from batchedmodel_model_server.handlers.simulated import Simulated
from batchedmodel_model_server.lora.registry import Weights

HANGS, FAILS, FILLS, LOSES = 1, 2, 3, 4
"""Tokens that make a step that reads them do so."""
CANCELS, TAKES, SPOILS = 5, 6, 7
"""Tokens of a prompt that make its engine fail outside its steps: when the text is cancelled, when
its first token is told, and from then on whenever anything is told."""
_HANG_SECONDS: Final = 12.0
"""Longer than the time from the start of a server to its watchdog's first look."""
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
            time.sleep(_HANG_SECONDS)
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


class _Stumbling(Engine):
    """Fails outside its steps, as the prompts say that it has taken."""

    prompts: dict[int, frozenset[int]]
    spoilt = False

    def submit(self, submit: Submit, now: float, weights: Weights | None = None) -> None:
        """Remember the prompt."""
        super().submit(submit, now, weights)
        vars(self).setdefault("prompts", {})[submit.id] = frozenset(submit.ids)

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """Raise over some."""
        if CANCELS in self.prompts[request_id]:
            raise ZeroDivisionError("a test said so: cancel")
        super().cancel(request_id, choice)

    def take(self, seconds: float) -> tuple[StepReport, list[Refused]]:
        """Lose what came, and raise, over others."""
        found = super().take(seconds)
        read = frozenset[int]().union(*vars(self).get("prompts", {}).values())
        if SPOILS in read:
            _Stumbling.spoilt = True
        if TAKES in read or self.spoilt:
            raise ZeroDivisionError("a test said so: take")
        return found


class Stumbling(Simulated):
    """Has an engine that fails outside its steps."""

    def load(self, path: Path | None, device: str) -> None:
        """Load, and put the engine in the place of the usual one."""
        super().load(path, device)
        vars(serving)["Engine"] = _Stumbling
