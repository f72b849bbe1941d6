"""What tokens cost a server, in seconds of its device.

Of an engine of ours that follows from what its steps cost, of an upstream engine from the time
between tokens and what is read in it.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from batchedmodel_scheduling.generation.at_server import Load
from batchedmodel_scheduling.generation.requests import EngineLimits, EngineStep
from batchedmodel_scheduling.latency.step_times import StepLoad, StepTimes

_FIRST_STEPS: Final = 1.5
"""Steps until a first token beside what its prompt takes: half of the one that runs, and its own
last one."""
_NEWEST_STEP: Final = 0.05
_NEWEST_SPAN: Final = 0.2
_LEAST_TOKENS: Final = 8
"""In a span that teaches what they cost."""
_TOKEN_SECONDS: Final = 0.02
"""Between two tokens before any were seen."""
_PROMPT_PART: Final = 1 / 20
"""Of the cost of a token of output, before prompts of unlike lengths were seen."""
_PRIOR_SPREAD: Final = 32.0**2
"""So much must the lengths of prompts vary to outweigh that."""
_MEMORY: Final = 200.0
"""Spans that count."""


class TokenCosts:
    """What tokens cost, and how fast they come."""

    @property
    @abstractmethod
    def learnt(self) -> bool:
        """Whether anything is known."""

    @property
    @abstractmethod
    def between_tokens(self) -> float:
        """Usual seconds between two tokens of a text."""

    @property
    @abstractmethod
    def least_between_tokens(self) -> float:
        """The same at best."""

    @property
    @abstractmethod
    def output_token(self) -> float:
        """Device seconds of a token of output, where all places are taken."""

    @property
    @abstractmethod
    def prompt_token(self) -> float:
        """Device seconds of a token of a prompt."""

    @abstractmethod
    def first_token(self, prompt_tokens: int) -> float:
        """Seconds until a first token on a server with room."""

    def work(self, prompt_tokens: int, output_tokens: float) -> float:
        """Device seconds of a request."""
        return self.prompt_token * prompt_tokens + self.output_token * output_tokens


class ReportedCosts(TokenCosts):
    """Of an engine of ours, which tells of each step.

    A full batch is as many sequences as run at once, or as the cache holds of such as it has lately
    where these are fewer. So the cache is paid for as well: where it is short, each sequence has a
    larger part of a step.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.prompts_in_step = float(limits.max_tokens_per_step)
        """Tokens of prompts that a step reads where there are more."""
        self._steps: Final = StepTimes(limits.cost)
        self._step_seconds = limits.cost.base
        self._context = 1.0
        """Tokens in the cache of a sequence."""

    def saw(self, step: EngineStep) -> None:
        """A step ended."""
        used = (self.limits.blocks - step.free_blocks) * self.limits.block_tokens
        sequences = step.tokens + (step.prefill_tokens > 0)
        self._steps.observe(StepLoad(step.prefill_tokens, sequences, used), step.seconds)
        self._step_seconds = _nearer(self._step_seconds, step.seconds)
        if step.running:
            self._context = max(1.0, _nearer(self._context, used / step.running))
        if step.backlog > 0 and step.prefill_tokens > 0:
            self.prompts_in_step = _nearer(self.prompts_in_step, step.prefill_tokens)

    @property
    def learnt(self) -> bool:
        """See `TokenCosts`: they were measured."""
        return True

    @property
    def between_tokens(self) -> float:
        """See `TokenCosts`."""
        return self._step_seconds

    @property
    def least_between_tokens(self) -> float:
        """Of a sequence that is alone, as measured first or as learnt."""
        alone = [cost.base + cost.sequence for cost in (self._steps.measured, self._steps)]
        return min(*alone, self._step_seconds)

    @property
    def output_token(self) -> float:
        """See `TokenCosts`."""
        limits, cost = self.limits, self._steps
        full = max(1.0, min(limits.max_sequences, limits.cache_tokens / self._context))
        return cost.base / full + cost.sequence + cost.context_token * self._context

    @property
    def prompt_token(self) -> float:
        """See `TokenCosts`."""
        return self._steps.prefill_token

    def first_token(self, prompt_tokens: int) -> float:
        """See `TokenCosts`."""
        return _FIRST_STEPS * self._step_seconds + self.prompt_token * prompt_tokens


class SeenCosts(TokenCosts):
    """Of an upstream engine: by how prompts that it reads slow the tokens of others.

    Seconds between tokens are a line over the tokens of prompts that are read between them.
    """

    def __init__(self, places: Callable[[], int]) -> None:
        """`places`: requests that it has at once, at most."""
        self._places: Final = places
        self._between: float | None = None
        self._spans = self._reads = self._seconds = self._spread = self._together = 0.0
        """Spans that count, and of these the means, the variance and the covariance of tokens that
        were read between two tokens and of seconds between them."""
        self._tokens = self._at_reads = self._at_seconds = 0.0
        """The same means by tokens: a span of many says more of their cost, not of its slope."""

    def saw(self, load: Load) -> None:
        """What the server did in a span."""
        if load.tokens >= _LEAST_TOKENS and load.generating > 0:
            seconds = load.generating * load.seconds / load.tokens
            self._observe(load.prompt_tokens / load.seconds * seconds, seconds, load.tokens)
        elif load.whole_tokens >= _LEAST_TOKENS:
            seconds = load.whole_seconds / load.whole_tokens
        else:
            return
        before = seconds if self._between is None else self._between
        self._between = before + _NEWEST_SPAN * (seconds - before)

    @property
    def learnt(self) -> bool:
        """See `TokenCosts`."""
        return self._between is not None

    @property
    def between_tokens(self) -> float:
        """See `TokenCosts`."""
        return _TOKEN_SECONDS if self._between is None else self._between

    @property
    def least_between_tokens(self) -> float:
        """See `TokenCosts`."""
        return self.between_tokens

    @property
    def output_token(self) -> float:
        """See `TokenCosts`."""
        step = max(0.0, self._at_seconds - self.prompt_token * self._at_reads)
        return (step or self.between_tokens) / self._places()

    @property
    def prompt_token(self) -> float:
        """See `TokenCosts`."""
        prior = _PROMPT_PART * self.between_tokens / self._places()
        slope = (self._together + _PRIOR_SPREAD * prior) / (self._spread + _PRIOR_SPREAD)
        return max(0.0, slope)

    def first_token(self, prompt_tokens: int) -> float:
        """See `TokenCosts`."""
        return 2 * self.between_tokens + self.prompt_token * prompt_tokens

    def slows(self, prompt_tokens: int) -> bool:
        """Whether others notice when the server reads such a prompt."""
        return self.learnt and self.prompt_token * prompt_tokens > self.between_tokens / 4

    def _observe(self, reads: float, seconds: float, tokens: int) -> None:
        self._tokens = self._tokens * (1.0 - 1.0 / _MEMORY) + tokens
        self._at_reads += tokens / self._tokens * (reads - self._at_reads)
        self._at_seconds += tokens / self._tokens * (seconds - self._at_seconds)
        self._spans = min(_MEMORY, self._spans + 1.0)
        part, more_reads, more = 1.0 / self._spans, reads - self._reads, seconds - self._seconds
        self._reads += part * more_reads
        self._seconds += part * more
        self._spread += part * ((1 - part) * more_reads * more_reads - self._spread)
        self._together += part * ((1 - part) * more_reads * more - self._together)


def _nearer(old: float, new: float) -> float:
    return old + _NEWEST_STEP * (new - old)
