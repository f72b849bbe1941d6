"""Which generation request goes to the engine next.

So many are at the server as it runs at once: an engine of ours tells what room it has, that of
another is learnt. The rest waits here, where it can be ordered, given up and refused in time. Pure:
its caller owns timers and answers.
"""

from typing import Final

from batchedmodel_contract.manifest.batching import Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.generation.at_server import AtServer
from batchedmodel_scheduling.generation.capacity import Capacity
from batchedmodel_scheduling.generation.estimates import Estimates
from batchedmodel_scheduling.generation.native_engine import NativeEngine
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    EngineLimits,
    EngineStep,
    EngineView,
    GenerationRequest,
    Grant,
    Shed,
    Waiting,
)
from batchedmodel_scheduling.generation.upstream_engine import UpstreamEngine
from batchedmodel_scheduling.generation.waiting import WaitingSet
from batchedmodel_scheduling.queue.items import Refusal
from batchedmodel_scheduling.queue.shared_room import SharedRoom

__all__ = [
    "Admission",
    "AdmissionSettings",
    "EngineLimits",
    "EngineStep",
    "EngineView",
    "GenerationRequest",
    "Grant",
    "Shed",
]

_LEAST_RETRY_SECONDS: Final = 1.0
_MOST_RETRY_SECONDS: Final = 600.0


