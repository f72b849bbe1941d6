"""Simulates a manifest's pods of a language model: the sidecar's `Admission` before an engine.

A Kubernetes Service spreads requests over its pods at random. So of drawn traffic one pod is
simulated, with a random part of it; of a trace, which has its length, all pods are. The policy
learns the engine from the traffic of a minute before, which does not count.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from batchedmodel_cli.simulate.generation_engines import SimulatedEngine
from batchedmodel_cli.simulate.generation_traffic import TextTraffic
from batchedmodel_cli.simulator.arrivals import Poisson
from batchedmodel_cli.simulator.token_engine import Call
from batchedmodel_cli.simulator.token_verdicts import TokenVerdict, served
from batchedmodel_cli.simulator.workload import stream
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_contract.manifest.tenants import Share

_NANOSECONDS: Final = 1e9
_MOST_DRAWN: Final = 1_000_000
_LESSON_SECONDS: Final = 60.0
_LESSONS: Final = 2000
"""Requests of a lesson, at most."""
_FLOOD: Final = 1.5
"""Times what an engine does whose places are always taken."""
_PATIENCE_SECONDS: Final = 1e6
_CALLER: Final = Share("caller")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPods:
    """Pods of one kind, each with an engine of its own. Equal fields give equal results."""

    traffic: TextTraffic
    engine: SimulatedEngine
    seed: int
    on_run: Callable[[], None] = field(default=lambda: None)
    """Called before each simulation."""

    def run(self, settings: BatchSettings, replicas: int, rate: float) -> TokenVerdict:
        """The traffic at this rate, in requests a second, in front of so many replicas."""
        self.on_run()
        traffic = self.traffic
        pods = replicas if traffic.recorded else 1
        total = traffic.requests
        if not traffic.recorded:
            total = max(2, min(total * replicas, _MOST_DRAWN))
        times = traffic.arrivals.times(total, rate, stream(self.seed, "arrivals"))
        prompts = traffic.prompts.draw(total, stream(self.seed, "prompts"))
        outputs = traffic.outputs.draw(total, stream(self.seed, "outputs"))
        routes = stream(self.seed, "router").integers(replicas, size=total).tolist()
        calls: list[list[Call]] = [self._lesson(settings, rate / replicas) for _ in range(pods)]
        first = times[0]
        for n, (at, route) in enumerate(zip(times, routes, strict=True)):
            if route < pods:
                arrived = _LESSON_SECONDS + (at - first) / _NANOSECONDS
                calls[route].append(_call(n, prompts[n], outputs[n], arrived, settings))
        last = _LESSON_SECONDS + (times[-1] - first) / _NANOSECONDS
        return served(
            [(self.engine.pod(settings), its) for its in calls],
            begins=_LESSON_SECONDS,
            ends=max(last, _LESSON_SECONDS + 1.0),
            first_token_seconds=settings.target_first_token_seconds,
            token_seconds=settings.target_token_seconds,
        )

    def throughput(self, settings: BatchSettings) -> TokenVerdict:
        """One replica, where more requests always wait, however late they are answered."""
        patient = replace(
            settings,
            target_first_token_seconds=None,
            target_token_seconds=None,
            lateness=Lateness.SERVE,
            request_timeout_seconds=_PATIENCE_SECONDS,
            max_queue_size=self.traffic.requests + _LESSONS,
        )
        return self.run(patient, 1, _FLOOD / self.mean_work)

    @property
    def mean_work(self) -> float:
        """Seconds of a full engine that a request takes, on average."""
        prompts, outputs = self._lengths()
        return self.engine.work(float(np.mean(prompts)), float(np.mean(outputs)))

    @property
    def typical(self) -> tuple[int, int]:
        """Tokens of a prompt and of an answer in the middle."""
        prompts, outputs = self._lengths()
        return int(np.median(prompts)), int(np.median(outputs))

    def alone_share(self, settings: BatchSettings) -> float:
        """The part of the requests that meets both targets on an idle engine."""
        figures = self.engine.figures(settings)
        step = figures["step_seconds"] + figures["sequence_seconds"]
        if step > (settings.target_token_seconds or step):
            return 0.0
        within = settings.target_first_token_seconds or settings.request_timeout_seconds
        return float(np.mean(self.engine.alone(settings, np.array(self._lengths()[0])) <= within))

    def _lengths(self) -> tuple[list[int], list[int]]:
        traffic = self.traffic
        return (
            traffic.prompts.draw(traffic.requests, stream(self.seed, "prompts")),
            traffic.outputs.draw(traffic.requests, stream(self.seed, "outputs")),
        )

    def _lesson(self, settings: BatchSettings, rate: float) -> list[Call]:
        """Requests of a minute that teach the policy."""
        most = min(_LESSONS, 2 * round(rate * _LESSON_SECONDS) + 8)
        times = Poisson().times(most, rate, stream(self.seed, "lesson arrivals"))
        prompts = self.traffic.prompts.draw(most, stream(self.seed, "lesson prompts"))
        outputs = self.traffic.outputs.draw(most, stream(self.seed, "lesson outputs"))
        return [
            _call(-1 - n, prompts[n], outputs[n], at / _NANOSECONDS, settings)
            for n, at in enumerate(times)
            if at < _LESSON_SECONDS * _NANOSECONDS
        ]


def _call(number: int, prompt: int, output: int, arrived: float, settings: BatchSettings) -> Call:
    return Call(
        number=number,
        share=_CALLER,
        prompt=prompt,
        output=output,
        arrived=arrived,
        patience=settings.request_timeout_seconds,
    )
