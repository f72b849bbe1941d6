"""Capacity of an upstream engine: its given limit, or as many as it runs and a few that wait there.

Of streams it is seen how many wait there: those without a first token. So no more go than begin
with two of its steps, and a part of those that run. One that many others have overtaken does not
wait: it is read, or may never be. Of other requests the engine's gauges tell; where they do not,
the limit grows while more requests at once complete more.

Where tokens come too slowly the limit shrinks, until half as many requests bring them no sooner.

While a tenant uses little of the engine beside others, these go only when nothing waits there, and
so do long prompts of any tenant: the engine takes who comes first.
"""

from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.generation.at_server import AtServer, Load
from batchedmodel_scheduling.generation.capacity import MOST_HEADS, Capacity
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    EngineView,
    GenerationRequest,
    Waiting,
)
from batchedmodel_scheduling.generation.token_costs import SeenCosts
from batchedmodel_scheduling.queue.items import NEVER

_FIRST_LIMIT: Final = 16
_MOST: Final = 4096
_LOOK_SECONDS: Final = 0.25
_SLACK: Final = 16
"""Of so many that run one more may wait there."""
_RAN_SECONDS: Final = 60.0
"""In which it is forgotten that more ran."""
_SHARED_SECONDS: Final = 10.0
"""After a request of a tenant that uses little, for which the engine counts as shared."""
_UNREAD_STEPS: Final = 1.6
"""Of the engine's time that prompts take which are not read while it is shared, at most."""
_FEW: Final = 48
"""Of so many streams that run a tenant that uses much may have one more wait there."""
_VIEWS: Final = 3
"""Looks at the gauges in all of which requests wait, before they count as a queue."""
_VIEW_SECONDS: Final = 5.0
_GROW_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 4.0
"""Without growth, after it shrank."""
_PLATEAU_SECONDS: Final = 20.0
"""Until it is tried again whether more complete more."""
_STALL_LOOKS: Final = 8
"""Without a first token, while requests wait, until one more stream without one may be there."""
_FAST_GAIN: Final = 0.6
_SLOW_GAIN: Final = 0.25
"""The part of the growth that must show in what completes: of prompts that take long to be read
much less does. And the part of what the limit shrank by that must show between tokens."""
_CACHE_FULL: Final = 0.95
_NEAR_TARGET: Final = 0.9


