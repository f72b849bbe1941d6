"""Requests for text as they wait and run, what admission is told of engines, what it answers.

Time is in monotonic seconds and given by the caller. Work is in seconds of the device.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_scheduling.batching.items import NEVER, Priority, RequestGroup
from batchedmodel_scheduling.engine.step_cost import StepCost


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
    """Of an engine of ours, which tells of each step; None: it is somebody else's."""

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


class Place(IntEnum):
    """Where a waiting request is."""

    READY = 0
    LATE = 1
    """Its first token misses the target."""
    PARKED = 2
    """Its key rests."""


class Waiting:
    """A request that waits, or that was released and may come back."""

    __slots__ = ("due", "group_started", "place", "places", "request", "returned", "work")

    def __init__(self, request: GenerationRequest, *, work: float, target: float | None) -> None:
        self.request = request
        self.work = work
        """What it was expected to cost when it came."""
        self.place = Place.READY
        self.places = 1
        """That it takes at the server, once it was released."""
        self.returned = False
        """Whether the server has refused it, so that it is the first of its tenant."""
        self.group_started = False
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
            0.0 if self.returned else 1.0,
            float(request.priority),
            0.0 if self.group_started else 1.0,
            min(self.due, request.deadline),
            request.arrived,
        )


class Running:
    """A request at the server."""

    __slots__ = ("alone", "cached", "first_at", "released_at", "tokens", "waiting")

    def __init__(self, waiting: Waiting, now: float, *, alone: bool) -> None:
        self.waiting: Final = waiting
        self.released_at: Final = now
        self.alone: Final = alone
        """Whether it met a server with room, so that its first token shows how long that takes."""
        self.first_at = NEVER
        self.tokens = 0
        self.cached = 0
        """Tokens of its prompt that the server did not have to read, as far as it tells."""

    @property
    def read_tokens(self) -> int:
        """Of its prompt, that the server has to read."""
        return max(0, self.waiting.request.prompt_tokens - self.cached)

    @property
    def started(self) -> bool:
        """Whether its first token has been seen."""
        return self.first_at != NEVER


class Load(NamedTuple):
    """What the server did in a span of time; sequences are choices of requests, on average."""

    seconds: float
    taken: float
    """Sequences of requests at the server."""
    streams: float
    """Of these, those whose tokens are seen."""
    generating: float
    """Of the streams, those that have a first token."""
    started: int
    """Of the streams, those that got their first token."""
    prompt_tokens: int
    """Of prompts that were read."""
    tokens: int
    """Seen of streams."""
    whole_seconds: float
    """Of ended requests that are no streams, from when they went, times their sequences."""
    whole_tokens: int
    completed: int


class AtServer:
    """Requests that were released and have not ended: what they were given, and what that shows."""

    def __init__(self) -> None:
        self._running: Final[dict[int, Running]] = {}
        self.sequences = 0
        self.unstarted = 0
        """Streams without a first token."""
        self.unread_tokens = 0
        """Of their prompts."""
        self.work = 0.0
        """Expected of all that are here when they were released."""
        self.tokens = 0
        """That all that are here were given after their first."""
        self.streams = self.generating = 0
        """Sequences of streams, and of those that have a first token."""
        self._began = self._at = 0.0
        self._sum_taken = self._sum_streams = self._sum_generating = self._whole_seconds = 0.0
        self._span_tokens = self._completed = self._started = self._whole_tokens = 0
        self._prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._running)

    def newest(self) -> Iterator[Running]:
        """All that are here, the newest first."""
        return reversed(self._running.values())

    def get(self, request_id: int) -> Running | None:
        """The request, if it is here."""
        return self._running.get(request_id)

    def unstarted_of(self, tenant: str) -> int:
        """A tenant's streams without a first token."""
        left, own = self.unstarted, 0
        for one in self.newest():
            if not left:
                break
            if one.waiting.request.streams and not one.started:
                left -= 1
                own += one.waiting.request.share.tenant == tenant
        return own

    def released(self, waiting: Waiting, now: float, *, room: bool) -> None:
        """A request goes there. `room`: the server has many more places than requests."""
        self._pass(now)
        request = waiting.request
        self._running[request.id] = Running(waiting, now, alone=room and not self.unstarted)
        self.sequences += waiting.places
        self.work += waiting.work
        if request.streams:
            self.streams += waiting.places
            self.unstarted += 1
            self.unread_tokens += request.there.prompt_tokens

    def found(self, running: Running, tokens: int, work: float) -> None:
        """The server had so many tokens of its prompt: it costs so much less."""
        running.cached += tokens
        running.waiting.work -= work
        self.work = max(0.0, self.work - work)

    def first_token(self, request_id: int, now: float) -> Running | None:
        """A stream begins; None if it is not here, or began before."""
        running = self._running.get(request_id)
        if running is None or running.started or not running.waiting.request.streams:
            return None
        self._pass(now)
        self._waits_no_more(running)
        running.first_at = now
        self.generating += running.waiting.places
        self._started += running.waiting.places
        self._prompt_tokens += running.read_tokens
        return running

    def count_tokens(self, request_id: int, count: int) -> None:
        """So many tokens came after the first."""
        running = self._running.get(request_id)
        if running is not None:
            running.tokens += count
            self.tokens += count
            self._span_tokens += count

    def ended(
        self, request_id: int, now: float, *, output: int | None = None, well: bool = False
    ) -> Running | None:
        """A request ended, after so many tokens as far as is known; None if it is not here."""
        self._pass(now)
        running = self._running.pop(request_id, None)
        if running is None:
            return None
        places = running.waiting.places
        self.sequences -= places
        self.tokens -= running.tokens
        self.work = max(0.0, self.work - running.waiting.work) if self._running else 0.0
        if running.waiting.request.streams:
            self.streams -= places
            if running.started:
                self.generating -= places
            else:
                self._waits_no_more(running)
        elif output:
            self._whole_seconds += (now - running.released_at) * places
            self._whole_tokens += output
        self._completed += well
        return running

    def look(self, now: float) -> Load | None:
        """What happened since the last look; None when no time has passed."""
        self._pass(now)
        seconds = now - self._began
        if seconds <= 0:
            return None
        load = Load(
            seconds=seconds,
            taken=self._sum_taken / seconds,
            streams=self._sum_streams / seconds,
            generating=self._sum_generating / seconds,
            started=self._started,
            prompt_tokens=self._prompt_tokens,
            tokens=self._span_tokens,
            whole_seconds=self._whole_seconds,
            whole_tokens=self._whole_tokens,
            completed=self._completed,
        )
        self._sum_taken = self._sum_streams = self._sum_generating = self._whole_seconds = 0.0
        self._span_tokens = self._completed = self._started = self._whole_tokens = 0
        self._prompt_tokens = 0
        self._began = now
        return load

    def since_look(self, now: float) -> float:
        """Seconds since the last look."""
        return now - self._began

    def begin_at(self, now: float) -> None:
        """Nothing happened before: the first look is at what comes from now on."""
        self._began = self._at = now

    def _waits_no_more(self, running: Running) -> None:
        self.unstarted -= 1
        self.unread_tokens -= running.waiting.request.there.prompt_tokens

    def _pass(self, now: float) -> None:
        """Add up the time that has passed."""
        passed = now - self._at
        if passed > 0:
            self._sum_taken += passed * self.sequences
            self._sum_streams += passed * self.streams
            self._sum_generating += passed * self.generating
            self._at = now
