"""Callers before a simulated language model: in simulated time, for tests."""

import random
from collections.abc import Iterable
from itertools import count

from batchedmodel_cli.simulator.token_engine import Call, EngineFigures, TokenEngine
from batchedmodel_cli.simulator.token_pods import TokenPod, Watcher
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.generation.admission import Admission, AdmissionSettings


class World(Watcher):
    """Callers, the admission between, and the engine. Without one calls go straight there."""

    def __init__(
        self,
        settings: AdmissionSettings | None,
        *,
        seed: int = 1,
        gauges: bool = False,
        engine: EngineFigures | None = None,
    ) -> None:
        self.admission = None if settings is None else Admission(settings)
        self.random = random.Random(seed)
        self.calls: list[Call] = []
        self.limits: list[tuple[float, int]] = []
        self._again: set[Call] = set()
        self._numbers = count()
        figures = EngineFigures() if engine is None else engine
        self._pod = TokenPod(TokenEngine(figures), self.admission, gauges=gauges, watcher=self)

    @property
    def now(self) -> float:
        return self._pod.now

    def crowd(
        self, count: int, *, tenant: str = "crowd", prompt: int = 100, streams: bool = True
    ) -> None:
        """So many callers that always wait for an answer."""
        for _ in range(count):
            self._again.add(self._call(tenant, prompt, self.now, streams=streams))

    def no_more_calls(self) -> None:
        """The crowds call no more once they have their answers."""
        self._again.clear()

    def stream_of_calls(
        self, rate: float, until: float, *, tenant: str = "open", prompt: int = 100
    ) -> None:
        """Calls that come at random times, so many a second."""
        when = self.now
        while (when := when + self.random.expovariate(rate)) < until:
            self._call(tenant, prompt, when)

    def run(self, until: float) -> None:
        self._pod.advance(until)

    def of(self, tenant: str, begin: float = 0.0, end: float = float("inf")) -> list[Call]:
        return [c for c in self.calls if c.share.tenant == tenant and begin <= c.arrived < end]

    def came(self, call: Call, work: float, now: float) -> None:
        self.calls.append(call)

    def released(self, call: Call, now: float) -> None:
        self._note()

    def ended(self, call: Call, now: float) -> None:
        if call in self._again:
            self._again.remove(call)
            if call.ended_at is None:
                return
            following = self._call(call.share.tenant, call.prompt, now, streams=call.streams)
            self._again.add(following)
        self._note()

    def _call(self, tenant: str, prompt: int, when: float, *, streams: bool = True) -> Call:
        call = Call(
            number=next(self._numbers),
            share=Share(tenant),
            prompt=prompt,
            output=self.random.randint(20, 60),
            arrived=when,
            max_tokens=64,
            streams=streams,
        )
        self._pod.arrive(call)
        return call

    def _note(self) -> None:
        if self.admission is not None and (
            not self.limits or self.limits[-1][1] != self.admission.limit
        ):
            self.limits.append((self.now, self.admission.limit))


def p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
