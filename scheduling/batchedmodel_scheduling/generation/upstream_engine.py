"""Capacity of an upstream engine: its given limit, or as many as it runs and a few that wait there.

Of streams it is seen how many wait there: those without a first token. So no more go than begin
with two of its steps, and a part of those that run. Of other requests the engine's gauges tell;
where they do not, the limit grows while more requests at once complete more.

While a tenant uses little of the engine beside others, these go only when nothing waits there, and
so do long prompts of any tenant: the engine takes who comes first.
"""

from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.batching.items import NEVER
from batchedmodel_scheduling.generation.estimates import Capacity
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    AtServer,
    EngineView,
    GenerationRequest,
    Load,
    Waiting,
)
from batchedmodel_scheduling.generation.waiting import FairTurns

_FIRST_LIMIT: Final = 16
_MOST: Final = 4096
_TOKEN_SECONDS: Final = 0.02
"""Between two tokens before any were seen."""
_PROMPT_PART: Final = 1 / 20
"""Of the cost of a token of output, before prompts of unlike lengths were seen."""
_PRIOR_SPREAD: Final = 32.0**2
"""So much must the lengths of prompts vary to outweigh that."""
_KEEP: Final = 1.0 - 1.0 / 200
_NEWEST: Final = 0.2
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
_QUEUE_SECONDS: Final = 2.0
"""Streams wait there for so long before they count as a queue though no request waits here."""
_PAUSE_SECONDS: Final = 4.0
"""Without growth, after it shrank."""
_PLATEAU_SECONDS: Final = 20.0
"""Until it is tried again whether more complete more."""
_GAIN: Final = 0.6
"""Of the growth, that must show in what completes."""
_LEAST_COMPLETED: Final = 32
_CACHE_FULL: Final = 0.95
_NEAR_TARGET: Final = 0.9


