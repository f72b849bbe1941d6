"""The engine of a language model that is simulated: one of others, or our own."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from batchedmodel_cli.simulator.planned_engine import PlannedEngine
from batchedmodel_cli.simulator.token_engine import EngineFigures, TokenEngine
from batchedmodel_cli.simulator.token_pods import TokenPod
from batchedmodel_cli.simulator.token_verdicts import SimulatedPod
from batchedmodel_contract.generation.description import StepBounds
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.engine.giving_way import GivingWay
from batchedmodel_scheduling.engine.step_planner import StepPlanner, StepSettings
from batchedmodel_scheduling.generation.admission import Admission, AdmissionSettings, EngineLimits
from batchedmodel_scheduling.latency.step_times import StepCost

_LARGE_CACHE: Final = 1 << 30
"""Tokens, where the cache has no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEngine:
    """An engine behind the sidecar: of our model server, or of others, known by its times.

    One of others serves who comes first. Ours does what its `StepPlanner` says, which also runs in
    the model server.
    """

    figures: EngineFigures
    """Of ours, those that hold where the manifest says nothing."""
    ours: bool
    block_tokens: int = 1

    def figures_with(self, settings: BatchSettings) -> EngineFigures:
        """Those that hold with these settings."""
        if not self.ours:
            return self.figures
        own = StepBounds(self.figures.sequences, self.figures.chunk_tokens or _LARGE_CACHE)
        bounds = own.within(settings.max_sequences, settings.max_tokens_per_step)
        return replace(self.figures, sequences=bounds.sequences, chunk_tokens=bounds.tokens)

    def in_time_alone(self, settings: BatchSettings, prompts: list[int]) -> float:
        """The part of such prompts that meets both targets on an idle engine."""
        figures, tokens = self.figures_with(settings), np.array(prompts)
        step = figures.step_seconds + figures.sequence_seconds
        if step > (settings.target_token_seconds or step):
            return 0.0
        chunks = np.ceil(tokens / (figures.chunk_tokens or _LARGE_CACHE))
        within = settings.target_first_token_seconds or settings.request_timeout_seconds
        in_time = chunks * step + tokens * figures.prefill_seconds_per_token <= within
        if self.ours:
            # What the cache does not hold has no first token.
            in_time &= tokens < (figures.cache_tokens or _LARGE_CACHE)
        return float(in_time.mean())

    def pod(self, settings: BatchSettings) -> SimulatedPod:
        """A sidecar with these settings before such an engine."""
        figures = self.figures_with(settings)
        if not self.ours:
            return TokenPod(TokenEngine(figures), Admission(AdmissionSettings.of(settings)))
        cost = StepCost(
            base=figures.step_seconds,
            prefill_token=figures.prefill_seconds_per_token,
            sequence=figures.sequence_seconds,
            context_token=figures.context_seconds_per_token,
        )
        steps = StepSettings(
            max_sequences=figures.sequences,
            max_tokens_per_step=figures.chunk_tokens or _LARGE_CACHE,
            blocks=max(1, (figures.cache_tokens or _LARGE_CACHE) // self.block_tokens),
            block_tokens=self.block_tokens,
            token_seconds=settings.target_token_seconds,
        )
        limits = EngineLimits(
            max_sequences=steps.max_sequences,
            max_tokens_per_step=steps.max_tokens_per_step,
            blocks=steps.blocks,
            block_tokens=steps.block_tokens,
            cost=cost,
        )
        engine = PlannedEngine(StepPlanner(steps, cost), cost, giving_way=GivingWay())
        return TokenPod(engine, Admission(AdmissionSettings.of(settings, limits)))
