"""What tokens cost an engine of ours, by its reports of steps, and when first tokens come."""

from typing import Final

from batchedmodel_scheduling.engine.step_cost import LearntStepCost, StepLoad
from batchedmodel_scheduling.generation.requests import EngineLimits, EngineStep
from batchedmodel_scheduling.generation.token_costs import TokenCosts

_NEWEST: Final = 0.05
_FIRST_STEPS: Final = 1.5
"""Steps until a first token beside what its prompt takes: half of the one that runs, and its own
last one."""


class EngineCosts(TokenCosts):
    """Seconds of the device by tokens, and seconds until a first token.

    A full batch is as many sequences as run at once, or as the cache holds of such as it has lately
    where these are fewer. So the cache is paid for as well: where it is short, each sequence has a
    larger part of a step.
    """

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__()
        self._limits = limits
        self._cost: Final = LearntStepCost(limits.cost)
        self._prompts_in_step = float(limits.max_tokens_per_step)
        """Tokens of prompts that a step reads where there are more."""
        self._reading: float | None = None
        """Seconds of such a step, by each of these tokens."""
        self._step_seconds = limits.cost.base
        self.held = 1.0
        """Tokens in the cache of a sequence."""

    @property
    def learnt(self) -> bool:
        """Whether anything is known of what tokens cost: it was measured."""
        return True

    @property
    def knows_first_tokens(self) -> bool:
        """Whether it is known how long first tokens take."""
        return True

    @property
    def usual_between_tokens(self) -> float:
        """Seconds between two tokens of a stream."""
        return self._step_seconds

    @property
    def least_between_tokens(self) -> float:
        """The same of a sequence that is alone, as measured first or as learnt."""
        alone = [cost.base + cost.sequence for cost in (self._cost.measured, self._cost.present)]
        return min(*alone, self._step_seconds)

    @property
    def prompts_in_step(self) -> float:
        """Tokens of prompts that a step reads where there are more."""
        return self._prompts_in_step

    def output_token(self, limit: int) -> float:
        """Device seconds of a token of output, in an engine that runs so many at once."""
        limits, cost = self._limits, self._cost.present
        full = max(1.0, min(limit, limits.cache_tokens / self.held))
        return cost.base / full + cost.sequence + cost.context_token * self.held

    def prompt_token(self, limit: int) -> float:
        """Device seconds of a token of a prompt."""
        return self._cost.present.prefill_token

    def base(self, limit: int) -> float:
        """Seconds until a first token beside those for its prompt."""
        return _FIRST_STEPS * self._step_seconds

    def first_token(self, prompt_tokens: int, limit: int) -> float:
        """Seconds until the first token of a request that goes to the engine."""
        each = self.prompt_token(limit) if self._reading is None else self._reading
        return self.base(limit) + each * prompt_tokens

    def cautious_first_token(self, prompt_tokens: int, limit: int) -> float:
        """Seconds within which nearly all such first tokens come, as the engine is at present.

        Long prompts are read beside shorter ones: what comes on top is a part of the usual time.
        """
        return self.first_token(prompt_tokens, limit) * (1.0 + self._excess)

    def configure(self, limits: EngineLimits) -> None:
        """The engine has other limits; what was learnt stays."""
        self._limits = limits
        self._prompts_in_step = min(self._prompts_in_step, limits.max_tokens_per_step)

    def saw_first_token(
        self, prompt_tokens: int, seconds: float, limit: int, *, room: bool
    ) -> None:
        """A first token took so long; `room`: it needed no place that was taken."""
        usual = self.first_token(prompt_tokens, limit)
        if usual > 0:  # it is nothing before the first step of one that was measured as free
            self._saw_excess(seconds / usual - 1.0, 1.0)

    def stepped(self, step: EngineStep) -> None:
        """A step ended."""
        if step.seconds <= 0:
            return
        used = (self._limits.blocks - step.free_blocks) * self._limits.block_tokens
        sequences = step.tokens + (step.prefill_tokens > 0)
        self._cost.saw(StepLoad(step.prefill_tokens, sequences, used), step.seconds)
        self._step_seconds = _nearer(self._step_seconds, step.seconds)
        if step.running:
            self.held = max(1.0, _nearer(self.held, used / step.running))
        if step.backlog > 0 and step.prefill_tokens > 0:
            self._prompts_in_step = _nearer(self._prompts_in_step, step.prefill_tokens)
            each = step.seconds / step.prefill_tokens
            self._reading = each if self._reading is None else _nearer(self._reading, each)


def _nearer(old: float, new: float) -> float:
    return old + _NEWEST * (new - old)
