"""Capacity of an engine of ours, which tells after each step what it has.

A request goes where it finds a place, blocks for its prompt and all that is expected to be written,
and few prompts before it that are not read. A few go that must wait there for what the next step
frees, so that no place stays empty until a report comes and a request goes. All others wait in the
sidecar, where their order can still change.

While another tenant has much more of the engine, one that has little goes whatever is free: the
engine has the other's texts give way. Nor does it wait for prompts of others that are not read.

What was granted and does not run, by the engine's last report, counts as if it ran.
"""

import math
from collections.abc import Iterator
from typing import Final

from batchedmodel_scheduling.engine.giving_way import EngineParts
from batchedmodel_scheduling.engine.step_cost import LearntStepCost, StepLoad
from batchedmodel_scheduling.generation.estimates import Capacity, OutputLengths
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    AtServer,
    EngineLimits,
    EngineStep,
    EngineView,
    GenerationRequest,
    Running,
    Waiting,
)
from batchedmodel_scheduling.generation.waiting import FairTurns

_STEPS_AHEAD: Final = 3.0
"""Steps' worth of prompts in the engine: of the step that runs when the report of the one before
comes, of the next one, and of one more, so that it has shorter ones to read first."""
_ENDS_AHEAD: Final = 1.5
"""Times the sequences that end with a step of a full engine, and one: so many more may be there
than run."""
_MOST_UNSTARTED: Final = 8
"""Requests without a first token: while there are more, nobody goes for whom there is no room."""
_NEWEST: Final = 0.05
_LEAST_LEFT: Final = 0.25
"""Of the usual length: so much more is expected of an answer, however long it is."""
_FIRST_STEPS: Final = 1.5
"""Steps until a first token beside what its prompt takes: half of the one that runs, and its own
last one."""


