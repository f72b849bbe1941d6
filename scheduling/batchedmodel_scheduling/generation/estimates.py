"""Estimates of texts: how long answers become, what tokens cost an engine, when it is too late.

Lengths are learnt from answers that ended, by key and by what callers allow.

A request whose answer comes in one piece is of use only if it is whole in its time. Of two answers
one is longer than usual. So a request that has waited until only the shorter half would be whole
goes behind all that have more time, and is given up when not even those would be.

What was learnt may be wrong. So of each kind of answers whose lengths are learnt one at a time is
tried though it should not be whole. A trial that fails shows that the time it had was not enough:
for a while none of its kind is tried that has about as much or less. Those that have more still
are, so neither callers that allow too little nor callers that leave keep them out.
"""

import math
from abc import abstractmethod
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.batching.items import NEVER
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    EngineView,
    GenerationRequest,
    Load,
    Running,
    Waiting,
)

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
_PRIOR_TOKENS: Final = 256
"""That are expected of an answer of which nothing is known, unless fewer are allowed."""
_PRIOR_WEIGHT: Final = 4.0
_KEEP: Final = 1.0 - 1.0 / 200
_MOST_KEYS: Final = 64
_MOST_DEVIATIONS: Final = 2.0
"""Nearly all answers are longer than the mean by at most so many standard deviations."""
_NEWEST: Final = 0.05
_OFTEN: Final = 0.95
"""So many of all first tokens come within the cautious time."""
_SLOWEST: Final = 0.25
_FASTEST: Final = 4.0
Value = TypeVar("Value")


