"""A step runner that reads its blocks as a model reads keys and values.

What it draws depends on every token that lies in them, and on what lay before each of these when it
was written, so a block that is lost, shared or copied wrongly shows.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from batchedmodel_model_server.api.generator import Sampled, StepPart
from batchedmodel_model_server.generation.engine import Engine
from batchedmodel_model_server.lora.slots import DeviceAdapters
from batchedmodel_scheduling.engine.step_planner import StepSettings
from batchedmodel_scheduling.latency.step_times import StepCost

VOCABULARY = 50
FREE = StepCost(base=0.0, prefill_token=0.0, sequence=0.0)


def drawn(ids: Sequence[int], choice: int, seed: int) -> int:
    """The token that follows these."""
    number = seed * 31 + choice
    for one in ids:
        number = (number * 1_000_003 + one + 1) % 1_000_000_007
    return number % VOCABULARY


class ReadingRunner:
    """Computes nothing, and draws by what it reads."""

    def __init__(
        self,
        blocks: int,
        block_tokens: int,
        before: Callable[[Sequence[StepPart]], None] = lambda parts: None,
    ) -> None:
        """`before` is called with each step, which it may fail."""
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._before = before
        self._cache = [[_NOTHING] * block_tokens for _ in range(blocks)]

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        """Write the tokens down, read all of each text, draw."""
        size = self.block_tokens
        for part in parts:
            for at, token in enumerate(part.ids, part.start):
                state = _state(self._at(part, at - 1).state if at else 0, token)
                self._cache[part.blocks[at // size]][at % size] = _Written(token, state)
        # What a step that fails has written by then may not matter.
        self._before(parts)
        found = []
        for part in parts:
            count = part.start + len(part.ids)
            seen, state = [], 0
            for at in range(count):
                written = self._at(part, at)
                state = _state(state, written.token)
                seen.append(written.token if written.state == state else -1)
            found.append(
                [Sampled(drawn(seen, draw.choice, draw.sampling.seed), 0.0) for draw in part.draws]
            )
        return found

    def _at(self, part: StepPart, place: int) -> "_Written":
        block, offset = divmod(place, self.block_tokens)
        return self._cache[part.blocks[block]][offset]

    def copy_block(self, source: int, target: int) -> None:
        """Copy what was written down."""
        self._cache[target] = list(self._cache[source])


class _Written(NamedTuple):
    token: int
    state: int
    """Of the token and of all before it, as keys and values are."""


_NOTHING = _Written(-1, -1)


def _state(before: int, token: int) -> int:
    return (before * 1_000_003 + token + 1) % 1_000_000_007


def engine_over(
    runner: ReadingRunner,
    *,
    sequences: int = 8,
    tokens: int = 64,
    context: int = 64,
    adapters: DeviceAdapters | None = None,
) -> Engine:
    """An engine whose steps this computes."""
    settings = StepSettings(
        max_sequences=sequences,
        max_tokens_per_step=tokens,
        block_tokens=runner.block_tokens,
        blocks=runner.blocks,
    )
    context = min(context, runner.blocks * runner.block_tokens)
    return Engine(
        runner,
        settings,
        FREE,
        vocabulary=VOCABULARY,
        max_context_tokens=context,
        adapters=adapters,
    )
