"""An engine that batches continuously, and callers before it: in simulated time, for tests.

Sequences have places, who comes first is served first, and a step makes a token of each. Prompts
are read in the same steps, so many tokens at once.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineView,
    GenerationRequest,
)

HOP = 0.001
"""Seconds until the engine knows of a released request."""


@dataclass(slots=True)
class Call:
    """One call, and what became of it."""

    number: int
    tenant: str
    prompt: int
    output: int
    arrived: float
    patience: float = 30.0
    streams: bool = True
    again: bool = False
    """Whether its caller calls again when it has ended."""
    read: int = 0
    given: int = 0
    first_at: float | None = None
    ended_at: float | None = None
    refused: bool = False

    @property
    def first_token(self) -> float:
        return float("inf") if self.first_at is None else self.first_at - self.arrived

    def good(self, first: float, token: float) -> bool:
        """Whether it met both targets."""
        if self.first_at is None or self.ended_at is None:
            return False
        between = (self.ended_at - self.first_at) / max(1, self.output - 1)
        return self.first_token <= first and between <= token


@dataclass(slots=True)
class Engine:
    places: int = 64
    step: float = 0.020
    prompt_token: float = 5e-6
    chunk: int = 2048
    waiting: deque[Call] = field(default_factory=deque)
    running: list[Call] = field(default_factory=list)
    ends_at: float = float("inf")
    _reads: list[tuple[Call, int]] = field(default_factory=list)

    def begin(self, now: float) -> None:
        """Begin a step if there is anything to do."""
        while self.waiting and len(self.running) < self.places:
            self.running.append(self.waiting.popleft())
        left, self._reads = self.chunk, []
        for call in self.running:
            if call.read < call.prompt and left:
                part = min(left, call.prompt - call.read)
                self._reads.append((call, part))
                left -= part
        took = self.step + self.prompt_token * (self.chunk - left)
        self.ends_at = now + took if self.running else float("inf")

    def end(self) -> list[Call]:
        """End the step; those that got a token."""
        told = [call for call in self.running if call.read >= call.prompt]
        for call, part in self._reads:
            call.read += part
            if call.read >= call.prompt:
                told.append(call)
        for call in told:
            call.given += 1
        self.running = [call for call in self.running if call.given < call.output]
        return told


class World:
    """Callers, the admission between, and the engine. Without one calls go straight there."""

    def __init__(
        self,
        settings: AdmissionSettings | None,
        *,
        seed: int = 1,
        gauges: bool = False,
        engine: Engine | None = None,
    ) -> None:
        self.now = 0.0
        self.engine = Engine() if engine is None else engine
        self.admission = None if settings is None else Admission(settings)
        self.gauges = gauges
        self.random = random.Random(seed)
        self.calls: list[Call] = []
        self.limits: list[tuple[float, int]] = []
        self.wake_at = float("inf")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._by_number: dict[int, Call] = {}

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    def crowd(
        self, count: int, *, tenant: str = "crowd", prompt: int = 100, streams: bool = True
    ) -> None:
        """So many callers that always wait for an answer."""
        for _ in range(count):
            call = self._call(tenant, prompt, self.now, streams=streams)
            call.again = True
            self.at(self.now, lambda call=call: self._arrive(call))  # type: ignore[misc]

    def stream_of_calls(
        self, rate: float, until: float, *, tenant: str = "open", prompt: int = 100
    ) -> None:
        """Calls that come at random times, so many a second."""
        when = self.now
        while (when := when + self.random.expovariate(rate)) < until:
            call = self._call(tenant, prompt, when)
            self.at(when, lambda call=call: self._arrive(call))  # type: ignore[misc]

    def run(self, until: float) -> None:
        if self.gauges:
            self.at(self.now + 0.5, self._read_gauges)
        while True:
            event_at = self._events[0][0] if self._events else float("inf")
            self.now = min(event_at, self.engine.ends_at, self.wake_at)
            if self.now > until:
                self.now = until
                return
            if self.now == event_at:
                heapq.heappop(self._events)[2]()
            elif self.now == self.engine.ends_at:
                self._step_ends()
            else:
                self._poll()

    def of(self, tenant: str, begin: float = 0.0, end: float = float("inf")) -> list[Call]:
        return [c for c in self.calls if c.tenant == tenant and begin <= c.arrived < end]

    def _call(self, tenant: str, prompt: int, when: float, *, streams: bool = True) -> Call:
        return Call(
            next(self._numbers), tenant, prompt, self.random.randint(20, 60), when, streams=streams
        )

    def _arrive(self, call: Call) -> None:
        self.calls.append(call)
        if self.admission is None:
            self.at(self.now + HOP, lambda: self._submit(call))
            return
        self._by_number[call.number] = call
        request = GenerationRequest(
            id=call.number,
            share=Share(call.tenant),
            key="model",
            prompt_tokens=call.prompt,
            max_tokens=64,
            choices=1,
            arrived=self.now,
            deadline=self.now + call.patience,
            streams=call.streams,
        )
        if self.admission.offer(request, self.now) is not None:
            call.refused = True
        self._poll()

    def _submit(self, call: Call) -> None:
        self.engine.waiting.append(call)
        if self.engine.ends_at == float("inf"):
            self.engine.begin(self.now)

    def _step_ends(self) -> None:
        ended = []
        for call in self.engine.end():
            if call.first_at is None:
                call.first_at = self.now
                if self.admission is not None and call.streams:
                    self.admission.first_token(call.number, self.now)
            elif self.admission is not None and call.streams:
                self.admission.tokens(call.number, 1, self.now)
            if call.given >= call.output:
                call.ended_at = self.now
                ended.append(call)
        self.engine.begin(self.now)
        for call in ended:
            if self.admission is not None:
                self.admission.ended(call.number, self.now, output_tokens=call.output)
            if call.again:
                following = self._call(call.tenant, call.prompt, self.now, streams=call.streams)
                following.again = True
                self._arrive(following)
        self._poll()

    def _poll(self) -> None:
        if self.admission is None:
            return
        grant = self.admission.poll(self.now)
        for number in grant.release:
            call = self._by_number[number]
            self.at(self.now + HOP, lambda call=call: self._submit(call))  # type: ignore[misc]
        self.wake_at = max(grant.wake_at, self.now + 0.001)
        if not self.limits or self.limits[-1][1] != self.admission.limit:
            self.limits.append((self.now, self.admission.limit))

    def _read_gauges(self) -> None:
        if self.admission is not None:
            view = EngineView(
                running=len(self.engine.running), waiting=len(self.engine.waiting), cache_usage=0.5
            )
            self.admission.engine(view, self.now)
        self.at(self.now + 0.5, self._read_gauges)


def p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