class NativeEngine(Capacity):
    """What of the engine's room is left, and what its steps cost.

    A full batch is as many sequences as run at once, or as the cache holds of such as it has lately
    where these are fewer. So the cache is paid for as well: where it is short, each sequence has a
    larger part of a step.
    """

    def __init__(
        self, limits: EngineLimits, server: AtServer, lengths: OutputLengths, turns: FairTurns
    ) -> None:
        super().__init__()
        self._limits = limits
        self._server: Final = server
        self._lengths: Final = lengths
        self._turns: Final = turns
        self._step: EngineStep | None = None
        """The last report; nothing goes before the first."""
        self._idle_there = 0
        """Sequences that were granted and did not run by that report, and all granted since."""
        self._full = False
        """Whether a request found no room since then."""
        self._parts: EngineParts | None = None
        """What of the engine each tenant has; None: it is not counted yet."""
        self._ended = 0.0
        """Sequences that end with a step, lately."""
        self._ran = 1.0
        """Sequences that run in a step, lately."""
        self._cost: Final = LearntStepCost(limits.cost)
        self.prompts_in_step = float(limits.max_tokens_per_step)
        """Tokens of prompts that a step reads where there are more."""
        self._reading: float | None = None
        """Seconds of such a step, by each of these tokens."""
        self._step_seconds = limits.cost.base
        self._held = 1.0
        """Tokens in the cache of a sequence."""

    @property
    def limit(self) -> int:
        """Sequences that the engine runs at once."""
        return self._limits.max_sequences

    @property
    def any_free(self) -> bool:
        """See `Capacity`."""
        step = self._step
        if step is None or not self._server.sequences:
            return step is not None
        if self._full or self._unread() >= _STEPS_AHEAD * self.prompts_in_step:
            return False
        return self._server.sequences < self.limit or self._may_wait_there

    @property
    def asks(self) -> bool:
        """Whether whoever is next may go, or perhaps one that has little."""
        if self.any_free:
            return True
        few = self._server.unstarted < _MOST_UNSTARTED
        return self._step is not None and self._turns.shared and few

    @property
    def mostly_free(self) -> bool:
        """Whether the engine begins at once with whatever comes."""
        return self._step is not None and not self._not_running

    @property
    def wanted(self) -> bool:
        """Whether more would go if there were more room."""
        return bool(self._turns)

    def counted(self, request: GenerationRequest) -> int:
        """Sequences that it becomes at a time."""
        return request.there.texts

    def free_for(self, request: GenerationRequest, now: float) -> bool:
        """Whether the engine can begin with it, or it may wait there for what ends next."""
        if (step := self._step) is None:
            return False
        if not self._server.sequences:
            return True  # of an engine that has nothing more to do no report may come
        if self._waits_for_own_prompts(request):
            return False
        if not self._full and self._has_room(request, step):
            return True
        self._full = True
        return self._has_little(request)

    def released(self, waiting: Waiting, now: float) -> None:
        """It is on its way to the engine."""
        self._idle_there += waiting.places
        self._parts = None

    def saw(self, view: EngineView, now: float) -> None:
        """The engine told what it has, after what ended with the step."""
        if (step := view.step) is None:
            return
        self._step, self._full, self._parts = step, False, None
        self._idle_there = max(0, self._server.sequences - step.running)
        if step.seconds > 0:
            self._learn(step)

    def configure(self, settings: AdmissionSettings) -> None:
        """The engine may have other limits from now on; what was learnt stays."""
        if settings.engine is not None:
            self._limits = settings.engine
            self.prompts_in_step = min(self.prompts_in_step, self._limits.max_tokens_per_step)

    # What tokens cost

    @property
    def usual_between_tokens(self) -> float:
        """See `Capacity`."""
        return self._step_seconds

    @property
    def least_between_tokens(self) -> float:
        """The same of a sequence that is alone, as measured first or as learnt."""
        alone = [cost.base + cost.sequence for cost in (self._cost.measured, self._cost)]
        return min(*alone, self._step_seconds)

    @property
    def output_token(self) -> float:
        """See `Capacity`."""
        limits, cost = self._limits, self._cost
        full = max(1.0, min(limits.max_sequences, limits.cache_tokens / self._held))
        return cost.base / full + cost.sequence + cost.context_token * self._held

    @property
    def prompt_token(self) -> float:
        """See `Capacity`."""
        return self._cost.prefill_token

    def first_token(self, prompt_tokens: int) -> float:
        """Seconds until the first token of a request that goes to the engine."""
        each = self.prompt_token if self._reading is None else self._reading
        return _FIRST_STEPS * self._step_seconds + each * prompt_tokens

    def cautious_first_token(self, prompt_tokens: int) -> float:
        """Seconds within which nearly all such first tokens come, as the engine is at present.

        Long prompts are read beside shorter ones: what comes on top is a part of the usual time.
        """
        return self.first_token(prompt_tokens) * (1.0 + self._excess)

    def saw_first_token(self, prompt_tokens: int, seconds: float, *, room: bool) -> None:
        """See `Capacity`."""
        usual = self.first_token(prompt_tokens)
        if usual > 0:  # it is nothing before the first step of one that was measured as free
            self._saw_excess(seconds / usual - 1.0, 1.0)

    def _learn(self, step: EngineStep) -> None:
        self._ended += _NEWEST * (step.ended - self._ended)
        self._ran += _NEWEST * (step.running + step.ended - self._ran)
        used = (self._limits.blocks - step.free_blocks) * self._limits.block_tokens
        sequences = step.tokens + (step.prefill_tokens > 0)
        self._cost.saw(StepLoad(step.prefill_tokens, sequences, used), step.seconds)
        self._step_seconds = _nearer(self._step_seconds, step.seconds)
        if step.running:
            self._held = max(1.0, _nearer(self._held, used / step.running))
        if step.backlog > 0 and step.prefill_tokens > 0:
            self.prompts_in_step = _nearer(self.prompts_in_step, step.prefill_tokens)
            each = step.seconds / step.prefill_tokens
            self._reading = each if self._reading is None else _nearer(self._reading, each)

    # What is free

    @property
    def _not_running(self) -> int:
        # Of an engine that has nothing more to do no report may come.
        return min(self._idle_there, self._server.sequences)

    @property
    def _ends(self) -> float:
        """Sequences that end with a step when all places are taken."""
        return self.limit * self._ended / max(1.0, self._ran)

    @property
    def _may_wait_there(self) -> bool:
        return self._not_running < 1 + math.ceil(_ENDS_AHEAD * self._ends)

    def _has_room(self, request: GenerationRequest, step: EngineStep) -> bool:
        places = self._server.sequences + request.there.texts <= self.limit
        # What must be whole in its time does not spend that there.
        if not places and (request.whole or not self._may_wait_there):
            return False
        lacks = self._lacks(request, step)
        soon = self._may_wait_there and lacks <= _ENDS_AHEAD * self._ends * self._held
        return soon or (places and lacks <= 0)

    def _has_little(self, request: GenerationRequest) -> bool:
        """Whether texts of another tenant give way to it."""
        if self._server.unstarted >= _MOST_UNSTARTED:
            return False
        if self._parts is None:
            self._parts = EngineParts(self.limit, self._limits.cache_tokens)
            for one in self._server.newest():
                share = one.waiting.request.share
                self._parts.add(share.tenant, share.weight, one.waiting.places, _tokens(one))
        share, there = request.share, request.there
        return self._parts.has_little(share.tenant, share.weight, there.texts, there.prompt_tokens)

    def _waits_for_own_prompts(self, request: GenerationRequest) -> bool:
        """Whether its tenant has prompts to be read first, where there are enough of them."""
        step = self.prompts_in_step
        if self._unread() < _STEPS_AHEAD * step:
            return False
        own = self._unread(request.share.tenant)
        return own + min(request.there.prompt_tokens, step) > step

    def _unread(self, tenant: str | None = None) -> float:
        """Tokens of prompts that the engine has not read; of one tenant, or of all.

        Of each as many as one step reads: it reads short ones beside long ones.
        """
        left, unread = self._server.unstarted, 0.0
        for one in self._server.newest():
            if left <= 0:
                break
            if not one.started:
                left -= 1
                if tenant not in (None, one.waiting.request.share.tenant):
                    continue
                unread += min(one.waiting.request.there.prompt_tokens, self.prompts_in_step)
        return unread

    def _lacks(self, request: GenerationRequest, step: EngineStep) -> float:
        """Tokens that the cache lacks to hold this beside all that is there until they end.

        They are taken to end after their expected lengths: the cache is fullest just before one
        ends. What the engine has in it beside what is known here counts as it is; it is less than
        nothing where prompts share blocks.
        """
        limits = self._limits
        beside = float((limits.blocks - step.free_blocks) * limits.block_tokens)
        waits = self._not_running
        for one in self._server.newest():
            if waits > 0:
                waits -= one.waiting.places
            else:
                beside -= -(-_tokens(one) // limits.block_tokens) * limits.block_tokens
        held = grows = fullest = 0.0
        for left, tokens, choices in sorted(self._texts(request), reverse=True):
            held += tokens
            grows += choices
            fullest = max(fullest, held + grows * left)
        # Of each the last block is not full, and one more may be begun.
        spare = limits.block_tokens * grows
        return fullest + beside + spare - limits.cache_tokens

    def _texts(self, request: GenerationRequest) -> Iterator[tuple[float, int, int]]:
        """Of each: tokens that are still expected of a choice, tokens that it has, choices."""
        for one in self._server.newest():
            asked = one.waiting.request
            usual = self._lengths.mean(asked.key, asked.max_tokens)
            left = max(_LEAST_LEFT * usual, usual - one.tokens / asked.choices)
            yield left, _tokens(one), asked.there.texts
        usual = self._lengths.mean(request.key, request.max_tokens)
        yield usual, request.there.prompt_tokens, request.there.texts


def _tokens(one: Running) -> int:
    """That it has in the cache, or will have when its prompt is read."""
    request = one.waiting.request
    there = request.there
    return there.prompt_tokens + one.tokens * there.texts // max(1, request.choices)


def _nearer(old: float, new: float) -> float:
    return old + _NEWEST * (new - old)
