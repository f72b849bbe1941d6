"""Until when a request may go whose answer comes in one piece: it is of use only if it is whole in
its time.

How long answers become is learnt, and how much longer they take than tokens usually do. Of two
answers one is longer than usual. So a request that has waited until only the shorter half would be
whole goes behind all that have more time, and is given up when not even those would be.

What was learnt may be wrong. So of each kind of answers whose lengths are learnt one at a time is
tried though it should not be whole. A trial that fails shows that the time it had was not enough:
for a while none of its kind is tried that has about as much or less. Those that have more still
are, so neither callers that allow too little nor callers that leave keep them out.
"""

import math
from typing import Final, NamedTuple

from batchedmodel_scheduling.batching.items import NEVER
from batchedmodel_scheduling.generation.at_server import Running
from batchedmodel_scheduling.generation.lengths import ByKind, OutputLengths
from batchedmodel_scheduling.generation.requests import GenerationRequest
from batchedmodel_scheduling.generation.token_costs import TokenCosts, quantile_after

TRIAL_PAUSE_SECONDS: Final = 10.0
"""From a trial that failed to the next one with as much time."""
_NEARLY_ALL_ITS_TIME: Final = 15 / 16
"""A request with such a part of its time left waits no more for the longest answers' sake: it has
waited for hardly anything, and its answer may well be short."""
_FEW_ANSWERS: Final = 8.0
"""While fewer were seen, half of a request's time counts as enough."""
_LONGER: Final = 1.25
"""What was not whole in time counts as if it needed so many times as much, at least."""
_LEAST_EXCESS: Final = 0.25
"""Of the usual time: the excess is learnt in steps as if it were no less."""


class BeginBy(NamedTuple):
    """Until when such a request may go."""

    surely: float
    """Until then nearly all lengths would be whole in time."""
    likely: float
    """Until then the mean length would."""


class _Trial(NamedTuple):
    """The last one of a kind: while it runs it stands for all of that kind."""

    until: float = NEVER
    """Until then it does."""
    seconds: float = NEVER
    """That were not enough."""

    def stands_for(self, request: GenerationRequest, now: float) -> bool:
        """Whether another one of its kind is not tried."""
        allowed = request.deadline - request.arrived
        return now < self.until and allowed < _LONGER * self.seconds


_ANY_TIME: Final = BeginBy(NEVER, NEVER)


class WholeAnswers:
    """What was learnt of them, and which of them are tried though they should not be whole.

    `limit` is how many run at the server at once.
    """

    def __init__(self, lengths: OutputLengths, costs: TokenCosts) -> None:
        self._lengths: Final = lengths
        self._costs: Final = costs
        self._excess = 0.0
        """Nearly all take at most so much longer than usual, as a part of that."""
        self._tried: Final[dict[int, GenerationRequest]] = {}
        """Those that wait or run."""
        self._trials: Final = ByKind[_Trial]()

    def takes(self, request: GenerationRequest, limit: int, now: float) -> bool:
        """Whether a request that comes now could be whole in time, or is tried."""
        if not request.whole or now <= self.begin_by(request, limit).likely:
            return True
        if now + self._least_seconds(request) > request.deadline:
            return False
        trial = self._trials.get(request.key, request.max_tokens)
        if trial is not None and trial.stands_for(request, now):
            return False
        self._tried[request.id] = request
        self._trials.put(request.key, request.max_tokens, _Trial())
        return True

    def begin_by(self, request: GenerationRequest, limit: int) -> BeginBy:
        """Until when it may go, as far as lengths and costs are known."""
        if not request.whole:
            return _ANY_TIME
        if request.id in self._tried:
            return BeginBy(request.deadline, request.deadline)
        needed = cautious = self._least_seconds(request)
        learnt = self._lengths.learnt(request.key, request.max_tokens)
        if learnt is not None and self._costs.learnt:
            allowed = request.deadline - request.arrived
            enough = _NEARLY_ALL_ITS_TIME * allowed
            usual = self._usual_seconds(request, learnt.mean, limit)
            most = self._usual_seconds(request, learnt.most, limit) * (1.0 + self._excess)
            likely = max(usual, min(usual * (1.0 + self._excess), enough))
            if learnt.answers < _FEW_ANSWERS:
                likely = min(likely, allowed / 2)
            needed = max(needed, likely)
            cautious = max(needed, min(most, enough))
        return BeginBy(request.deadline - cautious, request.deadline - needed)

    def gone(self, request_id: int) -> None:
        """A request does not go to the server."""
        if (request := self._tried.pop(request_id, None)) is not None:
            self._trials.discard(request.key, request.max_tokens)

    def ended(
        self, running: Running, now: float, limit: int, output_tokens: int | None
    ) -> int | None:
        """Learn from an answer of so many tokens; None: it failed, or was not there in time.

        Returns the tokens that were made of it in its time at the server; None where that is not
        known.
        """
        request, took = running.waiting.request, now - running.released_at
        self._end_trial(request, now, is_whole=output_tokens is not None)
        usual = self._lengths.mean(request.key, request.max_tokens)
        if output_tokens is not None:
            each = output_tokens / max(1, request.choices)
        elif now < request.deadline:
            return None  # it failed, or its caller left
        elif request.streams:
            each = (running.tokens + running.started) / max(1, request.choices)
            self._lengths.observe(request.key, request.max_tokens, max(usual, _LONGER * each))
        else:
            if took < (request.deadline - request.arrived) / 2:
                return None  # it went too late, which says nothing
            self._lengths.observe(request.key, request.max_tokens, usual)
            if self._costs.learnt and took < self._usual_seconds(request, usual, limit):
                return None  # it was known to take longer
            each = usual / _LONGER
        seconds = self._usual_seconds(request, each, limit)
        if seconds > 0:
            scale = max(self._excess, _LEAST_EXCESS)
            self._excess = quantile_after(self._excess, took / seconds - 1.0, scale)
        return math.ceil(each * request.choices)

    def _end_trial(self, request: GenerationRequest, now: float, *, is_whole: bool) -> None:
        if self._tried.pop(request.id, None) is None:
            return
        key, max_tokens = request.key, request.max_tokens
        if is_whole:
            self._trials.discard(key, max_tokens)
            self._lengths.forget(key, max_tokens)
            self._excess = 0.0
        else:
            had = now - request.arrived
            self._trials.put(key, max_tokens, _Trial(now + TRIAL_PAUSE_SECONDS, had))

    def _usual_seconds(self, request: GenerationRequest, tokens: float, limit: int) -> float:
        """From when it goes until all its choices have so many."""
        first = self._costs.first_token(request.there.prompt_tokens, limit)
        more = max(0.0, _rounds(request) * tokens - 1.0)
        return first + more * self._costs.usual_between_tokens

    def _least_seconds(self, request: GenerationRequest) -> float:
        """The same for what it has for certain, alone at the server."""
        return _rounds(request) * request.least_tokens * self._costs.least_between_tokens


def _rounds(request: GenerationRequest) -> int:
    """How many of its choices follow one another, as not all of them run at once."""
    return -(-request.choices // max(1, request.there.texts))
