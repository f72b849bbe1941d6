"""Simulates a manifest's pods of a language model: the sidecar's `Admission` before an engine.

A Kubernetes Service spreads requests over its pods at random. So of drawn traffic one pod is
simulated, with a random part of it; of a trace, which has its length, all pods are. The policy
learns the engine from the traffic of a minute before, which does not count.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from batchedmodel_cli.simulate.changes import Change, text_changes
from batchedmodel_cli.simulate.study import Throughput
from batchedmodel_cli.simulate.text_engine import TextEngine
from batchedmodel_cli.simulate.traffic import Sizes, Traffic
from batchedmodel_cli.simulator.arrivals import Poisson
from batchedmodel_cli.simulator.token_engine import Call
from batchedmodel_cli.simulator.token_verdicts import TokenVerdict, served
from batchedmodel_cli.simulator.workload import stream
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Spec

_NANOSECONDS: Final = 1e9
_LESSON_SECONDS: Final = 60.0
_LESSONS: Final = 2000
"""Requests of a lesson, at most."""
_FLOOD: Final = 1.5
"""Times what an engine does whose places are always taken."""
_PATIENCE_SECONDS: Final = 1e6
_CALLER: Final = Share("caller")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPods:
    """Pods of one kind, each with an engine of its own. Equal fields give equal results."""

    traffic: Traffic
    engine: TextEngine
    seed: int
    on_run: Callable[[], None] = field(default=lambda: None)
    """Called before each simulation."""

    @property
    def outputs(self) -> Sizes:
        """Of the answers."""
        assert self.traffic.outputs is not None, "texts of unknown length are refused"
        return self.traffic.outputs

    def run(self, settings: BatchSettings, replicas: int, rate: float) -> TokenVerdict:
        """See `study.Pods`."""
        self.on_run()
        traffic = self.traffic
        pods, total = traffic.part(replicas)
        times = traffic.arrivals.times(total, rate, stream(self.seed, "arrivals"))
        first = times[0] - round(_LESSON_SECONDS * _NANOSECONDS)
        calls = self._calls(settings, [at - first for at in times])
        routes = stream(self.seed, "router").integers(replicas, size=total).tolist()
        offered = [self._lesson(settings, rate / replicas) for _ in range(pods)]
        for call, route in zip(calls, routes, strict=True):
            if route < pods:
                offered[route].append(call)
        return served(
            [(self.engine.pod(settings), its) for its in offered],
            self.engine.figures_with(settings),
            begins=_LESSON_SECONDS,
            ends=max(calls[-1].arrived, _LESSON_SECONDS + 1.0),
            first_token_seconds=settings.target_first_token_seconds,
            token_seconds=settings.target_token_seconds,
        )

    def throughput(self, settings: BatchSettings) -> Throughput:
        """See `study.Pods`."""
        patient = replace(
            settings,
            target_first_token_seconds=None,
            target_token_seconds=None,
            lateness=Lateness.SERVE,
            request_timeout_seconds=_PATIENCE_SECONDS,
            max_queue_size=self.traffic.requests + _LESSONS,
        )
        prompts, outputs = self._lengths(self.traffic.requests)
        work = self.engine.figures.work(float(np.mean(prompts)), float(np.mean(outputs)))
        flooded = self.run(patient, 1, _FLOOD / work)
        return Throughput(requests=flooded.answered, output_tokens=flooded.output_tokens)

    def alone_share(self, settings: BatchSettings) -> float | None:
        """See `study.Pods`."""
        if settings.target_first_token_seconds is None and settings.target_token_seconds is None:
            return None
        return self.engine.in_time_alone(settings, self._lengths(self.traffic.requests)[0])

    def changes(self, spec: Spec) -> Iterator[Change]:
        """See `study.Pods`."""
        settings = batch_settings(spec)
        sequences = self.engine.figures_with(settings).sequences
        return text_changes(settings, sequences, ours=self.engine.ours)

    def _lengths(self, count: int, of: str = "") -> tuple[list[int], list[int]]:
        """Of prompts and answers."""
        return (
            self.traffic.sizes.lengths.draw(count, stream(self.seed, f"{of}prompts")),
            self.outputs.lengths.draw(count, stream(self.seed, f"{of}outputs")),
        )

    def _lesson(self, settings: BatchSettings, rate: float) -> list[Call]:
        """Requests of a minute that teach the policy."""
        most = min(_LESSONS, 2 * round(rate * _LESSON_SECONDS) + 8)
        times = Poisson().times(most, rate, stream(self.seed, "lesson arrivals"))
        calls = self._calls(settings, times, "lesson ")
        return [call for call in calls if call.arrived < _LESSON_SECONDS]

    def _calls(self, settings: BatchSettings, times: list[int], of: str = "") -> list[Call]:
        """One for each time; those of a lesson have numbers below 0."""
        prompts, outputs = self._lengths(len(times), of)
        return [
            Call(
                number=-1 - n if of else n,
                share=_CALLER,
                prompt=prompts[n],
                output=outputs[n],
                arrived=at / _NANOSECONDS,
                patience=settings.request_timeout_seconds,
            )
            for n, at in enumerate(times)
        ]
