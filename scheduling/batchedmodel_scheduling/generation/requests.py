"""Requests for text as they wait, what admission is told of engines, what it answers.

Time is in monotonic seconds and given by the caller. Work is in seconds of the device.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_scheduling.latency.step_times import StepCost
from batchedmodel_scheduling.queue.items import NEVER, Priority, RequestGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What an engine of ours holds."""

    max_sequences: int
    """That run at once."""
    max_tokens_per_step: int
    """Of prompts and texts together."""
    blocks: int
    """Of its cache."""
    block_tokens: int
    """Tokens of a block."""
    cost: StepCost
    """Of its steps, as measured when it started."""

    def __post_init__(self) -> None:
        least = min(self.max_sequences, self.max_tokens_per_step, self.blocks, self.block_tokens)
        if least < 1:
            raise ValueError("an engine has a sequence, a block and a token in it at least")

    @property
    def cache_tokens(self) -> int:
        """That the cache holds."""
        return self.blocks * self.block_tokens

    def blocks_of(self, tokens: int) -> int:
        """That hold so many tokens."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """What the manifest says of it."""

    max_concurrent_requests: int | None = None
    """So many are at the server at once; None: as many as it runs at once, which is learnt."""
    first_token_seconds: float | None = None
    """Target from a request's arrival to its first token."""
    token_seconds: float | None = None
    """Target of the mean time between two tokens of a stream."""
    lateness: Lateness = Lateness.SERVE
    max_queue_size: int = 2048
    """Requests that may wait."""
    engine: EngineLimits | None = None
    """Of an engine of ours, which tells of each step; None: an upstream server's."""

    @classmethod
    def of(cls, settings: BatchSettings, engine: EngineLimits | None = None) -> "AdmissionSettings":
        """Those of a manifest's effective settings; `engine`, where it is ours."""
        return cls(
            max_concurrent_requests=settings.max_concurrent_requests,
            first_token_seconds=settings.target_first_token_seconds,
            token_seconds=settings.target_token_seconds,
            lateness=settings.lateness,
            max_queue_size=settings.max_queue_size,
            engine=engine,
        )


class AtOnce(NamedTuple):
    """As much of a request as runs at once."""

    prompt_tokens: int
    texts: int


class GenerationRequest(NamedTuple):
    """One request for texts, of one prompt or more."""

    id: int
    share: Share
    key: Hashable
    """The model or adapter that it names: what rests, and whose lengths are learnt."""
    prompt_tokens: int
    """Of all prompts, as far as is known."""
    max_tokens: int | None
    """What the caller allows for each choice; None for no bound."""
    choices: int
    """Of all prompts."""
    arrived: float
    deadline: float
    """When its caller stops waiting: for the first token, or for the last one where `whole`."""
    streams: bool
    """Whether its tokens are seen as they come; of an engine of ours they always are."""
    priority: Priority = Priority.NORMAL
    group: RequestGroup | None = None
    """Calls of an agent that come together."""
    adapter: str | None = None
    """Of an engine of ours, the adapter of the model that it names."""
    at_once: AtOnce | None = None
    """Of a list of prompts, of which the engine has a part at a time; None: all of it."""
    whole: bool = False
    """Whether it is answered in one piece, which is of use only if all of it is there in time."""
    least_tokens: int = 1
    """That each choice has for certain."""

    @property
    def there(self) -> AtOnce:
        """What the server has of it at a time."""
        return self.at_once or AtOnce(self.prompt_tokens, self.choices)

    def fits(self, limits: EngineLimits) -> bool:
        """Whether an engine ever holds a choice of it, with all that it may become.

        It need not hold all at once: they give way to one another.
        """
        return self.there.prompt_tokens + (self.max_tokens or 1) <= limits.cache_tokens


class Shed(NamedTuple):
    """A request that no longer waits, and how it ended."""

    request_id: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What to do now and when to ask again."""

    release: tuple[int, ...]
    """These go to the server, in this order."""
    shed: tuple[Shed, ...]
    wake_at: float
    """Ask again then, unless something happens before; `NEVER` when only an event can help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """What an engine of ours tells of a step that ended, and of what it has behind it."""

    seconds: float
    """That the step took; 0 where none ran."""
    running: int
    waiting: int
    """Sequences that it has and that do not run; a request is one of them until it runs."""
    free_blocks: int
    backlog: int
    """Tokens of prompts that are still to be computed."""
    prefill_tokens: int
    """Of prompts, computed in this step."""
    tokens: int
    """Of texts, made in this step."""
    ended: int
    """Sequences that ended with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """Gauges of the server; None for what it does not tell."""

    running: int | None = None
    waiting: int | None = None
    cache_usage: float | None = None
    """Share of its cache of keys and values that is in use, from 0 to 1."""
    step: EngineStep | None = None
    """Told by engines of ours only."""


class Waiting:
    """A request that waits, or that was released and may come back."""

    __slots__ = (
        "due", "first", "group_started", "late", "places", "request", "review_at", "tried", "work",
    )  # fmt: skip

    def __init__(self, request: GenerationRequest, *, work: float, target: float | None) -> None:
        self.request = request
        self.work = work
        """What it is expected to cost."""
        self.places = 1
        """That it takes at the server, once it was released."""
        self.late = False
        """Whether it misses the target, or what may be whole in time should go before it."""
        self.first = False
        """Whether the server has refused it, or it was late for many turns of its tenant."""
        self.group_started = False
        """Whether another of its group runs."""
        self.tried = False
        """Whether no length that was learnt keeps it from the server."""
        self.review_at = NEVER
        """When time alone may change something for it."""
        self.due = NEVER
        """When its first token should be there."""
        self.aim(target)

    def aim(self, target: float | None) -> None:
        """Its first token should be there so long after it came."""
        self.due = NEVER if target is None else self.request.arrived + target

    def rank(self) -> tuple[float, ...]:
        """Its place among those of its tenant; the lowest goes first."""
        request = self.request
        return (
            float(self.late),
            0.0 if self.first else 1.0,
            float(request.priority),
            0.0 if self.group_started else 1.0,
            min(self.due, request.deadline),
            request.arrived,
        )
