"""A simulated engine of a language model: who gets a token at the end of which step.

It batches continuously, as vLLM does: sequences join at the beginning of a step and leave at the
end of one, first come first served. Pure: without clock and network, so that the benchmark asks the
same object in virtual time what an engine can serve.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

BYTES_PER_TOKEN: Final = 4


def tokens_of(text_bytes: int) -> int:
    """How many tokens a prompt of so many bytes has; at least one."""
    return max(1, -(-text_bytes // BYTES_PER_TOKEN))


@dataclass(slots=True, kw_only=True)
class EngineSettings:
    """How fast it is, and how much it holds; may change while it runs."""

    max_num_seqs: int = 64
    """Sequences that run at once."""
    step_seconds: float = 0.02
    prefill_seconds_per_token: float = 20e-6
    kv_cache_tokens: int = 262_144
    """Tokens of running sequences; a prompt waits until it fits, and nothing is preempted."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One prompt and what comes of it."""

    prompt_tokens: int
    output_tokens: int
    prefill_seconds: float = 0.0
    """What its prompt takes beyond the time of its tokens."""
    hangs_after: int | None = None
    """The number of tokens after which none follows, though it still runs."""
    adapter: str = ""
    emitted: int = 0
    gone: bool = False
    """Whether nobody wants more of it; it runs until the step that it is in has ended."""

    @property
    def finished(self) -> bool:
        """Whether all of it is there."""
        return self.emitted >= self.output_tokens


@dataclass(slots=True, kw_only=True)
class Engine:
    """Sequences that run and sequences that wait, and what was done so far."""

    settings: EngineSettings = field(default_factory=EngineSettings)
    running: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    """Sequences whose callers left before the end."""
    most_running: int = 0

    def offer(self, sequence: Sequence) -> None:
        """Have it run as soon as its turn comes."""
        self.waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> bool:
        """Its caller has left; whether anything was left to do."""
        if sequence.gone or sequence.finished:
            return False
        self.cancelled += 1
        self.drop(sequence)
        return True

    def drop(self, sequence: Sequence) -> None:
        """Free what it has at the next step, without counting it."""
        sequence.gone = True
        if sequence in self.waiting:
            self.waiting.remove(sequence)

    def begin(self) -> float | None:
        """Begin a step with whoever has room in it; its seconds, or None if there is nobody."""
        settings = self.settings
        self.running = [one for one in self.running if not one.gone]
        used, seconds = self.used_tokens(), settings.step_seconds
        while self.waiting and len(self.running) < settings.max_num_seqs:
            following = self.waiting[0]
            used += following.prompt_tokens
            if self.running and used > settings.kv_cache_tokens:
                break
            self.running.append(self.waiting.popleft())
            self.prompt_tokens += following.prompt_tokens
            seconds += following.prompt_tokens * settings.prefill_seconds_per_token
            seconds += following.prefill_seconds
        if not self.running:
            return None
        self.most_running = max(self.most_running, len(self.running))
        return seconds

    def end(self) -> list[Sequence]:
        """End the step that runs; the sequences that got a token in it."""
        self.steps += 1
        served, left = [], []
        for one in self.running:
            if one.gone:
                continue
            if one.hangs_after is None or one.emitted < one.hangs_after:
                one.emitted += 1
                served.append(one)
            if one.emitted < one.output_tokens:
                left.append(one)
        self.generated_tokens += len(served)
        self.finished += sum(one.finished for one in served)
        self.running = left
        return served

    def used_tokens(self) -> int:
        """Tokens that running sequences hold in the cache."""
        return sum(one.prompt_tokens + one.emitted for one in self.running)

    def cache_usage(self) -> float:
        """The used part of the cache."""
        return min(1.0, self.used_tokens() / self.settings.kv_cache_tokens)
