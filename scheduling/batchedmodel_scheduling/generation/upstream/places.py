"""Whether one more request may go to the server: to a place, and not to a queue there.

The server takes who comes first. So while somebody uses little beside others, a few places are kept
for such. Long prompts go as often as the server can do such requests, and evenly: so two of its
steps in a row have few of them.
"""

from collections.abc import Hashable
from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.batching.items import NEVER
from batchedmodel_scheduling.generation.at_server import AtServer, Load
from batchedmodel_scheduling.generation.fair_turns import FairTurns
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    EngineView,
    GenerationRequest,
    Waiting,
)
from batchedmodel_scheduling.generation.room import Room
from batchedmodel_scheduling.generation.upstream.concurrency import Concurrency
from batchedmodel_scheduling.generation.upstream.costs import Costs

_MOSTLY: Final = 4
"""A server with at most a part of this of its limit has room for whatever comes."""
_SHARED: Final = 10.0
"""Seconds after a request of somebody who uses little, for which the server counts as shared."""
_LITTLE: Final = 0.5
"""Of its part of the places: a tenant with less uses little."""
_UNREAD: Final = 2.0
"""Times between tokens: while prompts that the server has not read take longer, no long one is
added, so that what comes next waits behind few of them."""
_UNREAD_SHARED: Final = 1.25
"""The same while it is shared, with the prompt that is added."""
_STEPS_UNSEEN: Final = 2.0
"""Times between tokens, at most, from one long prompt to the next where answers do not stream."""
_LONG: Final = 0.375
_LONG_SHARED: Final = 0.125
"""Times between tokens: a prompt that takes less is not held back."""
_PASSED: Final = 32


class Places(Room):
    """The places at the server, and for whom they are."""

    passes = _PASSED

    def __init__(
        self, concurrency: Concurrency, server: AtServer, costs: Costs, turns: FairTurns
    ) -> None:
        self._concurrency: Final = concurrency
        self._server: Final = server
        self._costs: Final = costs
        self._turns: Final = turns
        self._little: str | None = None
        """Who used little of the server last, and until when that counts."""
        self._little_until = self._shared_until = -NEVER
        self._long_at = -NEVER
        """When the next long prompt may go while the server is shared."""
        self._long_seen = True
        """Whether the last one's first token shows that it was read."""

    @property
    def taken(self) -> int:
        """Places in use: of requests where their number is given, otherwise of choices."""
        if self._concurrency.given is not None:
            return len(self._server)
        return self._server.sequences

    @property
    def any_free(self) -> bool:
        """Whether there is a place for somebody."""
        return self.taken < self._concurrency.limit + self._concurrency.reserve

    @property
    def mostly_free(self) -> bool:
        """Whether the server has room for whatever comes."""
        return self.taken * _MOSTLY <= self._concurrency.limit

    @property
    def wanted(self) -> bool:
        """Whether more would go if there were more places."""
        return bool(self._turns) and self.taken >= self._concurrency.limit

    @property
    def limit(self) -> int:
        """Requests that are at the server at once, at most; where it is learnt, their choices."""
        return self._concurrency.limit

    @property
    def looks(self) -> bool:
        """Its limit is learnt from what the server does."""
        return self._concurrency.given is None

    def came(self, share: Share, now: float) -> None:
        """A request of this tenant came."""
        if share.tenant != self._little and now < self._little_until:
            self._shared_until = now + _SHARED
        part = self._turns.places(share, self._concurrency.limit)
        if self._turns.running(share) + 1 <= _LITTLE * part:
            self._little, self._little_until = share.tenant, now + _SHARED
        self._share(now)

    def looked(self, load: Load, now: float, *, pressed: bool) -> None:
        """The server did so much in a span in which others waited, if `pressed`."""
        self._share(now)
        costs, limit = self._costs, self.limit
        costs.saw(load, limit, full=pressed)
        self._concurrency.look(
            load,
            pressed=pressed,
            token=costs.token_seconds,
            first_token=costs.first_token(0, limit),
            prompts=load.prompt_tokens * costs.prompt_token(limit) / load.seconds,
            now=now,
        )

    def saw(self, view: EngineView, now: float) -> None:
        """The server's own gauges."""
        self._concurrency.saw(view, now)

    def refused(self, key: Hashable, now: float) -> None:
        """The server refused a request that it was sent."""
        self._concurrency.refused(key, self.taken + 1, now)

    def configure(self, settings: AdmissionSettings) -> None:
        """Use other settings from now on."""
        self._concurrency.configure(settings.max_concurrent_requests, settings.token_seconds)

    def _share(self, now: float) -> None:
        """Time has passed: whoever used little may not have come for long."""
        self._concurrency.share(now < self._shared_until)

    def released(self, waiting: Waiting, now: float) -> None:
        """It goes to the server."""
        if self._concurrency.shared and self._is_long(waiting.request):
            self._long_seen = waiting.request.streams
            interval = self._costs.wait(waiting.work)
            if not self._long_seen:
                # Nothing shows whether that is guessed too high: one in so many steps is no harm.
                interval = min(interval, _STEPS_UNSEEN * self._costs.usual_between_tokens)
            self._long_at = now + interval

    def counted(self, request: GenerationRequest) -> int:
        """Places that a request takes which goes now: one for each choice, as far as there are any.

        So no number of choices takes what is kept for others. A server may not even make them.
        """
        return min(request.choices, max(1, self._concurrency.limit - self.taken))

    def free_for(self, request: GenerationRequest, now: float) -> bool:
        """Whether it takes no place that is kept for others, nor lets them wait there."""
        if self._concurrency.given is not None or not len(self._server):
            return True
        if self.taken >= self._concurrency.limit and not self._has_at_most(1.0, request.share):
            return False
        unread = self._server.reading_seconds
        if not self._is_long(request):
            return True
        between = self._costs.usual_between_tokens
        if not self._concurrency.shared:
            return not unread or unread < _UNREAD * self._concurrency.reading * between
        if not unread:
            return self._long_seen or now >= self._long_at
        unread += self._prompt_seconds(request)
        return now >= self._long_at and unread <= _UNREAD_SHARED * between

    def next_event(self, now: float) -> float:
        """When a long prompt may go that waits for its turn."""
        return self._long_at if now < self._long_at else NEVER

    def _is_long(self, request: GenerationRequest) -> bool:
        """Whether others notice when the server reads its prompt."""
        long = _LONG_SHARED if self._concurrency.shared else _LONG * self._concurrency.reading
        return self._prompt_seconds(request) > long * self._costs.usual_between_tokens

    def _prompt_seconds(self, request: GenerationRequest) -> float:
        return self._costs.prompt_token(self._concurrency.limit) * request.prompt_tokens

    def _has_at_most(self, much: float, share: Share) -> bool:
        """Whether a tenant, with one place more, has so much of those that are its part.

        A tenant that is alone has no part.
        """
        limit = self._concurrency.limit
        part = self._turns.places(share, limit)
        return part < limit and self._turns.running(share) + 1 <= much * part