class Capacity:
    """How many more requests an engine runs at once, and what their tokens cost it.

    Costs are in seconds of the device. Events that teach nothing are not heard.
    """

    def __init__(self) -> None:
        self._excess = 0.0
        """Nearly all first tokens take at most so much longer than usual, lately: in seconds, or as
        a part of the usual time."""
        self._pace = 1.0
        """Seconds of work that are done in a second while requests wait."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """What is at the server at once, at most."""

    @property
    @abstractmethod
    def any_free(self) -> bool:
        """Whether there is room for another request, as far as is known without one."""

    @property
    def asks(self) -> bool:
        """Whether to ask for whom there is room: whose turn it is may not be the only one."""
        return self.any_free

    @property
    @abstractmethod
    def mostly_free(self) -> bool:
        """Whether nothing that comes waits there, so that first tokens show how long they take."""

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """Whether more would go if there were more room."""

    @property
    def looks(self) -> bool:
        """Whether to ask again soon though nothing happens, while a request waits."""
        return False

    @abstractmethod
    def free_for(self, request: GenerationRequest, now: float) -> bool:
        """Whether it may go, where `asks`."""

    @abstractmethod
    def counted(self, request: GenerationRequest) -> int:
        """Sequences that a request counts as which goes now."""

    @abstractmethod
    def configure(self, settings: AdmissionSettings) -> None:
        """Use other settings from now on."""

    @abstractmethod
    def saw(self, view: EngineView, now: float) -> None:
        """The server told of itself."""

    def came(self, share: Share, now: float) -> None:
        """A request of this tenant came."""

    def released(self, waiting: Waiting, now: float) -> None:
        """It goes to the server."""

    def looked(self, load: Load, now: float, *, pressed: bool) -> None:
        """The server did so much in a span of time; `pressed`: meanwhile others waited here."""

    @property
    def learnt(self) -> bool:
        """Whether anything is known of what tokens cost."""
        return True

    @property
    @abstractmethod
    def usual_between_tokens(self) -> float:
        """Seconds between two tokens of a stream."""

    @property
    def least_between_tokens(self) -> float:
        """The same at best."""
        return self.usual_between_tokens

    @property
    @abstractmethod
    def output_token(self) -> float:
        """Device seconds of a token of output, where all places are taken."""

    @property
    @abstractmethod
    def prompt_token(self) -> float:
        """Device seconds of a token of a prompt."""

    @abstractmethod
    def first_token(self, prompt_tokens: int) -> float:
        """Seconds until a first token on a server with room."""

    def cautious_first_token(self, prompt_tokens: int) -> float:
        """Seconds within which nearly all such first tokens come, as the server is at present."""
        return self.first_token(prompt_tokens) + self._excess

    @abstractmethod
    def saw_first_token(self, prompt_tokens: int, seconds: float, *, room: bool) -> None:
        """A first token took so long. Without room on the server it only shows how fast it is."""

    def work(self, prompt_tokens: int, output_tokens: float) -> float:
        """Device seconds of a request."""
        return self.prompt_token * prompt_tokens + self.output_token * output_tokens

    def wait(self, work: float) -> float:
        """Seconds until so much work is done."""
        return work / self._pace

    def saw_pace(self, work: float, seconds: float) -> None:
        """So much work was done in a span in which requests waited throughout."""
        if work > 0:
            pace = min(_FASTEST, max(_SLOWEST, work / seconds))
            self._pace += _NEWEST * (pace - self._pace)

    def _saw_excess(self, over: float, usual: float) -> None:
        """A first token took so much longer than the usual time."""
        self._excess = _quantile_after(self._excess, over, max(self._excess, usual, 0.001))


class ByKind(Generic[Value]):
    """Something of each kind of answers: those of a key whose callers allow about as many tokens.

    It is kept of so many keys at most: the one of which nothing was put for longest goes.
    """

    def __init__(self, keys: int = _MOST_KEYS) -> None:
        self._most: Final = keys
        self._by_key: Final[dict[Hashable, dict[int, Value]]] = {}

    def __len__(self) -> int:
        """How many keys are known."""
        return len(self._by_key)

    def get(self, key: Hashable, max_tokens: int | None) -> Value | None:
        """Nothing is put by that."""
        of_key = self._by_key.get(key)
        return None if of_key is None else of_key.get(_allowed_class(max_tokens))

    def put(self, key: Hashable, max_tokens: int | None, value: Value) -> None:
        """In place of what was there."""
        of_key = self._by_key.pop(key, None)
        if of_key is None:
            of_key = {}
            if len(self._by_key) >= self._most:
                del self._by_key[next(iter(self._by_key))]
        of_key[_allowed_class(max_tokens)] = value
        self._by_key[key] = of_key

    def discard(self, key: Hashable, max_tokens: int | None) -> None:
        """Where nothing is there that changes nothing."""
        of_key = self._by_key.get(key)
        if of_key is not None:
            of_key.pop(_allowed_class(max_tokens), None)


class LearntLength(NamedTuple):
    """How long answers of one kind became, without any guess."""

    answers: float
    """That ended, by how much they count."""
    mean: float
    most: float
    """Nearly all are at most so long."""


class _Lengths:
    """Lengths of one key and one class of what is allowed."""

    __slots__ = ("_squares", "_sum", "_weight")

    def __init__(self) -> None:
        self._sum = self._squares = self._weight = 0.0

    def observe(self, tokens: float) -> None:
        self._sum = self._sum * _KEEP + tokens
        self._squares = self._squares * _KEEP + tokens * tokens
        self._weight = self._weight * _KEEP + 1.0

    def learnt(self) -> LearntLength:
        mean = self._sum / self._weight
        deviation = math.sqrt(max(0.0, self._squares / self._weight - mean * mean))
        return LearntLength(self._weight, mean, mean + _MOST_DEVIATIONS * deviation)

    def mean(self, prior: float) -> float:
        # What was expected before is forgotten as well, but counts as a few until many were seen.
        kept = _PRIOR_WEIGHT * max(0.0, 1.0 - self._weight * (1.0 - _KEEP))
        return (kept * prior + self._sum) / (kept + self._weight)


class OutputLengths:
    """Tokens of an answer, by the key that was asked and the tokens that were allowed."""

    def __init__(self) -> None:
        self._by_kind: Final = ByKind[_Lengths]()

    def __len__(self) -> int:
        """How many keys are known."""
        return len(self._by_kind)

    def observe(self, key: Hashable, max_tokens: int | None, tokens: float) -> None:
        """An answer of so many tokens ended."""
        lengths = self._by_kind.get(key, max_tokens) or _Lengths()
        lengths.observe(max(0.0, tokens))
        self._by_kind.put(key, max_tokens, lengths)

    def mean(self, key: Hashable, max_tokens: int | None) -> float:
        """Expected tokens of an answer."""
        prior = _prior(max_tokens)
        lengths = self._by_kind.get(key, max_tokens)
        return prior if lengths is None else _bounded(lengths.mean(prior), max_tokens)

    def learnt(self, key: Hashable, max_tokens: int | None) -> LearntLength | None:
        """What ended answers show; None where there were none."""
        lengths = self._by_kind.get(key, max_tokens)
        if lengths is None:
            return None
        answers, mean, most = lengths.learnt()
        return LearntLength(answers, _bounded(mean, max_tokens), _bounded(most, max_tokens))

    def forget(self, key: Hashable, max_tokens: int | None) -> None:
        """What was learnt of this kind was wrong."""
        self._by_kind.discard(key, max_tokens)


def _allowed_class(max_tokens: int | None) -> int:
    return -1 if max_tokens is None else min(24, max(0, max_tokens).bit_length())


def _prior(max_tokens: int | None) -> float:
    return float(_PRIOR_TOKENS if max_tokens is None else min(max(0, max_tokens), _PRIOR_TOKENS))


def _bounded(tokens: float, max_tokens: int | None) -> float:
    return tokens if max_tokens is None else min(tokens, float(max(0, max_tokens)))


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


class Estimates:
    """What requests cost, and when it is too late for them, by all that was learnt."""

    def __init__(self, lengths: OutputLengths, capacity: Capacity) -> None:
        self._lengths: Final = lengths
        self._capacity: Final = capacity
        self._excess = 0.0
        """Nearly all answers in one piece take at most so much longer than usual, as a part of
        that."""
        self._tried: Final[dict[int, GenerationRequest]] = {}
        """Those that wait or run though they should not be whole."""
        self._trials: Final = ByKind[_Trial]()

    def work(self, request: GenerationRequest) -> float:
        """Device seconds that a request is expected to cost."""
        output = self._lengths.mean(request.key, request.max_tokens) * request.choices
        return self._capacity.work(request.prompt_tokens, output)

    def cost(self, running: Running, output_tokens: int | None) -> float:
        """What an ended request has cost; of one that nobody saw the end of, as far as was seen."""
        request = running.waiting.request
        if output_tokens is None and not request.streams:
            return running.waiting.work
        output = running.tokens + running.started if output_tokens is None else output_tokens
        return self._capacity.work(running.read_tokens, output)

    def learn_length(self, request: GenerationRequest, output_tokens: int) -> None:
        """All choices of a request together became so long."""
        each = output_tokens / max(1, request.choices)
        self._lengths.observe(request.key, request.max_tokens, each)

    def late_from(self, waiting: Waiting) -> float:
        """When it is too late for it to go: its first token would miss the target.

        Not before half of the target, so that a wrong guess keeps nobody from a free server.
        """
        if waiting.due == NEVER:
            return NEVER
        first = self._capacity.cautious_first_token(waiting.request.there.prompt_tokens)
        return waiting.due - min(first, (waiting.due - waiting.request.arrived) / 2)

    def takes(self, request: GenerationRequest, now: float) -> bool:
        """Whether a request that comes now could be whole in time, or is tried."""
        if not request.whole or now <= self.begin_by(request).likely:
            return True
        if now + self._least_seconds(request) > request.deadline:
            return False
        trial = self._trials.get(request.key, request.max_tokens)
        if trial is not None and trial.stands_for(request, now):
            return False
        self._tried[request.id] = request
        self._trials.put(request.key, request.max_tokens, _Trial())
        return True

    def begin_by(self, request: GenerationRequest) -> BeginBy:
        """Until when it may go, as far as lengths and costs are known."""
        if not request.whole:
            return _ANY_TIME
        if request.id in self._tried:
            return BeginBy(request.deadline, request.deadline)
        needed = cautious = self._least_seconds(request)
        learnt = self._lengths.learnt(request.key, request.max_tokens)
        if learnt is not None and self._capacity.learnt:
            allowed = request.deadline - request.arrived
            enough = _NEARLY_ALL_ITS_TIME * allowed
            usual = self._usual_seconds(request, learnt.mean)
            most = self._usual_seconds(request, learnt.most) * (1.0 + self._excess)
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

    def whole_ended(self, running: Running, now: float, output_tokens: int | None) -> int | None:
        """Learn from an answer in one piece; None: it failed, or was not there in time.

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
            if self._capacity.learnt and took < self._usual_seconds(request, usual):
                return None  # it was known to take longer
            each = usual / _LONGER
        seconds = self._usual_seconds(request, each)
        if seconds > 0:
            scale = max(self._excess, _LEAST_EXCESS)
            self._excess = _quantile_after(self._excess, took / seconds - 1.0, scale)
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

    def _usual_seconds(self, request: GenerationRequest, tokens: float) -> float:
        """From when it goes until all its choices have so many."""
        first = self._capacity.first_token(request.there.prompt_tokens)
        more = max(0.0, _rounds(request) * tokens - 1.0)
        return first + more * self._capacity.usual_between_tokens

    def _least_seconds(self, request: GenerationRequest) -> float:
        """The same for what it has for certain, alone at the server."""
        return _rounds(request) * request.least_tokens * self._capacity.least_between_tokens


def _rounds(request: GenerationRequest) -> int:
    """How many of its choices follow one another, as not all of them run at once."""
    return -(-request.choices // max(1, request.there.texts))


def _quantile_after(before: float, value: float, scale: float) -> float:
    """What nearly all values are below, after one more; it is 0 at least.

    It goes up by much where it is passed, and down by little where not, in parts of `scale`.
    """
    passed = value > before
    return max(0.0, before + _NEWEST * scale * (_OFTEN if passed else _OFTEN - 1.0))
