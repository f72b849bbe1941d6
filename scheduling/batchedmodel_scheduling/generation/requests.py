"""What the admission of generation requests is told, and what it answers.

Time is in monotonic seconds and given by the caller. Work is in seconds of the device.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.spec import Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_scheduling.core.policy import NEVER, Priority, RequestGroup


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

    @classmethod
    def of(cls, settings: BatchSettings) -> "AdmissionSettings":
        """Those of a manifest's effective settings."""
        return cls(
            max_concurrent_requests=settings.max_concurrent_requests,
            first_token_seconds=settings.target_first_token_seconds,
            token_seconds=settings.target_token_seconds,
            lateness=settings.lateness,
            max_queue_size=settings.max_queue_size,
        )


class GenerationRequest(NamedTuple):
    """One request for text, of one or more choices."""

    id: int
    share: Share
    key: Hashable
    """The model or adapter that it names: what rests, and whose lengths are learnt."""
    prompt_tokens: int
    """As far as is known."""
    max_tokens: int | None
    """What the caller allows for each choice; None for no bound."""
    choices: int
    arrived: float
    deadline: float
    """When its caller stops waiting for the first token."""
    streams: bool
    """Whether its tokens are seen as they come."""
    priority: Priority = Priority.NORMAL
    group: RequestGroup | None = None
    """Calls of an agent that come together."""


class GrantReason(StrEnum):
    """Why requests leave now, or why none does."""

    EMPTY = "empty"
    """Nothing waits."""
    BUSY = "busy"
    """The server has as many as it should."""
    RESTING = "resting"
    """All that waits is for keys which the server refused a moment ago."""
    RELEASED = "released"


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
    reason: GrantReason


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """Gauges of the server; None for what it does not tell."""

    running: int | None = None
    waiting: int | None = None
    cache_usage: float | None = None
    """Share of its cache of keys and values that is in use, from 0 to 1."""


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
