"""Whether one more request may go to an engine of ours, which tells after each step what it has.

It goes where it finds a place, blocks for its prompt and all that is expected to be written, and
few prompts before it that are not read. A few go that must wait there for what the next step
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
from batchedmodel_scheduling.generation.at_server import AtServer, Running
from batchedmodel_scheduling.generation.fair_turns import FairTurns
from batchedmodel_scheduling.generation.lengths import OutputLengths
from batchedmodel_scheduling.generation.native.engine_costs import EngineCosts
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    EngineLimits,
    EngineStep,
    EngineView,
    GenerationRequest,
    Waiting,
)
from batchedmodel_scheduling.generation.room import Room

_STEPS_AHEAD: Final = 3.0
"""Steps' worth of prompts in the engine: of the step that runs when the report of the one before
comes, of the next one, and of one more, so that it has shorter ones to read first."""
_ENDS_AHEAD: Final = 1.5
"""Times the sequences that end with a step of a full engine, and one: so many more may be there
than run."""
_FEW: Final = 8
"""Requests without a first token: while there are more, nobody goes for whom there is no room."""
_PASSED: Final = 32
_NEWEST: Final = 0.05
_LEFT: Final = 0.25
"""Of the usual length: so much more is expected of an answer, however long it is."""


class EngineCredit(Room):
    """What of the engine's room is left."""

    passes = _PASSED

    def __init__(
        self,
        limits: EngineLimits,
        server: AtServer,
        costs: EngineCosts,
        lengths: OutputLengths,
        turns: FairTurns,
    ) -> None:
        self._limits = limits
        self._server: Final = server
        self._costs: Final = costs
        self._lengths: Final = lengths
        self._turns: Final = turns
        self._step: EngineStep | None = None
        """The last report; nothing goes before the first."""
        self._idle_there = 0
        """Sequences that were granted and did not run by that report, and all granted since."""
        self._full = False
        """Whether somebody found no room since then."""
        self._parts: EngineParts | None = None
        """What of the engine each tenant has; None: it is not counted yet."""
        self._ended = 0.0
        """Sequences that end with a step, lately."""
        self._ran = 1.0
        """Sequences that run in a step, lately."""

    @property
    def limit(self) -> int:
        """Sequences that the engine runs at once."""
        return self._limits.max_sequences

    @property
    def any_free(self) -> bool:
        """Whether somebody may go, as far as is known without a request."""
        step = self._step
        if step is None or not self._server.sequences:
            return step is not None
        if self._full or self._unread() >= _STEPS_AHEAD * self._costs.prompts_in_step:
            return False
        return self._server.sequences < self.limit or self._may_wait_there

    @property
    def asks(self) -> bool:
        """Whether whoever is next may go, or perhaps one that has little."""
        if self.any_free:
            return True
        return self._step is not None and self._turns.shared and self._server.unstarted < _FEW

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
        self._costs.stepped(step)
        if step.seconds > 0:
            self._ended += _NEWEST * (step.ended - self._ended)
            self._ran += _NEWEST * (step.running + step.ended - self._ran)

    def configure(self, settings: AdmissionSettings) -> None:
        """The engine may have other limits from now on."""
        if settings.engine is not None:
            self._limits = settings.engine
            self._costs.configure(settings.engine)

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
        soon = self._may_wait_there and lacks <= _ENDS_AHEAD * self._ends * self._costs.held
        return soon or (places and lacks <= 0)

    def _has_little(self, request: GenerationRequest) -> bool:
        """Whether texts of another tenant give way to it."""
        if self._server.unstarted >= _FEW:
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
        step = self._costs.prompts_in_step
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
                prompts = one.waiting.request.there.prompt_tokens
                unread += min(prompts, self._costs.prompts_in_step)
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
            left = max(_LEFT * usual, usual - one.tokens / asked.choices)
            yield left, _tokens(one), asked.there.texts
        usual = self._lengths.mean(request.key, request.max_tokens)
        yield usual, request.there.prompt_tokens, request.there.texts


def _tokens(one: Running) -> int:
    """That it has in the cache, or will have when its prompt is read."""
    request = one.waiting.request
    there = request.there
    return there.prompt_tokens + one.tokens * there.texts // max(1, request.choices)