class UpstreamEngine(Capacity):
    """The limit in force, and what shows where it should be."""

    def __init__(self, settings: AdmissionSettings, server: AtServer) -> None:
        self._seen: Final = SeenCosts(lambda: self.limit)
        super().__init__(self._seen)
        self._server: Final = server
        self._limit = _FIRST_LIMIT
        self._unstarted = float(_FIRST_LIMIT)
        """Streams without a first token that may be there."""
        self._ran = 0.0
        """Sequences that ran at once, at most, not long ago."""
        self._pressed = self._pressed_before = self._shared = False
        """Whether more waited than could go, since the last look and already at it; whether a
        tenant uses little of it beside others."""
        self._shared_until = self._grow_at = self._hidden_until = self._viewed_at = -NEVER
        self._doubles = True
        """Nothing has shown yet how many run there."""
        self._views: list[EngineView] = []
        self._before = (_FIRST_LIMIT, 0.0)
        """The limit before it grew last, and what completed a second; 0: it is not known."""
        self._slowed = (0, 0.0)
        """The limit and the seconds between tokens from which it shrinks; 0: it does not."""
        self._target_from = -NEVER
        """Until then the target counts for nothing, as half of the limit brought it no nearer."""
        self._completed = self._seconds = 0.0
        self.configure(settings)

    def configure(self, settings: AdmissionSettings) -> None:
        """Use other settings from now on; what was learnt stays."""
        self._given, self._token_target = settings.max_concurrent_requests, settings.token_seconds

    # What is free

    @property
    def limit(self) -> int:
        """Requests that are at the server at once, at most; where it is learnt, their choices."""
        return self._limit if self._given is None else self._given

    @property
    def heads(self) -> int:
        """See `Capacity`."""
        if self._given is not None:
            return int(len(self._server) < self._given)
        is_free = self._has_places(_slack(self._limit))
        return (MOST_HEADS if self._shared else 1) if is_free else 0

    def places(self, request: GenerationRequest) -> int:
        """One for each choice, as far as there are any.

        So no number of choices takes what is kept for others. A server may not even make them.
        """
        return min(request.choices, max(1, self.limit - self._server.sequences))

    def has_room(self, request: GenerationRequest, now: float) -> bool:
        """Whether it takes no place that is kept for others, nor lets them wait there."""
        if self._given is not None or not len(self._server):
            return True
        if not self._shared:
            return self._has_places(0)
        if not self._uses_at_most(1.0, request.share):
            unread = [one.waiting.request.share.tenant for one in self._server.unread.values()]
            own = unread.count(request.share.tenant)
            most = self._limit - _slack(self._limit)
            if self._server.sequences >= most or own >= 1.0 + self._server.generating / _FEW:
                return False
        if not self._seen.slows(request.prompt_tokens):
            return True
        read = self.costs.prompt_token * (self._server.unread_tokens + request.prompt_tokens)
        soon = read <= _UNREAD_STEPS * self.costs.output_token * self._limit
        return now >= self._hidden_until and (soon or not self._server.unread_tokens)

    def came(self, share: Share, now: float) -> None:
        """A request of a tenant came: while one uses little beside others, the engine is shared."""
        if self._uses_at_most(0.5, share):
            self._shared, self._shared_until = True, now + _SHARED_SECONDS

    def released(self, waiting: Waiting, now: float) -> None:
        """It goes to the server, which does not show when it has read the prompt of no stream."""
        if not waiting.request.streams and self._seen.slows(waiting.request.prompt_tokens):
            self._hidden_until = now + 2 * self.costs.between_tokens

    def _has_places(self, more: int) -> bool:
        """Whether another may go if so many more than usual may be there."""
        within = self._server.streams - self._server.generating < self._unstarted + more
        return within and self._server.sequences < self._limit + more

    def _uses_at_most(self, much: float, share: Share) -> bool:
        """Whether a tenant beside others, with one place more, has so much of its part of them."""
        part = self._server.here.part(share) * self._limit
        return part < self._limit and self._server.of[share.tenant] + 1 <= max(1.0, much * part)

    # What is learnt of places

    def saw(self, view: EngineView, now: float) -> None:
        """The server's gauges were read."""
        self._views = [*self._fresh(now)[1 - _VIEWS :], view]
        self._viewed_at = now

    def look(self, now: float, *, waits: bool) -> float:
        """See `Capacity`."""
        wanted = waits and not self._has_places(-_slack(self._limit) if self._shared else 0)
        self._pressed = self._pressed or wanted
        if now - self._server.began >= _LOOK_SECONDS:
            self._server.set_overtaken_aside()
            self._adapt(self._server.look(now), now)
            self._pressed = self._pressed_before = wanted
        return NEVER if self._given is not None else now + _LOOK_SECONDS

    def _adapt(self, load: Load, now: float) -> None:
        """Learn from what the server did in a span."""
        self._seen.saw(load)
        token = self.costs.between_tokens
        target = (self._token_target if now >= self._target_from else None) or NEVER
        views, self._shared = self._fresh(now), now < self._shared_until
        may_grow = self._pressed and now >= self._grow_at and token <= _NEAR_TARGET * target
        if token <= target:
            self._slowed = (0, 0.0)
        elif now >= self._grow_at:
            self._slow_down(load.taken, token, target, now)
        queued = load.streams - load.generating
        if self._pressed and not load.started and queued >= self._unstarted:
            self._unstarted += 1 / _STALL_LOOKS
        if load.generating > 0 and load.streams > load.taken / 8:
            unstarted = 1.0 + load.generating / _SLACK + 3 * load.started / load.seconds * token
            if self._shared:
                may_grow = may_grow and load.taken > 0.9 * (self._limit - _slack(self._limit))
            elif self._pressed or queued > 2 * unstarted:
                self._unstarted = unstarted
                self._ran = max(load.taken - queued, self._ran * (1 - load.seconds / _RAN_SECONDS))
                # Where they came within the span, its means are not of what runs.
                if queued > 0.75 * unstarted and self._pressed_before:
                    self._limit = max(1, min(self._limit, round(self._ran + unstarted)))
                    self._doubles = may_grow = False
        elif views and views[-1].waiting is not None:
            # What waits for one step only is on its way to a place.
            waiting = min([one.waiting or 0 for one in views])
            running = max([one.running or 0 for one in views])
            binds = self._server.sequences >= 0.75 * self._limit or waiting >= running
            may_grow = may_grow and views[-1].waiting <= _slack(self._limit) / 2
            if len(views) == _VIEWS and binds and running and waiting > _slack(running):
                self._shrink(running + _slack(running), now)
                may_grow = False
        elif may_grow:
            self._climb(load, now)
            return
        if may_grow and not (views and (views[-1].cache_usage or 0.0) > _CACHE_FULL):
            self._grow(self._limit if self._doubles else self._limit // 8, now)

    def _climb(self, load: Load, now: float) -> None:
        """Whether more requests at once complete more, where nothing else can be seen."""
        self._completed += load.completed
        self._seconds += load.seconds
        if self._completed < 5 * self._limit or self._seconds < 1.0:
            return
        (limit, before), rate = self._before, self._completed / self._seconds
        self._completed = self._seconds = 0.0
        gain = _FAST_GAIN if self._doubles else _SLOW_GAIN
        if rate >= before * (1 + gain * (self._limit / limit - 1)):
            self._before = (self._limit, rate)
            self._grow(self._limit // (2 if self._doubles else 4), now)
        else:
            self._limit, self._before = limit, (limit, 0.0)
            self._grow_at = now if self._doubles else now + _PLATEAU_SECONDS
            self._doubles = False  # smaller steps from there

    def _slow_down(self, taken: float, token: float, target: float, now: float) -> None:
        """Tokens come too slowly: fewer requests, unless half as many brought them no sooner."""
        if taken > self._limit + _slack(self._limit):
            return  # those that are to be fewer have not ended yet
        limit, before = self._slowed
        halved = 2 * self._limit <= limit
        if halved and token > before * (1 - _SLOW_GAIN / 2):
            self._limit, self._target_from = limit, now + _RAN_SECONDS
            self._slowed = (0, 0.0)
            return
        if halved or not limit:
            self._slowed = (self._limit, token)
        self._shrink(int(self._limit * max(0.5, target / token)), now)

    def _fresh(self, now: float) -> list[EngineView]:
        return self._views if now - self._viewed_at < _VIEW_SECONDS else []

    def _grow(self, more: int, now: float) -> None:
        self._limit = min(_MOST, self._limit + max(1, more))
        self._grow_at = now + _GROW_SECONDS

    def _shrink(self, limit: int, now: float) -> None:
        self._limit, self._doubles = max(1, min(self._limit, limit)), False
        self._grow_at = now + _PAUSE_SECONDS


def _slack(places: int) -> int:
    return max(1, places // _SLACK)
