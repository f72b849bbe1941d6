"""How many sequences the server should have at once: given, or learnt.

As many as it runs, and a few that wait there, so that it fills a free place at its next step. While
somebody uses little beside others it is a few less, which are kept for such.

What waits there is told by its gauges, or shown by streams whose first tokens are overdue. Where
neither can be seen, the number climbs while more of them complete more.
"""

from collections.abc import Hashable
from typing import Final

from batchedmodel_scheduling.batching.items import NEVER
from batchedmodel_scheduling.generation.at_server import Load
from batchedmodel_scheduling.generation.requests import EngineView
from batchedmodel_scheduling.generation.upstream.climb import Climb

_FIRST: Final = 16
_MOST: Final = 4096
_GROWTH: Final = 8
"""It grows by an eighth."""
_FIRST_GROWTH: Final = 2
"""It doubles until it was too much once, or did not grow for so many seconds though more came."""
_DOUBLED_FOR: Final = 5.0
_SLACK: Final = 16
_RESERVE: Final = 16
_GROW_AFTER: Final = 1.0
_PAUSE: Final = 4.0
"""So many times longer it does not grow after it shrank, and twice as long each time that it was
right before."""
_LONGEST_PAUSE: Final = 32.0
_SLOW_FOR: Final = 1.0
_NEAR: Final = 0.9
_CACHE_FULL: Final = 0.95
_VIEW_HOLDS: Final = 5.0
"""Seconds for which gauges count."""
_REFUSALS_HOLD: Final = 10.0
_VIEWS: Final = 3
_MUCH_READING: Final = 0.2
_LESS_READING: Final = 0.7
_MORE_READING: Final = 1.02
_LEAST_READING: Final = 0.7
_FORGOTTEN: Final = 120.0
"""Seconds in which it is forgotten that more ran there."""
_KEYS: Final = 64
_KNEE_HOLDS: Final = 60.0
_BINDING: Final = 0.75
"""Of the limit: with less at the server it is not the limit that has others wait there."""
_FULL_HOLDS: Final = 120.0
"""Seconds after which more are tried at a server that is shared: that costs who uses little."""
_LOOK_AFTER: Final = 0.2
"""Seconds until gauges show what changed."""
_AVERAGED: Final = 0.75
"""Seconds of which streams show what waits at the server."""
_PLATEAU: Final = 20.0
"""Seconds until it is tried again whether more help."""