class UpstreamEngine(Capacity):
    """The limit in force, and what tokens were seen to cost."""

    def __init__(self, settings: AdmissionSettings, server: AtServer, turns: FairTurns) -> None:
        super().__init__()
        self._server: Final = server
        self._turns: Final = turns
        self._limit = _FIRST_LIMIT
        self._most_unstarted = float(_FIRST_LIMIT)
        """Streams without a first token, while more wait here."""
        self._ran = 0.0
        """Sequences that ran at once, at most, not long ago."""
        self._streams_show = False
        """Whether enough streams have begun to tell what waits there."""
        self._queue_since = NEVER
        """When a span began since which more streams than usual wait there."""
        self._shared = False
        """Whether a tenant uses little of it beside others."""
        self._shared_until = self._grow_at = self._hidden_until = -NEVER
        self._doubles = True
        """Nothing has shown yet how many run there."""
        self._views: list[EngineView] = []
        self._viewed_at = -NEVER
        self._limit_before, self._rate_before = _FIRST_LIMIT, 0.0
        """The limit before the last step, and what completed a second then; 0: not measured."""
        self._passed = self._completed = 0
        self._seconds = 0.0
        self._token: float | None = None
        self._base: float | None = None
        """Until a first token on a server with room, beside what its prompt takes."""
        self._steps: Final = _Line()
        """Seconds between tokens by tokens of prompts that were read meanwhile."""
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
    def any_free(self) -> bool:
        """See `Capacity`."""
        if self._given is not None:
            return len(self._server) < self._given
        return self._has_room(_part(self._limit))

    @property
    def mostly_free(self) -> bool:
        """See `Capacity`."""
        return 4 * self._server.sequences <= self.limit

    @property
    def wanted(self) -> bool:
        """Whether more would go if there were more places."""
        return bool(self._turns) and not self._has_room(-_part(self._limit) if self._shared else 0)

    @property
    def looks(self) -> bool:
        """Its limit is learnt from what the server does."""
        return self._given is None

    def counted(self, request: GenerationRequest) -> int:
        """Places that a request takes which goes now: one for each choice, as far as there are any.

        So no number of choices takes what is kept for others. A server may not even make them.
        """
        return min(request.choices, max(1, self.limit - self._server.sequences))

    def free_for(self, request: GenerationRequest, now: float) -> bool:
        """Whether it takes no place that is kept for others, nor lets them wait there."""
        if self._given is not None or not len(self._server):
            return True
        if not self._shared:
            return self._has_room(0)
        if not self._uses_at_most(1.0, request.share):
            unstarted = self._server.unstarted_of(request.share.tenant)
            few = unstarted < 1.0 + self._server.generating / _FEW
            if not few or self._server.sequences >= self._limit - _part(self._limit):
                return False
        if not self._is_long(request):
            return True
        if now < self._hidden_until:
            return False
        unread = self._server.unread_tokens
        read = self.prompt_token * (unread + request.prompt_tokens)
        return not unread or read <= _UNREAD_STEPS * self.output_token * self._limit

    def came(self, share: Share, now: float) -> None:
        """A request of a tenant came: while one uses little beside others, the engine is shared."""
        if self._uses_at_most(0.5, share):
            self._shared, self._shared_until = True, now + _SHARED_SECONDS

    def released(self, waiting: Waiting, now: float) -> None:
        """It goes to the server, which does not show when it has read the prompt of no stream."""
        if not waiting.request.streams and self._is_long(waiting.request):
            self._hidden_until = now + 2 * self.usual_between_tokens

    def _has_room(self, kept: int) -> bool:
        """Whether another may go if so many more than usual may be there."""
        unstarted = self._server.streams - self._server.generating
        within = unstarted < self._most_unstarted + kept
        return within and self._server.sequences < self.limit + kept

    def _uses_at_most(self, much: float, share: Share) -> bool:
        """Whether a tenant beside others, with one place more, has so much of its part of them."""
        part = self._turns.places(share, self._limit)
        return part < self._limit and self._turns.running(share) + 1 <= max(1.0, much * part)

    def _is_long(self, request: GenerationRequest) -> bool:
        """Whether others notice when the server reads its prompt."""
        seconds = self.prompt_token * request.prompt_tokens
        return self._token is not None and seconds > self.usual_between_tokens / 4

    # What is learnt of places

    def saw(self, view: EngineView, now: float) -> None:
        """The server's gauges were read."""
        if now - self._viewed_at > _VIEW_SECONDS:
            self._views.clear()
        self._views = [*self._views[1 - _VIEWS :], view]
        self._viewed_at = now
        if len(self._views) < _VIEWS or self._streams_show:
            return
        # What waits for one step only is on its way to a place.
        waiting = min([one.waiting or 0 for one in self._views])
        running = max([one.running or 0 for one in self._views])
        binds = self._server.sequences >= 0.75 * self._limit or waiting >= running
        if running and waiting > _part(running) and binds:
            self._shrink_to(running + _part(running), now)
            self._views.clear()

    def looked(self, load: Load, now: float, *, pressed: bool) -> None:
        """The server did so much in a span in which others waited, if `pressed`."""
        self._learn_token(load)
        token, target = self.usual_between_tokens, self._token_target
        view = self._views[-1] if self._views and now - self._viewed_at < _VIEW_SECONDS else None
        may_grow, self._shared = now >= self._grow_at, now < self._shared_until
        if view is not None and (view.cache_usage or 0.0) > _CACHE_FULL:
            may_grow = False
        if target is not None and token > _NEAR_TARGET * target:
            if may_grow and token > target:
                self._shrink_to(int(self._limit * target / token), now)
            may_grow = False
        self._streams_show = load.generating > 0 and load.streams > load.taken / 8
        unstarted = 1.0 + load.generating / _SLACK + 3 * load.started / load.seconds * token
        queued = load.streams - load.generating
        begin = now - load.seconds
        self._queue_since = min(self._queue_since, begin) if queued > unstarted else NEVER
        if not pressed:
            self._rate_before = 0.0
        if (
            self._streams_show
            and not self._shared
            and (pressed or now - self._queue_since > _QUEUE_SECONDS)
        ):
            running = load.taken - queued
            self._ran = max(running, self._ran * (1 - load.seconds / _RAN_SECONDS))
            self._most_unstarted = unstarted
            if queued > 0.75 * unstarted:
                self._limit = max(1, min(self._limit, round(self._ran + unstarted)))
                self._doubles = self._doubles and not pressed
            elif may_grow:
                self._grow(now, self._step)
        elif not pressed:
            return
        elif view is not None and view.waiting is not None:
            if may_grow and view.waiting <= _part(self._limit) / 2:
                self._grow(now, self._step)
        elif self._streams_show:
            if may_grow and load.taken > 0.9 * (self._limit - _part(self._limit)):
                self._grow(now, self._step)
        elif may_grow:
            self._climb(load, now)

    def _climb(self, load: Load, now: float) -> None:
        """Whether more requests at once complete more, where nothing else can be seen."""
        if self._passed < self._limit:
            self._passed += load.completed  # of those that began before the last step
            return
        self._completed += load.completed
        self._seconds += load.seconds
        if self._completed < max(_LEAST_COMPLETED, 4 * self._limit) or self._seconds < 1.0:
            return
        rate, growth = self._completed / self._seconds, self._limit / self._limit_before - 1
        if rate < self._rate_before * (1 + _GAIN * growth):
            self._limit, self._rate_before = self._limit_before, 0.0
            if not self._doubles:
                self._grow_at = now + _PLATEAU_SECONDS
            self._doubles = False  # smaller steps from there
        else:
            self._limit_before, self._rate_before = self._limit, rate
            self._grow(now, max(1, self._limit // (2 if self._doubles else 5)))
        self._passed = self._completed = 0
        self._seconds = 0.0

    @property
    def _step(self) -> int:
        return self._limit if self._doubles else max(1, self._limit // 8)

    def _grow(self, now: float, more: int) -> None:
        self._limit = min(_MOST, self._limit + more)
        self._grow_at = now + _GROW_SECONDS

    def _shrink_to(self, limit: int, now: float) -> None:
        self._limit, self._doubles = max(1, min(self._limit, limit)), False
        self._grow_at = now + _PAUSE_SECONDS

    # What tokens cost

    @property
    def learnt(self) -> bool:
        """Whether anything was seen of what tokens cost."""
        return self._token is not None

    @property
    def usual_between_tokens(self) -> float:
        """See `Capacity`."""
        return _TOKEN_SECONDS if self._token is None else self._token

    @property
    def output_token(self) -> float:
        """See `Capacity`."""
        step = self._steps.at_zero(self.prompt_token) or self.usual_between_tokens
        return step / self.limit

    @property
    def prompt_token(self) -> float:
        """Device seconds of a token of a prompt: by how much it slows the tokens of others."""
        return self._steps.slope(_PROMPT_PART * self.usual_between_tokens / self.limit)

    def first_token(self, prompt_tokens: int) -> float:
        """See `Capacity`."""
        base = 2 * self.usual_between_tokens if self._base is None else self._base
        return base + self.prompt_token * prompt_tokens

    def saw_first_token(self, prompt_tokens: int, seconds: float, *, room: bool) -> None:
        """See `Capacity`."""
        usual = self.first_token(prompt_tokens)
        base = max(0.0, min(seconds, 3 * usual + 0.001) - self.prompt_token * prompt_tokens)
        if self._base is None or seconds < usual / 2:
            self._base = base  # those before were the first ones of a server that has just begun
        elif room or seconds < usual:
            self._base += _NEWEST / 2 * (base - self._base)
        self._saw_excess(seconds - self.first_token(prompt_tokens), usual)

    def _learn_token(self, load: Load) -> None:
        if load.tokens >= 8 and load.generating > 0:
            token = load.generating * load.seconds / load.tokens
            self._steps.observe(load.prompt_tokens / load.seconds * token, token, load.tokens)
        elif load.whole_tokens >= 8:
            token = load.whole_seconds / load.whole_tokens
        else:
            return
        before = token if self._token is None else self._token
        self._token = before + _NEWEST * (token - before)


class _Line:
    """A line through points, newer ones counting more."""

    def __init__(self) -> None:
        self._mean_x = self._mean_y = self._points = self._spread = self._together = 0.0
        self._at_x = self._at_y = self._weight = 0.0
        """The point about which the line lies: the mean of all, by their weights."""

    def slope(self, prior: float) -> float:
        """What one more to the right adds, at least 0; `prior` is the guess before any."""
        over = self._together + _PRIOR_SPREAD * prior
        return max(0.0, over / (self._spread + _PRIOR_SPREAD))

    def at_zero(self, slope: float) -> float:
        """Where a line of this slope through the points begins."""
        return max(0.0, self._at_y - slope * self._at_x)

    def observe(self, x: float, y: float, weight: float) -> None:
        """One point more. A span of many tokens says more of their cost, not of its slope."""
        self._weight = self._weight * _KEEP + weight
        self._at_x += weight / self._weight * (x - self._at_x)
        self._at_y += weight / self._weight * (y - self._at_y)
        self._points = self._points * _KEEP + 1.0
        part = 1.0 / self._points
        off_x, off_y = x - self._mean_x, y - self._mean_y
        self._mean_x += part * off_x
        self._mean_y += part * off_y
        # Of the deviations, not their sums: so the prior counts as much at any time.
        self._spread += part * ((1 - part) * off_x * off_x - self._spread)
        self._together += part * ((1 - part) * off_x * off_y - self._together)


def _part(places: int) -> int:
    return max(1, places // _SLACK)
