"""Computes a step of the engine: one pass of the model over all parts, then the draws behind them.

Whatever torch raises is translated here.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

import numpy as np

from batchedmodel_model_server.api.generator import Sampled, StepPart
from batchedmodel_model_server.errors import ForwardFailed, translating
from batchedmodel_model_server.execution.compute_threads import COMPUTE_THREADS
from batchedmodel_model_server.generation.paged_attention import PagedCache, StepAttention
from batchedmodel_model_server.generation.sampling import sampled
from batchedmodel_model_server.generation.step_layout import Integers, StepLayout, layout_of

Pass = Callable[[Any, Any, Any], Any]
"""Ids and positions (1 x tokens) and which tokens' scores are wanted, to 1 x these x vocabulary."""
Adapting = Callable[[Integers, Integers, Integers], AbstractContextManager[None]]
"""Within it the model computes with adapters: the slot of each part as they lie in the row, the
place of each part's last token, and of the tokens whose scores are wanted."""


class TorchRunner:
    """The model's passes over its cache. Implements `StepRunner`."""

    def __init__(
        self,
        forward: Pass,
        cache: PagedCache,
        attention: Callable[[PagedCache, StepLayout], StepAttention],
        computing: Callable[[StepAttention], AbstractContextManager[None]],
        adapting: Adapting | None = None,
    ) -> None:
        self._forward: Final = forward
        self._cache: Final = cache
        self._attention: Final = attention
        self._computing: Final = computing
        self._adapting: Final = adapting
        self.blocks: Final = cache.blocks
        """How many the cache has."""
        self.block_tokens: Final = cache.block_tokens
        """Tokens of a block."""

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        """What each part's draws gave; raises `ForwardFailed`, `OutOfMemory`, `DeviceLost`."""
        return translating(partial(self._run, parts))

    def copy_block(self, source: int, target: int) -> None:
        """Make a block's content another's as well; raises as `run` does."""
        import torch

        with torch.inference_mode():
            translating(partial(self._cache.copy, source, target))

    def logits(self, parts: Sequence[StepPart], offset: int = 0) -> Any:
        """Compute the parts; scores behind the last token of each that draws, in their order.

        `offset`: by how much all positions are larger than the tokens' places.
        """
        import torch

        layout = layout_of(parts, self.block_tokens)
        device = self._cache.device
        drawing = [nth for nth, at in enumerate(layout.order) if parts[at].draws]
        ends = layout.ends[drawing]
        wanted = torch.from_numpy(ends)
        slots = np.array([parts[at].adapter for at in layout.order], np.int64)
        adapting: AbstractContextManager[None] = nullcontext()
        if slots.any():
            if self._adapting is None:
                raise ForwardFailed("the model takes no adapters")
            adapting = self._adapting(slots, layout.ends, ends)
        ids, positions = (
            torch.from_numpy(one)[None].to(device)
            for one in (layout.ids, layout.positions + offset)
        )
        attending = self._computing(self._attention(self._cache, layout))
        with torch.inference_mode(), adapting, attending:
            rows = self._forward(ids, positions, wanted.to(device))[0]
            of_part = {layout.order[nth]: row for row, nth in enumerate(drawing)}
            order = [of_part[at] for at in range(len(parts)) if at in of_part]
            return rows[torch.tensor(order, dtype=torch.long, device=device)]

    def _run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        import torch

        with COMPUTE_THREADS.computing(self._cache.device), torch.inference_mode():
            logits = self.logits(parts)
            draws = [draw for part in parts for draw in part.draws]
            if not draws:
                return [[] for _ in parts]
            counts = [len(part.draws) for part in parts if part.draws]
            if len(draws) > len(counts):
                logits = logits.repeat_interleave(torch.tensor(counts, device=logits.device), dim=0)
            each = iter(sampled(logits, draws))
        return [[next(each) for _ in part.draws] for part in parts]