class Admission:
    """Orders the requests that wait, and lets them go."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        here = SharedRoom(1)
        self._server: Final = AtServer(here)
        self._capacity: Final[Capacity] = (
            UpstreamEngine(settings, self._server)
            if settings.engine is None
            else NativeEngine(settings.engine, self._server)
        )
        self._estimates: Final = Estimates(self._capacity.costs)
        self._waiting: Final = WaitingSet(settings.max_queue_size, self._estimates, here)
        self._waiting.refuses_late = settings.lateness is Lateness.REFUSE

    @property
    def running(self) -> int:
        """Requests at the server."""
        return len(self._server)

    @property
    def waiting(self) -> int:
        """Requests that wait here."""
        return len(self._waiting)

    @property
    def limit(self) -> int:
        """Requests that are at the server at once, at most; where it is learnt, their choices."""
        return self._capacity.limit

    @property
    def backlog_work(self) -> float:
        """Device seconds of all that wait, and of what is left of those that run."""
        made = self._server.tokens * self._capacity.costs.output_token
        return self._waiting.work + max(0.0, self._server.work - made)

    def oldest_age(self, now: float) -> float:
        """Seconds since the oldest that waits came; 0 when none does."""
        return self._waiting.oldest_age(now)

    def work(self, request: GenerationRequest) -> float:
        """Device seconds that a request is expected to cost."""
        return self._estimates.work(request)

    def refusal(self, share: Share, now: float) -> Refusal | None:
        """Why a request of this tenant would not be taken, as far as its tenant alone says it."""
        reason = self._waiting.refusal(share)
        if reason is None:
            return None
        # By then a part of the queue has gone.
        return Refusal(reason=reason, retry_after=_bounded(self._waiting.work / 8))

    def offer(self, request: GenerationRequest, now: float) -> Refusal | None:
        """Let a request wait, or say why not."""
        self._capacity.came(request.share, now)
        engine = self._settings.engine
        if engine is not None and not request.fits(engine):
            return Refusal(reason=Rejection.TOO_LARGE, retry_after=_MOST_RETRY_SECONDS)
        if (refusal := self.refusal(request.share, now)) is not None:
            return refusal
        waiting = Waiting(
            request, work=self.work(request), target=self._settings.first_token_seconds
        )
        waiting.tried = self._is_tried(request, now)
        if (late_by := self._hopelessly_late_by(waiting, now)) > 0:
            return Refusal(reason=Rejection.PREDICTED_LATE, retry_after=_bounded(late_by))
        self._waiting.enter(waiting)
        return None

    def withdraw(self, request_id: int, now: float) -> None:
        """Forget a waiting request: its caller left. Unknown and released ones are ignored."""
        self._waiting.withdraw(request_id)

    def poll(self, now: float, *, is_open: bool = True) -> Grant:
        """All that goes now, and all that is given up. Unless `is_open` nothing goes."""
        self._waiting.pass_time(now)
        release: list[int] = []
        while is_open and (waiting := self._next(now)) is not None:
            self._release(waiting, now)
            release.append(waiting.request.id)
        waits = len(self._waiting.queue) > 0
        look_at = self._capacity.look(now, waits=waits)
        wake_at = self._waiting.next_event()
        return Grant(
            release=tuple(release),
            shed=self._waiting.take_shed(),
            wake_at=min(wake_at, look_at) if waits else wake_at,
        )

    def cached_prefix(self, request_id: int, tokens: int) -> None:
        """The server had so many tokens of a released request's prompt, and did not read them.

        It is told in front of the first token. Its tenant need not pay for them.
        """
        running = self._server.get(request_id)
        if running is None:
            return
        tokens = min(tokens, running.read_tokens)
        work = min(running.waiting.work, self._capacity.costs.prompt_token * tokens)
        self._waiting.queue.charge(running.waiting.request.share.tenant, -work)
        self._server.cached_prefix(running, tokens, work)

    def first_token(self, request_id: int, now: float) -> None:
        """The first token of a released request came."""
        running = self._server.first_token(request_id, now)
        if running is not None:
            self._estimates.saw_first_token(running, now)

    def tokens(self, request_id: int, count: int, now: float) -> None:
        """So many tokens of a released request came after its first."""
        self._server.count_tokens(request_id, count)

    def ended(self, request_id: int, now: float, *, output_tokens: int | None) -> None:
        """A released request ended, with so many tokens in all its choices.

        None: it failed, or its caller left, so it teaches no length.
        """
        running = self._server.get(request_id)
        if running is None:
            return
        request, made = running.waiting.request, output_tokens
        if request.whole:
            made = self._estimates.whole_ended(running, now, output_tokens)
        self._server.ended(request_id, now, output=made, well=output_tokens is not None)
        if output_tokens is not None:
            self._estimates.learn_length(request, output_tokens)
        self._waiting.ended(running.waiting, self._estimates.cost(running, output_tokens))

    def came_back(self, request_id: int, now: float, *, rest_seconds: float) -> None:
        """The server refused a released request before it began: its tenant's key rests.

        It waits again, the next of its tenant, whatever the order.
        """
        running = self._server.ended(request_id, now)
        if running is None:
            return
        waiting = running.waiting
        self._waiting.ended(waiting, 0.0)
        waiting.aim(self._settings.first_token_seconds)
        self._waiting.rest(waiting, now + max(0.0, rest_seconds))

    def engine(self, view: EngineView, now: float) -> None:
        """The server's own gauges."""
        self._capacity.saw(view, now)

    def configure(self, settings: AdmissionSettings, now: float) -> None:
        """Use other settings from now on; what waits stays, even above a smaller queue."""
        self._settings = settings
        self._capacity.configure(settings)
        self._waiting.configure(
            settings.max_queue_size,
            settings.first_token_seconds,
            refuses_late=settings.lateness is Lateness.REFUSE,
        )

    def _next(self, now: float) -> Waiting | None:
        """The request that goes next: of the first tenants in turn the first one with room."""
        most = self._capacity.heads
        if not most:
            return None
        for waiting in self._waiting.heads(1, now):
            if self._capacity.has_room(waiting.request, now):
                return waiting
        if most > 1:
            for waiting in self._waiting.heads(most, now)[1:]:
                if self._capacity.has_room(waiting.request, now):
                    return waiting
        return None

    def _release(self, waiting: Waiting, now: float) -> None:
        waiting.places = self._capacity.places(waiting.request)
        self._waiting.release(waiting)
        self._capacity.released(waiting, now)
        self._server.released(waiting, now)

    def _is_tried(self, request: GenerationRequest, now: float) -> bool:
        """Whether it finds a free place, or is the only one of its tenant.

        So a wrong guess of lengths is found out, and no tenant keeps another out by its own.
        """
        if not self._server.here.of(request.share.tenant):
            return True
        is_next = not len(self._waiting.queue) and self._capacity.heads > 0
        return is_next and self._capacity.has_room(request, now)

    def _hopelessly_late_by(self, waiting: Waiting, now: float) -> float:
        """By how many seconds it would miss what it must not; 0 if that is not known."""
        request, begin_by = waiting.request, self._estimates.begin_by(waiting).likely
        if not self._capacity.costs.learnt or not len(self._server):
            return now - begin_by
        at = now + self._waiting.ahead(request.share, request.priority)
        late_by = at + self._capacity.costs.first_token(request.there.prompt_tokens)
        late_by = max(late_by - request.deadline, at - begin_by)
        if self._waiting.refuses_late:
            late_by = max(late_by, at - self._estimates.late_from(waiting))
        return late_by


def _bounded(seconds: float) -> float:
    return min(_MOST_RETRY_SECONDS, max(_LEAST_RETRY_SECONDS, seconds))
