"""Which generation request goes to the engine next.

So many are at the server as it runs at once: an engine of ours tells what room it has, that of
another is learnt. The rest waits here, where it can be ordered, given up and refused in time. Pure:
its caller owns timers and answers.
"""

from typing import Final

from batchedmodel_contract.manifest.batching import Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.batching.items import Refusal
from batchedmodel_scheduling.generation.estimates import (
    TRIAL_PAUSE_SECONDS,
    Capacity,
    Estimates,
    OutputLengths,
)
from batchedmodel_scheduling.generation.native_engine import NativeEngine
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    AtServer,
    EngineLimits,
    EngineStep,
    EngineView,
    GenerationRequest,
    Grant,
    Shed,
    Waiting,
)
from batchedmodel_scheduling.generation.upstream_engine import UpstreamEngine
from batchedmodel_scheduling.generation.waiting import FairTurns, WaitingSet

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

_LOOK: Final = 0.25
"""Seconds between two looks at what the server did."""
_TENANTS_PASSED: Final = 32
"""Tenants that may not go now whom others pass, at most."""
_SOONEST: Final = 1.0
_LATEST: Final = 600.0


class Admission:
    """Orders the requests that wait, and lets them go."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._server: Final = AtServer()
        lengths, turns = OutputLengths(), FairTurns()
        self._capacity: Final = _capacity(settings, self._server, lengths, turns)
        self._estimates: Final = Estimates(lengths, self._capacity)
        self._waiting: Final = WaitingSet(settings.max_queue_size, turns, self._estimates)
        self._waiting.refuses_late = settings.lateness is Lateness.REFUSE
        self._pressed = False
        """Whether more waited than could go, since the last look."""
        self._began = False
        self._done_work = 0.0

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
        given = self._server.tokens * self._capacity.output_token
        return self._waiting.work + max(0.0, self._server.work - given)

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
        retry_after = self._capacity.wait(self._waiting.work) / 8
        return Refusal(reason=reason, retry_after=_bounded(retry_after))

    def offer(self, request: GenerationRequest, now: float) -> Refusal | None:
        """Let a request wait, or say why not."""
        self._begin(now)
        self._capacity.came(request.share, now)
        engine = self._settings.engine
        if engine is not None and not request.fits(engine):
            return Refusal(reason=Rejection.TOO_LARGE, retry_after=_LATEST)
        if (refusal := self.refusal(request.share, now)) is not None:
            return refusal
        if not self._estimates.takes(request, now):
            return Refusal(reason=Rejection.PREDICTED_LATE, retry_after=TRIAL_PAUSE_SECONDS)
        waiting = Waiting(
            request, work=self.work(request), target=self._settings.first_token_seconds
        )
        if (late_by := self._hopelessly_late_by(waiting, now)) > 0:
            self._estimates.gone(request.id)
            return Refusal(reason=Rejection.PREDICTED_LATE, retry_after=_bounded(late_by))
        self._waiting.enter(waiting)
        return None

    def withdraw(self, request_id: int, now: float) -> None:
        """Forget a waiting request: its caller left. Unknown and released ones are ignored."""
        self._waiting.withdraw(request_id)
        self._estimates.gone(request_id)

    def poll(self, now: float, *, is_open: bool = True) -> Grant:
        """All that goes now, and all that is given up. Unless `is_open` nothing goes."""
        self._begin(now)
        self._waiting.pass_time(now)
        release: list[int] = []
        turns, passed = self._waiting.turns, 0
        while is_open and self._capacity.asks and (waiting := self._waiting.next(now)) is not None:
            if self._capacity.free_for(waiting.request, now):
                self._release(waiting, now)
                release.append(waiting.request.id)
            elif passed == _TENANTS_PASSED or not turns.hold(waiting.request.share.tenant):
                break
            else:
                passed += 1
        turns.let_go()
        shed = self._waiting.take_shed()
        for one in shed:
            self._estimates.gone(one.request_id)
        self._pressed = self._pressed or self._capacity.wanted
        self._look(now)
        return Grant(release=tuple(release), shed=shed, wake_at=self._wake_at(now))

    def found(self, request_id: int, tokens: int) -> None:
        """The server had so many tokens of a released request's prompt, and did not read them.

        It is told in front of the first token. Its tenant need not pay for them.
        """
        running = self._server.get(request_id)
        if running is None:
            return
        tokens = min(tokens, running.read_tokens)
        work = min(running.waiting.work, self._capacity.prompt_token * tokens)
        self._waiting.turns.found(running.waiting, work)
        self._server.found(running, tokens, work)

    def first_token(self, request_id: int, now: float) -> None:
        """The first token of a released request came."""
        running = self._server.first_token(request_id, now)
        if running is not None:
            prompt = max(0, running.waiting.request.there.prompt_tokens - running.cached)
            took = now - running.released_at
            self._capacity.saw_first_token(prompt, took, room=running.alone)

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
        request = running.waiting.request
        made = output_tokens
        if request.whole:
            made = self._estimates.whole_ended(running, now, output_tokens)
        self._server.ended(request_id, now, output=made, well=output_tokens is not None)
        if output_tokens is not None:
            self._estimates.learn_length(request, output_tokens)
        work = self._estimates.cost(running, output_tokens)
        self._done_work += work
        self._waiting.turns.settle(running.waiting, work)
        self._waiting.groups.ended(request)
        # Of a server of others the first answer in one piece teaches what tokens cost.
        self._look(now, at_once=request.whole and made is not None and not self._capacity.learnt)

    def came_back(self, request_id: int, now: float, *, rest_seconds: float) -> None:
        """The server refused a released request before it began: it waits again, and its key rests.

        It is the next of its tenant, whatever the order.
        """
        running = self._server.ended(request_id, now)
        if running is None:
            return
        request, waiting = running.waiting.request, running.waiting
        self._waiting.turns.settle(waiting, 0.0)
        self._waiting.groups.ended(request)
        waiting.aim(self._settings.first_token_seconds)
        self._waiting.rest(waiting, now + max(0.0, rest_seconds), now)

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

    # What goes

    def _release(self, waiting: Waiting, now: float) -> None:
        waiting.places = self._capacity.counted(waiting.request)
        self._waiting.release(waiting)
        self._capacity.released(waiting, now)
        self._server.released(waiting, now, room=self._capacity.mostly_free)

    def _wake_at(self, now: float) -> float:
        wake_at = self._waiting.next_event()
        if self._waiting.turns and self._capacity.looks:
            wake_at = min(wake_at, now + _LOOK)
        return wake_at

    # What is learnt

    def _begin(self, now: float) -> None:
        if not self._began:
            self._began = True
            self._server.begin_at(now)

    def _look(self, now: float, *, at_once: bool = False) -> None:
        if self._server.since_look(now) < _LOOK and not at_once:
            return
        if (load := self._server.look(now)) is None:
            return
        self._capacity.looked(load, now, pressed=self._pressed)
        if self._pressed:
            self._capacity.saw_pace(self._done_work, load.seconds)
        self._done_work = 0.0
        self._pressed = self._capacity.wanted

    def _hopelessly_late_by(self, waiting: Waiting, now: float) -> float:
        """By how many seconds it would miss what it must not; 0 if that is not known.

        An idle server takes whatever comes: so a wrong guess is found out.
        """
        if not self._capacity.learnt or not len(self._server):
            return 0.0
        request, at = waiting.request, now
        if not self._capacity.any_free:
            ahead = self._waiting.turns.ahead(request.share, request.priority)
            at += self._capacity.wait(ahead)
        late_by = at + self._capacity.first_token(request.there.prompt_tokens)
        late_by = max(late_by - request.deadline, at - self._estimates.begin_by(request).likely)
        if self._waiting.refuses_late:
            late_by = max(late_by, at - self._estimates.late_from(waiting))
        return late_by


def _capacity(
    settings: AdmissionSettings, server: AtServer, lengths: OutputLengths, turns: FairTurns
) -> Capacity:
    if settings.engine is not None:
        return NativeEngine(settings.engine, server, lengths, turns)
    return UpstreamEngine(settings, server, turns)


def _bounded(seconds: float) -> float:
    return min(_LATEST, max(_SOONEST, seconds))
