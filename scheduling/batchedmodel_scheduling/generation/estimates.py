"""Estimates of texts: how long answers become, what they cost, when it is too late for them.

Lengths are learnt from answers that ended, by key and by what callers allow: of all tenants for
what a request costs, and of each tenant for when it is too late for one of its own.

A request whose answer comes in one piece is of use only if it is whole in its time. Of two answers
one is longer than usual. So a request that has waited until only the shorter half would be whole
goes behind all that have more time, and is given up when not even those would be.

What was learnt may be wrong. So it keeps no request from a free place, nor the only one of its
tenant from its turn: these are tried, and only what is certain of them counts.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple

from batchedmodel_scheduling.generation.at_server import Running
from batchedmodel_scheduling.generation.requests import GenerationRequest, Waiting
from batchedmodel_scheduling.generation.token_costs import TokenCosts
from batchedmodel_scheduling.queue.items import NEVER

_NEARLY_ALL_ITS_TIME: Final = 15 / 16
"""A request with such a part of its time left waits no more for the longest answers' sake: it has
waited for hardly anything, and its answer may well be short."""
_LONGER: Final = 1.25
"""What was not whole in time counts as if it needed so many times as much, at least."""
_MOST_DEVIATIONS: Final = 2.0
"""Nearly all answers are longer than the mean by at most so many standard deviations."""
_PRIOR_TOKENS: Final = 256
"""That are expected of an answer of which nothing is known, unless fewer are allowed."""
_PRIOR_ANSWERS: Final = 4.0
"""What is expected of nothing counts as so many answers."""
_MEMORY: Final = 200.0
"""Answers that count."""
_MOST_KINDS: Final = 1024
_NEWEST: Final = 0.05
_OFTEN: Final = 0.95
"""So many of all first tokens take at most what is noted of the excess."""


class BeginBy(NamedTuple):
    """Until when such a request may go."""

    surely: float
    """Until then nearly all lengths would be whole in time."""
    likely: float
    """Until then the mean length would."""


_ANY_TIME: Final = BeginBy(NEVER, NEVER)


_KindName = tuple[Hashable, int, str | None]


@dataclass(slots=True)
class _Kind:
    """Answers of a key, of one tenant or of all, whose callers allow about as many tokens."""

    answers: float = 0.0
    mean: float = 0.0
    square: float = 0.0
    """The mean of the squares."""

    def observe(self, tokens: float) -> None:
        """An answer of so many tokens ended."""
        self.answers += 1.0
        part = 1.0 / min(self.answers, _MEMORY)
        self.mean += part * (tokens - self.mean)
        self.square += part * (tokens * tokens - self.square)

    @property
    def most(self) -> float:
        """Nearly all are at most so long."""
        return self.mean + _MOST_DEVIATIONS * math.sqrt(max(0.0, self.square - self.mean**2))


class Estimates:
    """What requests cost, and when it is too late for them, by all that was learnt."""

    def __init__(self, costs: TokenCosts) -> None:
        self._costs: Final = costs
        self._kinds: Final[dict[_KindName, _Kind]] = {}
        """The one of which an answer ended last is last."""
        self._excess = 0.0
        """By what part of the usual time nearly all first tokens take longer, lately."""

    def tokens(self, request: GenerationRequest) -> float:
        """Expected tokens of each choice."""
        prior = _allowed(request, float(_PRIOR_TOKENS))
        kind = self._kinds.get(_kind_of(request, None))
        if kind is None:
            return prior
        kept = _PRIOR_ANSWERS * max(0.0, 1.0 - kind.answers / _MEMORY)
        mean = (kept * prior + kind.answers * kind.mean) / (kept + kind.answers)
        return _allowed(request, mean)

    def work(self, request: GenerationRequest) -> float:
        """Device seconds that a request is expected to cost."""
        return self._costs.work(request.prompt_tokens, self.tokens(request) * request.choices)

    def cost(self, running: Running, output_tokens: int | None) -> float:
        """Device seconds of an ended request; of one without a known end, as far as known."""
        if output_tokens is None and not running.waiting.request.streams:
            return running.waiting.work
        output = running.tokens + running.started if output_tokens is None else output_tokens
        return self._costs.work(running.read_tokens, output)

    def learn_length(self, request: GenerationRequest, output_tokens: int) -> None:
        """All choices of a request together became so long."""
        self._observe(request, output_tokens / max(1, request.choices))

    def saw_first_token(self, running: Running, now: float) -> None:
        """The first token of a released request came."""
        prompt = max(0, running.waiting.request.there.prompt_tokens - running.cached)
        if (usual := self._costs.first_token(prompt)) <= 0:
            return
        # Up by much where it is passed, and down by little where not.
        passed = (now - running.released_at) / usual - 1.0 > self._excess
        step = _NEWEST * max(self._excess, 1.0) * (_OFTEN if passed else _OFTEN - 1.0)
        self._excess = max(0.0, self._excess + step)

    def late_from(self, waiting: Waiting) -> float:
        """When it is too late for it to go: its first token would miss the target.

        Not before half of the target, so that a wrong guess keeps no request from a free server.
        """
        if waiting.due == NEVER:
            return NEVER
        usual = self._costs.first_token(waiting.request.there.prompt_tokens)
        first = usual * (1.0 + self._excess)
        return waiting.due - min(first, (waiting.due - waiting.request.arrived) / 2)

    def begin_by(self, waiting: Waiting) -> BeginBy:
        """Until when it may go, as far as lengths and costs are known."""
        request = waiting.request
        if not request.whole:
            return _ANY_TIME
        kind = self._kinds.get(_kind_of(request, request.share.tenant))
        needed = cautious = self._least_seconds(request)
        if kind is not None and self._costs.learnt and not waiting.tried:
            enough = _NEARLY_ALL_ITS_TIME * (request.deadline - request.arrived)
            needed = max(needed, self._usual_seconds(request, _allowed(request, kind.mean)))
            most = self._usual_seconds(request, _allowed(request, kind.most))
            cautious = max(needed, min(most, enough))
        return BeginBy(request.deadline - cautious, request.deadline - needed)

    def whole_ended(self, running: Running, now: float, output_tokens: int | None) -> int | None:
        """Learn from an answer in one piece; None: it failed, or was not there in time.

        Returns the tokens that were made of it in its time at the server; None where that is not
        known.
        """
        request, took = running.waiting.request, now - running.released_at
        usual = self.tokens(request)
        if output_tokens is not None:
            each = output_tokens / max(1, request.choices)
        elif now < request.deadline:
            return None  # it failed, or its caller left
        elif request.streams:
            each = (running.tokens + running.started) / max(1, request.choices)
            self._observe(request, max(usual, _LONGER * each))
        else:
            if took < (request.deadline - request.arrived) / 2:
                return None  # it went too late, which says nothing
            self._observe(request, usual)
            if self._costs.learnt and took < self._usual_seconds(request, usual):
                return None  # it was known to take longer
            each = usual / _LONGER
        return math.ceil(each * request.choices)

    def _observe(self, request: GenerationRequest, tokens: float) -> None:
        for name in (_kind_of(request, None), _kind_of(request, request.share.tenant)):
            kind = self._kinds.pop(name, None) or _Kind()
            if len(self._kinds) >= _MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
            self._kinds[name] = kind
            kind.observe(tokens)

    def _usual_seconds(self, request: GenerationRequest, tokens: float) -> float:
        """From when it goes until all its choices have so many."""
        first = self._costs.first_token(request.there.prompt_tokens)
        more = max(0.0, _rounds(request) * tokens - 1.0)
        return first + more * self._costs.between_tokens

    def _least_seconds(self, request: GenerationRequest) -> float:
        """The same for what it has for certain, alone at the server."""
        return _rounds(request) * request.least_tokens * self._costs.least_between_tokens


def _kind_of(request: GenerationRequest, tenant: str | None) -> _KindName:
    """By its key, and by how many tokens are allowed, by powers of two; None: of all tenants."""
    allowed = request.max_tokens
    return request.key, -1 if allowed is None else min(24, max(0, allowed).bit_length()), tenant


def _allowed(request: GenerationRequest, tokens: float) -> float:
    """So many tokens, or as many as its caller allows."""
    return tokens if request.max_tokens is None else min(tokens, float(max(0, request.max_tokens)))


def _rounds(request: GenerationRequest) -> int:
    """How many of its choices follow one another, as not all of them run at once."""
    return -(-request.choices // max(1, request.there.texts))
