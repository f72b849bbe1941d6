"""How others plan the steps of an engine: what `StepPlanner` is compared with. Called by
`generation`.

Each is as its kind is known, and not one project's code: prompts first, as vLLM planned before it
mixed; one fixed budget for tokens and prompts together, as it plans since; static batches; and the
shortest first, by lengths that only an oracle knows.
"""

from collections.abc import Callable
from typing import Final

from batchedmodel_scheduling.engine.step_planner import (
    EngineSequence,
    Part,
    StepPlan,
    StepSettings,
)


class _Rival:
    """What they have in common: who gives way, and who fits."""

    def __init__(self, settings: StepSettings) -> None:
        self.settings: Final = settings

    def _kept(
        self, running: list[EngineSequence], free: int
    ) -> tuple[list[EngineSequence], list[EngineSequence], int]:
        """Those that go on, those that give way, newest first, and the blocks that are left."""
        kept, preempted = list(running), list[EngineSequence]()
        while (lacking := sum(self._lacks(one, 1) for one in kept)) > free and len(kept) > 1:
            preempted.append(kept.pop())
            free += preempted[-1].blocks
        return kept, preempted, free - lacking

    def _lacks(self, one: EngineSequence, tokens: int) -> int:
        return max(0, self.settings.blocks_of(one.computed + tokens) - one.blocks)

    def _admitted(
        self, kept: list[EngineSequence], waiting: list[EngineSequence], free: int, tokens: int
    ) -> list[EngineSequence]:
        """Those of which the prompts begin in this step, in their order."""
        admitted: list[EngineSequence] = []
        for one in waiting:
            count, lacks = len(kept) + len(admitted), self._lacks(one, one.missing)
            if tokens <= 0 or count >= self.settings.max_sequences or lacks + count > free:
                break
            admitted.append(one)
            tokens -= one.missing
            free -= lacks
        return admitted


class PromptsFirst(_Rival):
    """Whole prompts as soon as they fit; meanwhile nobody gets a token."""

    def plan(
        self, running: list[EngineSequence], waiting: list[EngineSequence], free_blocks: int
    ) -> StepPlan:
        """The next step."""
        kept, preempted, free = self._kept(running, free_blocks)
        tokens = self.settings.max_tokens_per_step
        admitted = [] if preempted else self._admitted(kept, waiting, free, tokens)
        read = admitted or [one for one in kept if one.missing > 1]
        parts = [Part(one, one.missing) for one in read] or [Part(one, 1) for one in kept]
        return StepPlan(tuple(preempted), tuple(admitted), tuple(parts))


class FixedBudget(_Rival):
    """A token of each that runs, and of prompts what is left of one budget."""

    def __init__(
        self,
        settings: StepSettings,
        order: Callable[[EngineSequence], float] | None = None,
    ) -> None:
        super().__init__(settings)
        self._order = order

    def plan(
        self, running: list[EngineSequence], waiting: list[EngineSequence], free_blocks: int
    ) -> StepPlan:
        """The next step."""
        kept, preempted, free = self._kept(running, free_blocks)
        parts = [Part(one, 1) for one in kept if one.missing == 1]
        left = self.settings.max_tokens_per_step - len(parts)
        if self._order is not None:
            waiting = sorted(waiting, key=self._order)
        admitted = [] if preempted else self._admitted(kept, waiting, free, left)
        for one in (*(one for one in kept if one.missing > 1), *admitted):
            if (tokens := min(left, one.missing)) > 0:
                parts.append(Part(one, tokens))
                left -= tokens
        begun = {part.sequence for part in parts}
        admitted = [one for one in admitted if one in begun]
        return StepPlan(tuple(preempted), tuple(admitted), tuple(parts))


class StaticBatches(PromptsFirst):
    """Nobody joins before the last of a batch has ended."""

    def plan(
        self, running: list[EngineSequence], waiting: list[EngineSequence], free_blocks: int
    ) -> StepPlan:
        """The next step."""
        return super().plan(running, [] if running else waiting, free_blocks)