class Concurrency:
    """The limit in force."""

    def __init__(self, given: int | None = None, token_target: float | None = None) -> None:
        self.given = given
        self.limit = _FIRST if given is None else max(1, given)
        self._token_target = token_target
        self._grow_at = 0.0
        self._slow_since = NEVER
        self._views: list[EngineView] = []
        """Of its gauges, the last ones."""
        self._viewed_at = -NEVER
        self.shared = False
        """Whether somebody uses little of it beside others."""
        self._runs = 0
        """So many ran there when others waited there last."""
        self._queued = 0.0
        """At the server, as streams show it."""
        self.reading = 1.0
        """Of the prompts that may wait to be read there, so much may: less where they are in each
        other's way."""
        self._most_there = 0.0
        """So many ran there at once not long ago."""
        self._pause = _PAUSE
        self._knee = 0
        """What it shrank to last, because more only waited there."""
        self._knee_at = -NEVER
        self._grown_at = -NEVER
        self._refusing: Final[dict[Hashable, float]] = {}
        self._shrunk_at = -NEVER
        self._doubles = True
        """Nothing has shown yet about how many run there."""
        self._climb: Final = Climb(_FIRST)

    def configure(self, given: int | None, token_target: float | None) -> None:
        """Use other settings from now on; what was learnt stays."""
        if given is not None:
            self.limit = max(1, given)
        self.given, self._token_target = given, token_target

    @property
    def reserve(self) -> int:
        """Places beside the limit for tenants who use little, while there are such."""
        return _kept(self.limit) if self.shared and self.given is None else 0

    def share(self, shared: bool) -> None:
        """Whether somebody uses little of it beside others, from now on."""
        known = self.given is None and self.limit <= self._runs + 2 * self._slack(self._runs)
        if shared and not self.shared and known:
            self.limit = min(self.limit, max(1, self._runs - _kept(self._runs)))
        self.shared = shared

    def saw(self, view: EngineView, now: float) -> None:
        """The server's gauges were read."""
        if now - self._viewed_at > _VIEW_HOLDS:
            self._views.clear()
        self._views = [*self._views[1 - _VIEWS :], view]
        self._viewed_at = now
        if self.given is not None or len(self._views) < _VIEWS:
            return
        # What waits for one step only is on its way to a place.
        waiting = min([0 if view.waiting is None else view.waiting for view in self._views])
        running = max([0 if view.running is None else view.running for view in self._views])
        least = min([(view.running or 0) + (view.waiting or 0) for view in self._views])
        if least < _BINDING * self.limit and waiting <= running:
            return  # it is not this limit that lets them wait: they join at the next step
        if running and waiting > self._slack(running):
            self._found(running, now, _GROW_AFTER)
            self._views.clear()

    def refused(self, key: Hashable, taken: int, now: float) -> None:
        """The server refused a request for this key. If it refuses several, it is full."""
        self._refusing.pop(key, None)
        self._refusing[key] = now
        while len(self._refusing) > _KEYS or now - next(iter(self._refusing.values())) > (
            _REFUSALS_HOLD
        ):
            del self._refusing[next(iter(self._refusing))]
        if self.given is not None or len(self._refusing) < 2 or now - self._shrunk_at < _GROW_AFTER:
            return
        self._refusing.clear()
        self._shrink_to(_less(min(self.limit, max(1, taken))), now, _GROW_AFTER)

    def look(
        self,
        load: Load,
        *,
        pressed: bool,
        token: float | None,
        first_token: float,
        prompts: float,
        now: float,
    ) -> None:
        """Learn from a span of time.

        `pressed`: the server had as many as it should, and others waited here. `token` and
        `first_token`: seconds between two tokens, and until a first token, usually. `prompts`: the
        part of its time that the server spent on prompts.
        """
        if self.given is not None:
            return
        interval = max(_GROW_AFTER, first_token)
        if self._too_slow(token, now):
            self._slow_since = now
            self._shrink_to(_less(self.limit), now, interval)
            return
        view = self._newest(now)
        if view is not None and view.waiting is not None:
            # Not twice by the same look at them.
            if self._viewed_at <= self._grown_at + _LOOK_AFTER:
                return
            if view.waiting <= self._slack(self.limit) / 2:
                self._grow(pressed, token, interval, now)
            elif pressed and -NEVER < self._grown_at < now - _DOUBLED_FOR:
                self._doubles = False  # joiners of a step would have let it grow meanwhile
        elif load.streams > 0 and load.streams >= load.taken / 8:
            self._look_at_streams(load, pressed, token, prompts, interval, now)
        elif pressed:
            if now >= self._grow_at or self._climb.measures:
                self._climb_on(load, token, now)
        else:
            self._climb.forget()

    def _look_at_streams(
        self,
        load: Load,
        pressed: bool,
        token: float | None,
        prompts: float,
        interval: float,
        now: float,
    ) -> None:
        queued = load.streams - load.generating - load.reading
        self._queued += min(1.0, load.seconds / _AVERAGED) * (queued - self._queued)
        scale = load.taken / load.streams
        slack = self._slack(load.taken)
        # What starts with one step may be a wrong guess of how long that takes.
        step = load.started / load.seconds * (token or 0.0) * scale
        # Of those whose prompts should be read by now only what starts with a step surely runs.
        there = load.generating * scale + min(load.reading * scale, step)
        queued = self._queued * scale
        self._most_there = max(there, self._most_there - load.seconds / _FORGOTTEN * self.limit)
        if queued > slack + step or load.overdue > max(1.0, load.taken / 32):
            self._queued = 0.0
            if prompts > _MUCH_READING and self.reading > _LEAST_READING and not self.shared:
                self.reading *= _LESS_READING
                return
            if self.shared and self.limit < self._runs:
                return  # there are places: it waits for prompts
            # It ran more not long ago, so what waits there waits for something else than a place.
            self._found(round(max(there, self._most_there)), now, interval)
            return
        self.reading = min(1.0, self.reading * _MORE_READING)
        if queued <= max(slack / 2, 0.0 if self._near_knee(now) else step):
            self._grow(pressed, token, interval, now)

    def _found(self, running: int, now: float, interval: float) -> None:
        """So many run, and others wait there."""
        self._runs = running
        more = -_kept(running) if self.shared else self._slack(running)
        limit = max(1, running + more)
        if limit >= self.limit:
            self._grow_at = max(self._grow_at, now + interval)
            return
        as_before = abs(limit - self._knee) * _GROWTH <= limit
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause) if as_before else _PAUSE
        self._knee, self._knee_at = limit, now
        self._shrink_to(limit, now, interval)

    def _newest(self, now: float) -> EngineView | None:
        return self._views[-1] if self._views and now - self._viewed_at < _VIEW_HOLDS else None

    def _near_knee(self, now: float) -> bool:
        """Whether this was about too much not long ago."""
        near = abs(self.limit - self._knee) * _GROWTH <= self.limit
        return near and now < self._knee_at + _KNEE_HOLDS

    def _slack(self, running: float) -> int:
        return 1 if self.shared else max(1, round(running / _SLACK))

    def _climb_on(self, load: Load, token: float | None, now: float) -> None:
        verdict = self._climb.look(load, self.limit)
        if verdict is None:
            return
        if not verdict:
            self._grow_at = now + _PLATEAU
            self.limit = self._climb.before
            self._climb.forget()
        elif self._may_grow(token, now):
            self._climb.before = self.limit
            self.limit = _more(self.limit)

    def _may_grow(self, token: float | None, now: float) -> bool:
        view = self._newest(now)
        if view is not None and view.cache_usage is not None and view.cache_usage > _CACHE_FULL:
            return False
        target = self._token_target
        return target is None or token is None or token <= _NEAR * target

    def _grow(self, pressed: bool, token: float | None, interval: float, now: float) -> None:
        full = self.limit >= self._runs - _kept(self._runs)
        if self.shared and full and now < self._knee_at + _FULL_HOLDS:
            return  # more would wait in front of those for whom places are kept
        if pressed and now >= self._grow_at and self._may_grow(token, now):
            # In small steps where it was too much the last time.
            near = abs(self.limit - self._knee) * _GROWTH <= self.limit or (self.shared and full)
            more = self.limit + self._slack(self.limit) if near else _more(self.limit)
            if self._doubles:
                more = self.limit * _FIRST_GROWTH
            self.limit = min(_MOST, more)
            self._grown_at, self._grow_at = now, now + interval

    def _shrink_to(self, limit: int, now: float, interval: float) -> None:
        self._grow_at = max(self._grow_at, now + self._pause * interval)
        if limit < self.limit:
            self.limit = max(1, limit)
            self._shrunk_at = now
            self._doubles = False

    def _too_slow(self, token: float | None, now: float) -> bool:
        """Whether tokens have come slower than they should for a while."""
        if self._token_target is None or token is None or token <= self._token_target:
            self._slow_since = NEVER
            return False
        self._slow_since = min(self._slow_since, now)
        return now - self._slow_since >= _SLOW_FOR


def _kept(places: int) -> int:
    return max(1, places // _RESERVE)


def _more(limit: int) -> int:
    return min(_MOST, limit + max(1, limit // _GROWTH))


def _less(limit: int) -> int:
    return max(1, min(limit - 1, limit * 9 // 10))
