"""A pod of a language model: the sidecar's own `Admission` before an engine, in simulated time.

`advance` lets time pass. What else wants to know of its calls is a `Watcher`.
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final, Generic, TypeVar

from batchedmodel_cli.simulator.planned_engine import PlannedEngine
from batchedmodel_cli.simulator.token_engine import Call, TokenEngine
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_scheduling.generation.admission import Admission
from batchedmodel_scheduling.generation.requests import EngineStep, EngineView, GenerationRequest
from batchedmodel_scheduling.queue.items import NEVER

_HOP: Final = 0.001
"""Seconds until the engine knows of a released call."""
_GAUGES: Final = 0.5
"""Seconds between two looks at the engine's gauges."""
_SOON: Final = 0.001
E = TypeVar("E", bound=TokenEngine | PlannedEngine)


class Watcher:
    """Whoever wants to know what happens to calls; of itself it does nothing."""

    def came(self, call: Call, work: float, now: float) -> None:
        """A call came that is expected to cost so much."""

    def released(self, call: Call, now: float) -> None:
        """It goes to the engine."""

    def began(self, call: Call, now: float) -> None:
        """Its first token came."""

    def ended(self, call: Call, now: float) -> None:
        """It was answered, refused or given up."""

    def looked(self, usage: float, now: float) -> None:
        """So much of the engine's cache is in use."""


class TokenPod(Generic[E]):
    """One sidecar and one engine. Time only goes forward."""

    def __init__(
        self,
        engine: E,
        admission: Admission | None,
        *,
        now: float = 0.0,
        gauges: bool = True,
        watcher: Watcher | None = None,
    ) -> None:
        """Without an admission calls go straight to the engine. `gauges`: whether it has any."""
        self.now = now
        self.engine: Final = engine
        self.admission: Final = admission
        self._watcher: Final = Watcher() if watcher is None else watcher
        self._events: Final[list[tuple[float, int, Callable[[Call], None], Call | None]]] = []
        self._numbers: Final = count()
        self._calls: Final[dict[int, Call]] = {}
        """Those that have not ended."""
        self._wake_at = NEVER
        self._tells_steps: Final = isinstance(engine, PlannedEngine) and admission is not None
        self._has_gauges: Final = gauges and admission is not None and not self._tells_steps
        self._gauges_at = NEVER
        if (step := self._report()) is not None:
            self._look(step)

    @property
    def idle(self) -> bool:
        """Whether all calls that came have ended."""
        return not self._calls

    def arrive(self, call: Call) -> None:
        """A call comes at its time."""
        self._at(call.arrived, self._came, call)

    def advance(self, until: float) -> None:
        """Let time pass."""
        events, engine = self._events, self.engine
        while True:
            event_at = events[0][0] if events else NEVER
            now = min(event_at, engine.ends_at, self._wake_at, self._gauges_at)
            if now > until:
                self.now = until
                return
            self.now = now
            if now == event_at:
                _, _, act, call = heapq.heappop(events)
                assert call is not None
                act(call)
            elif now == engine.ends_at:
                self._step_ends()
            elif now == self._gauges_at:
                self._look()
            else:
                self._poll()

    def _at(self, when: float, act: Callable[[Call], None], call: Call) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act, call))

    def _sees(self, call: Call) -> bool:
        """Whether the sidecar sees its tokens as they come: of an engine of ours it always does."""
        return call.streams or self._tells_steps

    # What happens

    def _came(self, call: Call) -> None:
        now, admission = self.now, self.admission
        self._calls[call.number] = call
        if self._has_gauges and self._gauges_at == NEVER:
            self._gauges_at = now + _GAUGES
        if admission is None:
            self._watcher.came(call, 0.0, now)
            self._release(call)
            return
        request = GenerationRequest(
            id=call.number,
            share=call.share,
            key="model",
            prompt_tokens=call.prompt,
            max_tokens=call.max_tokens,
            choices=1,
            arrived=now,
            deadline=now + call.patience,
            streams=self._sees(call),
            whole=call.whole,
        )
        self._watcher.came(call, admission.work(request), now)
        refusal = admission.offer(request, now)
        if refusal is not None:
            call.gone = refusal.reason
            self._settle(call)
        self._poll()

    def _release(self, call: Call) -> None:
        call.released_at = self.now
        self._watcher.released(call, self.now)
        self._at(self.now + _HOP, self._submit, call)
        self._at(call.arrived + call.patience, self._tire, call)

    def _submit(self, call: Call) -> None:
        if call.number in self._calls:  # its caller may have left on the way
            self.engine.offer(call, self.now)

    def _tire(self, call: Call) -> None:
        """Its caller waits no longer."""
        if (call.first_at is not None and not call.whole) or call.number not in self._calls:
            return
        self.engine.drop(call)
        call.gone = Outcome.EXPIRED
        if self.admission is not None:
            self.admission.ended(call.number, self.now, output_tokens=None)
        self._settle(call)
        self._poll()

    def _step_ends(self) -> None:
        admission, now = self.admission, self.now
        ended = []
        for call in self.engine.end():
            if call.first_at is None:
                call.first_at = now
                self._watcher.began(call, now)
                if admission is not None and self._sees(call):
                    admission.first_token(call.number, now)
            elif admission is not None and self._sees(call):
                admission.tokens(call.number, 1, now)
            if call.given >= call.output:
                call.ended_at = now
                ended.append(call)
        step = self._report()
        self.engine.begin(now)
        for call in ended:
            if admission is not None:
                admission.ended(call.number, now, output_tokens=call.output)
            self._settle(call)
        if step is not None:
            self._look(step)
        elif ended:
            self._poll()

    def _settle(self, call: Call) -> None:
        del self._calls[call.number]
        self._watcher.ended(call, self.now)

    def _poll(self) -> None:
        if self.admission is None:
            return
        grant = self.admission.poll(self.now)
        for number, outcome in grant.shed:
            call = self._calls[number]
            call.gone = outcome
            self._settle(call)
        for number in grant.release:
            self._release(self._calls[number])
        self._wake_at = max(grant.wake_at, self.now + _SOON)

    def _report(self) -> EngineStep | None:
        """What an engine of ours tells, if there is somebody whom it tells."""
        engine = self.engine
        if self.admission is None or not isinstance(engine, PlannedEngine):
            return None
        return engine.report()

    def _look(self, step: EngineStep | None = None) -> None:
        assert self.admission is not None
        engine = self.engine
        view = EngineView(
            running=len(engine.running),
            waiting=len(engine.waiting),
            cache_usage=engine.cache_usage,
            step=step,
        )
        self.admission.engine(view, self.now)
        self._watcher.looked(engine.cache_usage, self.now)
        # Those of an idle engine say nothing.
        self._gauges_at = self.now + _GAUGES if self._has_gauges and self._calls else NEVER
        self._poll()
