"""Whether one more request may go to the server: to a place, and not to a queue there.

The server takes who comes first. So while somebody uses little beside others, a few places are kept
for such, and long prompts go one after the other.
"""

from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.core.policy import NEVER
from batchedmodel_scheduling.generation.at_server import AtServer
from batchedmodel_scheduling.generation.concurrency import Concurrency
from batchedmodel_scheduling.generation.costs import Costs
from batchedmodel_scheduling.generation.fair_turns import FairTurns
from batchedmodel_scheduling.generation.requests import GenerationRequest

_MOSTLY: Final = 4
"""A server with at most a part of this of its limit has room for whatever comes."""
_SHARED: Final = 60.0
"""Seconds after a request of somebody who uses little, for which the server counts as shared."""
_LITTLE: Final = 0.5
"""Of its part of the places: a tenant with less uses little."""
_READING_SHARED: Final = 0.5
_READING: Final = 1.5
"""Times between tokens: while prompts that the server has not read take longer, no long one is
added, so that what comes next waits behind few of them."""
_SHORT: Final = 4
"""A prompt of at most a part of this of what may be read is not held back."""


class Places:
    """The places at the server, and for whom they are."""

    def __init__(
        self, concurrency: Concurrency, server: AtServer, costs: Costs, turns: FairTurns
    ) -> None:
        self._concurrency: Final = concurrency
        self._server: Final = server
        self._costs: Final = costs
        self._turns: Final = turns
        self._shared_until = -NEVER

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

    def came(self, share: Share, now: float) -> None:
        """A request of this tenant came."""
        if self._has_at_most(_LITTLE, share):
            self._shared_until = now + _SHARED
        self._concurrency.share(now < self._shared_until)

    def counted(self, request: GenerationRequest) -> int:
        """Places that a request takes which goes now: one for each choice, as far as there are any.

        So no number of choices takes what is kept for others. A server may not even make them.
        """
        return min(request.choices, max(1, self._concurrency.limit - self.taken))

    def free_for(self, request: GenerationRequest) -> bool:
        """Whether it takes no place that is kept for others, nor lets them wait there."""
        if self._concurrency.given is not None or not len(self._server):
            return True
        if self.taken >= self._concurrency.limit and not self._has_at_most(1.0, request.share):
            return False
        most = _READING_SHARED if self._concurrency.shared else _READING
        most *= self._concurrency.reading * self._costs.usual_between_tokens
        prompt = self._costs.prompt_token(self._concurrency.limit) * request.prompt_tokens
        return prompt <= most / _SHORT or self._server.reading_seconds < most

    def _has_at_most(self, much: float, share: Share) -> bool:
        """Whether a tenant, with one place more, has so much of those that are its part.

        A tenant that is alone has no part.
        """
        limit = self._concurrency.limit
        part = self._turns.places(share, limit)
        return part < limit and self._turns.running(share) + 1 <= much * part
