"""An engine of a language model that batches continuously, as vLLM does, in simulated time.

Sequences have places, who comes first is served first, and a step makes a token of each. Prompts
are read in the same steps, so many tokens at once. Pure: its caller says when a step has ended.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.queue.items import NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """How fast an engine is, and how much it holds."""

    sequences: int = 64
    """That run at once, at most."""
    step_seconds: float = 0.020
    """Of a step, whatever is in it."""
    sequence_seconds: float = 0.0
    """What each sequence adds to it."""
    prefill_seconds_per_token: float = 5e-6
    """What each token of a prompt adds to it."""
    context_seconds_per_token: float = 0.0
    """What each token in the cache adds to a step of our own engine."""
    chunk_tokens: int | None = 2048
    """Of prompts that one step reads, at most; None: a prompt is read whole."""
    cache_tokens: int | None = None
    """Of prompts and answers that fit at once; None: all that run."""

    def __post_init__(self) -> None:
        least = min(self.sequences, self.chunk_tokens or 1, self.cache_tokens or 1)
        slow = min(self.step_seconds, self.sequence_seconds, self.prefill_seconds_per_token)
        if least < 1 or slow < 0 or self.step_seconds + self.sequence_seconds <= 0:
            raise ValueError("an engine has a place at least, and a step takes time")

    def work(self, prompt_tokens: float, output_tokens: float) -> float:
        """Seconds of the device that a text takes where all places are always taken."""
        step = self.step_seconds / self.sequences + self.sequence_seconds
        return self.prefill_seconds_per_token * prompt_tokens + step * output_tokens


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One request for text, and what became of it. Seconds, tokens."""

    number: int
    share: Share
    prompt: int
    output: int
    """That the model makes of it; nobody knows it before."""
    arrived: float
    patience: float = 30.0
    """Its caller waits so long for the first token."""
    max_tokens: int | None = None
    streams: bool = True
    whole: bool = False
    """Whether its caller waits so long for all of it, and not for the first token."""
    unread: int = 0
    """Of its prompt, and of what is lost of it in the cache."""
    given: int = 0
    released_at: float | None = None
    first_at: float | None = None
    ended_at: float | None = None
    """When it was answered."""
    gone: Rejection | Outcome | None = None
    """Why it was not."""

    @property
    def first_token(self) -> float:
        """Seconds until its first token."""
        return NEVER if self.first_at is None else self.first_at - self.arrived

    @property
    def between_tokens(self) -> float:
        """Seconds between two of its tokens, on average."""
        if self.first_at is None or self.ended_at is None:
            return NEVER
        return (self.ended_at - self.first_at) / max(1, self.output - 1)

    def good(self, first: float | None, token: float | None) -> bool:
        """Whether it was answered and met both targets; None: there is none."""
        if self.ended_at is None:
            return False
        in_time = first is None or self.first_token <= first
        return in_time and (token is None or self.between_tokens <= token)


class TokenEngine:
    """Calls that run and calls that wait in the engine."""

    def __init__(self, figures: EngineFigures) -> None:
        self.figures: Final = figures
        self.waiting: Final[deque[Call]] = deque()
        self.running: Final[dict[Call, None]] = {}
        """The one that began last is last."""
        self.ends_at = NEVER
        """When the step ends that runs; `NEVER` where none does."""
        self.steps = 0
        self.sequence_seconds = 0.0
        """Sequences that ran, times the seconds of their steps."""
        self.read_tokens = self.given_tokens = self.preempted = 0
        self._held = 0
        """Tokens of all that run, with what is still to be read."""
        self._reads: list[tuple[Call, int]] = []
        self._reading: list[Call] = []
        """Those that run and have not been read, the first one first."""

    @property
    def cache_usage(self) -> float:
        """The part of the cache that is in use; of one without bound, of the places."""
        tokens = self.figures.cache_tokens
        if tokens is None:
            return len(self.running) / self.figures.sequences
        return min(1.0, (self._held - sum(call.unread for call in self._reading)) / tokens)

    def offer(self, call: Call, now: float) -> None:
        """Have it run as soon as there is a place."""
        call.unread = call.prompt
        self.waiting.append(call)
        if self.ends_at == NEVER:
            self.begin(now)

    def drop(self, call: Call) -> None:
        """Its caller has left; what runs of it ends."""
        if call in self.running:
            self._leave(call)
        elif call in self.waiting:
            self.waiting.remove(call)

    def begin(self, now: float) -> None:
        """Begin a step if there is anything to do."""
        figures = self.figures
        self._make_room()
        while self.waiting and len(self.running) < figures.sequences and self._fits():
            call = self.waiting.popleft()
            self.running[call] = None
            self._held += call.prompt + call.given
            self._reading.append(call)
        if not self.running:
            self.ends_at = NEVER
            return
        read, most = 0, NEVER if figures.chunk_tokens is None else figures.chunk_tokens
        self._reads.clear()
        for call in self._reading:
            if read >= most:
                break
            part = int(min(most - read, call.unread))
            self._reads.append((call, part))
            read += part
        seconds = figures.step_seconds + figures.sequence_seconds * len(self.running)
        seconds += figures.prefill_seconds_per_token * read
        self.ends_at = now + seconds
        self.steps += 1
        self.read_tokens += read
        self.sequence_seconds += seconds * len(self.running)

    def end(self) -> list[Call]:
        """End the step that runs; the calls that got a token. Begin the next one then."""
        told = [call for call in self.running if not call.unread]
        for call, part in self._reads:
            if call in self.running:
                call.unread -= part
                if not call.unread:
                    told.append(call)
        if self._reads:
            self._reading = [call for call in self._reading if call.unread]
        for call in told:
            call.given += 1
            if call.given >= call.output:
                del self.running[call]
                self._held -= call.prompt + call.given - 1
            else:
                self._held += 1
        self.given_tokens += len(told)
        return told

    def _leave(self, call: Call) -> None:
        del self.running[call]
        self._held -= call.prompt + call.given
        self._reading = [other for other in self._reading if other is not call]

    def _fits(self) -> bool:
        tokens, first = self.figures.cache_tokens, self.waiting[0]
        if tokens is None or not self.running:
            return True
        return self._held + first.prompt + first.given + len(self.running) < tokens

    def _make_room(self) -> None:
        """The newest begin anew where answers outgrow the cache: what they had is read again."""
        tokens = self.figures.cache_tokens
        while tokens is not None and self._held > tokens and len(self.running) > 1:
            newest = next(reversed(self.running))
            self._leave(newest)
            newest.unread = newest.prompt + newest.given
            self.waiting.appendleft(newest)
            self.preempted += 1
