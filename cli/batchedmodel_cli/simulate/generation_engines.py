"""The engines of language models that are simulated: those of others, and our own.

Each stands behind the sidecar's `Admission`. An engine of others is known by its times and serves
who comes first. Ours does what its `StepPlanner` says, which also runs in the model server.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from batchedmodel_cli.simulator.planned_engine import PlannedEngine
from batchedmodel_cli.simulator.token_engine import EngineFigures, TokenEngine
from batchedmodel_cli.simulator.token_pods import TokenPod
from batchedmodel_cli.simulator.token_verdicts import SimulatedPod
from batchedmodel_contract.generation.description import StepBounds
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.engine.giving_way import GivingWay
from batchedmodel_scheduling.engine.step_planner import StepPlanner, StepSettings
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineLimits,
)
from batchedmodel_scheduling.latency.step_times import StepCost

BLOCK_TOKENS: Final = 32
"""Of our engine's cache, unless it tells another number."""
_LARGE_CACHE: Final = 1 << 30
"""Tokens, where the cache has no bound."""
_MOST_AT_ONCE: Final = 4096
_CONCURRENT_REQUESTS: Final = (0.125, 0.25, 0.375, 0.5, 1.0, 1.25)
_SEQUENCES: Final = (0.125, 0.25, 0.5, 2.0, 4.0)
"""Of the engine's sequences, as values to try."""


class Knob(Enum):
    """The one field of `spec.generation` of which other values are tried."""

    CONCURRENT_REQUESTS = "maxConcurrentRequests"
    SEQUENCES = "maxSequences"

    @property
    def absent(self) -> str:
        """What holds where the field is left out, in a word."""
        return "learnt" if self is Knob.CONCURRENT_REQUESTS else "the engine's own"

    def present(self, settings: BatchSettings) -> int | None:
        """Its value; None where it is left out."""
        if self is Knob.CONCURRENT_REQUESTS:
            return settings.max_concurrent_requests
        return settings.max_sequences

    def turned(self, settings: BatchSettings, value: int | None) -> BatchSettings:
        """The settings with this value, or without any."""
        if self is Knob.CONCURRENT_REQUESTS:
            return replace(settings, max_concurrent_requests=value)
        return replace(settings, max_sequences=value)

    def values(self, present: int | None, sequences: int) -> Iterator[int | None]:
        """Those worth trying: none, and parts of what the engine runs at once."""
        if present is not None:
            yield None
        ours = self is Knob.SEQUENCES
        parts = _SEQUENCES if ours else _CONCURRENT_REQUESTS
        values = {min(_MOST_AT_ONCE, max(1, round(part * sequences))) for part in parts}
        # What runs at once as it is is no other value.
        yield from sorted(values - {sequences if ours else present})


class SimulatedEngine(Protocol):
    """An engine behind the sidecar, before the settings are chosen."""

    @property
    def knob(self) -> Knob:
        """Which field is worth trying other values of."""
        ...

    def figures(self, settings: BatchSettings) -> dict[str, Any]:
        """Its figures for the document; `sequences` and `step_seconds` are among them."""
        ...

    def work(self, prompt_tokens: float, output_tokens: float) -> float:
        """Seconds of an engine whose places are always taken that a text takes."""
        ...

    def alone(self, settings: BatchSettings, prompts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds until the first token of each such prompt on an idle engine."""
        ...

    def pod(self, settings: BatchSettings) -> SimulatedPod:
        """A sidecar with these settings before such an engine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamEngine:
    """A server of others. See `SimulatedEngine`."""

    of: EngineFigures

    @property
    def knob(self) -> Knob:
        """How many requests the sidecar lets through."""
        return Knob.CONCURRENT_REQUESTS

    def figures(self, settings: BatchSettings) -> dict[str, Any]:
        """As they were given."""
        return asdict(self.of)

    def work(self, prompt_tokens: float, output_tokens: float) -> float:
        """See `SimulatedEngine`."""
        return self.of.work(prompt_tokens, output_tokens)

    def alone(self, settings: BatchSettings, prompts: NDArray[np.int64]) -> NDArray[np.float64]:
        """See `SimulatedEngine`."""
        step = self.of.step_seconds + self.of.sequence_seconds
        chunk = self.of.chunk_tokens or int(prompts.max())
        return np.ceil(prompts / chunk) * step + prompts * self.of.prefill_seconds_per_token

    def pod(self, settings: BatchSettings) -> SimulatedPod:
        """See `SimulatedEngine`."""
        return TokenPod(TokenEngine(self.of), Admission(AdmissionSettings.of(settings)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEngine:
    """The engine of our model server. See `SimulatedEngine`."""

    cost: StepCost
    bounds: StepBounds
    """That hold where the manifest says nothing."""
    blocks: int | None
    """Of its cache; None: no bound."""
    block_tokens: int = BLOCK_TOKENS

    @property
    def knob(self) -> Knob:
        """How many sequences it runs."""
        return Knob.SEQUENCES

    def figures(self, settings: BatchSettings) -> dict[str, Any]:
        """As those of other engines, and what a token in the cache adds to a step."""
        bounds, cost = self._bounds(settings), self.cost
        return {
            "sequences": bounds.sequences,
            "step_seconds": cost.base,
            "sequence_seconds": cost.sequence,
            "prefill_seconds_per_token": cost.prefill_token,
            "context_seconds_per_token": cost.context_token,
            "chunk_tokens": bounds.tokens,
            "cache_tokens": None if self.blocks is None else self.blocks * self.block_tokens,
        }

    def work(self, prompt_tokens: float, output_tokens: float) -> float:
        """See `SimulatedEngine`."""
        step = self.cost.base / self.bounds.sequences + self.cost.sequence
        return self.cost.prefill_token * prompt_tokens + step * output_tokens

    def alone(self, settings: BatchSettings, prompts: NDArray[np.int64]) -> NDArray[np.float64]:
        """See `SimulatedEngine`; what the cache does not hold has no first token."""
        step, tokens = self.cost.base + self.cost.sequence, self._bounds(settings).tokens
        seconds = np.ceil(prompts / tokens) * step + prompts * self.cost.prefill_token
        return np.where(prompts < self._blocks * self.block_tokens, seconds, np.inf)

    def pod(self, settings: BatchSettings) -> SimulatedPod:
        """See `SimulatedEngine`."""
        bounds = self._bounds(settings)
        limits = EngineLimits(
            max_sequences=bounds.sequences,
            max_tokens_per_step=bounds.tokens,
            blocks=self._blocks,
            block_tokens=self.block_tokens,
            cost=self.cost,
        )
        steps = StepSettings(
            max_sequences=bounds.sequences,
            max_tokens_per_step=bounds.tokens,
            blocks=self._blocks,
            block_tokens=self.block_tokens,
            token_seconds=settings.target_token_seconds,
        )
        engine = PlannedEngine(StepPlanner(steps, self.cost), self.cost, giving_way=GivingWay())
        return TokenPod(engine, Admission(AdmissionSettings.of(settings, limits)))

    @property
    def _blocks(self) -> int:
        return self.blocks or _LARGE_CACHE // self.block_tokens

    def _bounds(self, settings: BatchSettings) -> StepBounds:
        return self.bounds.within(settings.max_sequences, settings.max_tokens_per_step)
