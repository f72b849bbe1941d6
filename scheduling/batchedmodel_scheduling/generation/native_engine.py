"""Capacity of an engine of ours, which tells after each step what it has.

A request goes where it finds a place, blocks for its prompt beside some that stay free for texts to
grow, and few prompts before it that are not read. A few go that must wait there for what the next
step frees, so that no place stays empty until a report comes and a request goes. A text that does
not fit after all gives way in the engine. All others wait in the sidecar, where their order can
still change.

While another tenant has much more of the engine, one that has little goes whatever is free: the
engine has the other's texts give way. Nor does it wait for prompts of others that are not read.

What was granted and does not run, by the engine's last report, counts as if it ran.
"""

import math
from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.engine.giving_way import EngineParts
from batchedmodel_scheduling.generation.at_server import AtServer, Running
from batchedmodel_scheduling.generation.capacity import MOST_HEADS, Capacity
from batchedmodel_scheduling.generation.requests import (
    AdmissionSettings,
    EngineLimits,
    EngineStep,
    EngineView,
    GenerationRequest,
    Waiting,
)
from batchedmodel_scheduling.generation.token_costs import ReportedCosts
from batchedmodel_scheduling.queue.items import NEVER

_STEPS_AHEAD: Final = 3.0
"""Steps' worth of prompts in the engine: of the step that runs when the report of the one before
comes, of the next one, and of one more, so that it has shorter ones to read first."""
_ENDS_AHEAD: Final = 1.5
"""Times the sequences that end with a step of a full engine, and one: so many more may be there
than run."""
_FREE_PART: Final = 32
"""One of so many blocks stays free for texts to grow. With a sixteenth, half a percent less is in
time where the cache is short."""
_MOST_UNSTARTED: Final = 8
"""Requests without a first token: while there are more, nobody goes for whom there is no room."""
_NEWEST: Final = 0.05


class NativeEngine(Capacity):
    """What of the engine's room is left."""

    def __init__(self, limits: EngineLimits, server: AtServer) -> None:
        self._costs: Final = ReportedCosts(limits)
        super().__init__(self._costs)
        self._limits = limits
        self._server: Final = server
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

    @property
    def limit(self) -> int:
        """Sequences that the engine runs at once."""
        return self._limits.max_sequences

    @property
    def heads(self) -> int:
        """See `Capacity`: where tenants share it, one that has little may go before others."""
        if self._step is None or not self._server.sequences:
            return int(self._step is not None)
        if len(self._server.unread) < _MOST_UNSTARTED and len(self._server.here) > 1:
            return MOST_HEADS
        read_soon = self._unread() < _STEPS_AHEAD * self._costs.prompts_in_step
        free = self._server.sequences < self.limit + self._ahead
        return int(free and read_soon and not self._full)

    def places(self, request: GenerationRequest) -> int:
        """See `Capacity`."""
        return request.there.texts

    def has_room(self, request: GenerationRequest, now: float) -> bool:
        """See `Capacity`; or it may wait there for what ends next."""
        if self._step is None:
            return False
        if not self._server.sequences:
            return True  # of an engine that has nothing more to do no report may come
        if self._waits_for_own_prompts(request):
            return False
        if not self._full and self._fits(request, self._step):
            return True
        self._full = True
        return self._has_little(request)

    def came(self, share: Share, now: float) -> None:
        """It changes nothing: the engine tells what it has."""

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
            self._ended += _NEWEST * (step.ended - self._ended)
            self._ran += _NEWEST * (step.running + step.ended - self._ran)
            self._costs.saw(step)

    def look(self, now: float, *, waits: bool) -> float:
        """See `Capacity`; there is nothing to see between reports."""
        return NEVER

    def configure(self, settings: AdmissionSettings) -> None:
        """The engine may have other limits from now on; what was learnt stays."""
        if settings.engine is not None:
            costs, self._limits = self._costs, settings.engine
            costs.limits = self._limits
            costs.prompts_in_step = min(costs.prompts_in_step, self._limits.max_tokens_per_step)

    # What is free

    @property
    def _ahead(self) -> int:
        """Sequences that may wait there for places which the next step frees."""
        ends = self.limit * self._ended / max(1.0, self._ran)
        ahead = 1 + math.ceil(_ENDS_AHEAD * ends)
        # Of an engine that has nothing more to do no report may come.
        idle = min(self._idle_there, self._server.sequences)
        return ahead if idle < ahead else 0

    def _fits(self, request: GenerationRequest, step: EngineStep) -> bool:
        # What must be whole in its time does not spend that there.
        ahead = 0 if request.whole else self._ahead
        if self._server.sequences >= self.limit + ahead:
            return False  # the first of its texts has no place; others begin as places come
        limits = self._limits
        free = step.free_blocks - limits.blocks // _FREE_PART
        idle = self._idle_there
        for one in self._server.newest():
            if idle <= 0:
                break
            idle -= one.waiting.places
            free -= limits.blocks_of(_tokens(one))
        return free >= limits.blocks_of(request.there.prompt_tokens)

    def _has_little(self, request: GenerationRequest) -> bool:
        """Whether texts of another tenant give way to it."""
        if len(self._server.unread) >= _MOST_UNSTARTED:
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
        most = self._costs.prompts_in_step
        requests = [one.waiting.request for one in self._server.unread.values()]
        own = [one for one in requests if tenant in (None, one.share.tenant)]
        return sum([min(one.there.prompt_tokens, most) for one in own], 0.0)


def _tokens(one: Running) -> int:
    """That it has in the cache, or will have when its prompt is read."""
    request = one.waiting.request
    there = request.there
    return there.prompt_tokens + one.tokens * there.texts // max(1, request.choices)
