"""Simulated pods of a language model, as the closed loop has them: admission, engine, and stats.

The admission, the work that is counted by tokens and by the cache, and what the autoscaler is told
are the sidecar's own. Requests are Poisson, as long as those of a trace, in its order.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from numpy.random import Generator

from autoscaling_loop.pods import Tally
from batchedmodel_cli.simulator.token_engine import Call, EngineFigures, TokenEngine
from batchedmodel_cli.simulator.token_pods import TokenPod, Watcher
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_scheduling.generation.admission import Admission, AdmissionSettings
from batchedmodel_sidecar.telemetry.generation_counts import GenerationCounts
from batchedmodel_sidecar.telemetry.ledger import Ledger

_CALLER: Final = Share("caller")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDevice:
    """An engine, the settings before it, and what is asked of it."""

    engine: EngineFigures
    settings: BatchSettings
    lengths: tuple[tuple[int, int], ...]
    """Tokens of prompts and answers."""
    drain_seconds: float = 120.0

    @property
    def work(self) -> float:
        """Seconds of a full engine that a request takes, on average."""
        return sum(self.engine.work(*pair) for pair in self.lengths) / len(self.lengths)

    @property
    def sustainable_share(self) -> float:
        """Nobody measures what the targets cost, so an engine counts as it is when full."""
        return 1.0

    def replicas(self) -> "TextReplicas":
        """No pods yet."""
        return TextReplicas(self)


class TextPod(Watcher):
    """One pod. Times are seconds since the start of the run and only go forward."""

    def __init__(
        self,
        name: str,
        device: TextDevice,
        random: Generator,
        tally: Tally,
        *,
        born: float,
        ready: float,
    ) -> None:
        self.name: Final = name
        self.ready_at: Final = ready
        self.leaving_since: float | None = None
        self.random: Final = random
        self._device: Final = device
        self._tally: Final = tally
        self._admission: Final = Admission(AdmissionSettings.of(device.settings))
        self._ledger: Final = Ledger()
        self._counts: Final = GenerationCounts(self._ledger, born)
        self._works: Final[dict[int, float]] = {}
        """Of calls that were taken and have not ended."""
        engine = TokenEngine(device.engine)
        self._pod: Final = TokenPod(engine, self._admission, now=born, watcher=self)

    def has_left(self, now: float) -> bool:
        """Whether it leaves and has nothing left, never began, or has used up its time."""
        since = self.leaving_since
        if since is None:
            return False
        drained = now - since >= self._device.drain_seconds
        return self._pod.idle or self.ready_at > since or drained

    def arrive(self, call: Call) -> None:
        """A call comes at its time."""
        self._pod.arrive(call)

    def advance(self, end: float) -> None:
        """Serve until then."""
        self._pod.advance(end)

    def stats(self, now: float) -> SidecarStats:
        """What its sidecar tells."""
        return self._counts.texts_stats(
            self._device.settings,
            now,
            backlog=self._admission.backlog_work,
            at_once=self._admission.limit,
            model_ready=now >= self.ready_at,
            draining=self.leaving_since is not None,
        )

    def came(self, call: Call, work: float, now: float) -> None:
        """As the sidecar's handler counts it."""
        self._counts.asked(work, now)
        self._ledger.accept(1, work, now)
        self._works[call.number] = work
        if call.arrived >= 0:
            self._tally.offered += 1

    def released(self, call: Call, now: float) -> None:
        """It goes to the engine."""
        self._ledger.leaves_alone(now)

    def began(self, call: Call, now: float) -> None:
        """Its first token came."""
        target = self._device.settings.target_first_token_seconds
        self._tally.on_time += call.arrived >= 0 and call.first_token <= (target or math.inf)

    def ended(self, call: Call, now: float) -> None:
        """It ended, or was not taken."""
        gone = call.gone
        outcome = Outcome.COMPLETED if gone is None else Outcome.EXPIRED
        if isinstance(gone, Rejection):
            outcome = Outcome.SHED
        work = self._works.pop(call.number)
        self._ledger.settle_alone(outcome, work, now, waiting=call.released_at is None)

    def looked(self, usage: float, now: float) -> None:
        """The engine's gauges were read."""
        if self._device.engine.cache_tokens is not None:
            self._counts.cache_used(usage, now)


class TextReplicas:
    """The pods of one model: calls go at random to those that are ready and stay."""

    def __init__(self, device: TextDevice) -> None:
        self.tally: Final = Tally()
        self._device: Final = device
        self._pods: list[TextPod] = []
        self._lengths: Final[Iterator[tuple[int, int]]] = cycle(device.lengths)
        self._number = 0

    @property
    def pods(self) -> Sequence[TextPod]:
        """Those that exist, the oldest first; some may start or drain."""
        return self._pods

    def add(self, name: str, random: Generator, *, born: float, ready: float) -> None:
        """One more."""
        pod = TextPod(name, self._device, random, self.tally, born=born, ready=ready)
        self._pods.append(pod)

    def serve(self, start: float, end: float, amount: float) -> None:
        """Let an amount of full pods' capacities be offered for a while."""
        rate = amount / self._device.work
        taking = [pod for pod in self._pods if pod.leaving_since is None and pod.ready_at <= start]
        for pod in taking:
            count = int(pod.random.poisson(rate / len(taking) * (end - start)))
            for at in sorted(pod.random.uniform(start, end, count).tolist()):
                pod.arrive(self._call(at))
        for pod in self._pods:
            pod.advance(end)
        if not taking:
            # Nobody takes them, and nobody but the callers knows.
            self.tally.offered += round(rate * (end - start))

    def bury(self, now: float) -> list[TextPod]:
        """Ends pods that leave and have nothing left, never began, or have used up their time."""
        ended = [pod for pod in self._pods if pod.has_left(now)]
        self._pods = [pod for pod in self._pods if pod not in ended]
        return ended

    def _call(self, at: float) -> Call:
        prompt, output = next(self._lengths)
        self._number += 1
        return Call(
            number=self._number,
            share=_CALLER,
            prompt=prompt,
            output=output,
            arrived=at,
            patience=self._device.settings.request_timeout_seconds,
        )
