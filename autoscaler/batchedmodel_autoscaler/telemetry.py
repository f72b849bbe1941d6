"""What the autoscaler tells about itself in Prometheus' form.

The registry is handed in, so that every test and every process has its own.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from batchedmodel_contract.processes.sidecar_metrics import PREFIX

ANSWERS: Final = f"{PREFIX}_autoscaler_answers_total"  # metric, reason
POLLS: Final = f"{PREFIX}_autoscaler_polls_total"  # result
MODELS: Final = f"{PREFIX}_autoscaler_models"
PODS: Final = f"{PREFIX}_autoscaler_pods"
REGISTERED: Final = f"{PREFIX}_autoscaler_registered"
LEFT_OUT: Final = f"{PREFIX}_autoscaler_unreadable_objects_total"
LEADER: Final = f"{PREFIX}_autoscaler_leader"
CERTIFICATE_ENDS: Final = f"{PREFIX}_autoscaler_certificate_end_timestamp_seconds"


class PollResult(StrEnum):
    """How a question to a sidecar ended."""

    ANSWERED = "answered"
    SILENT = "silent"
    OTHER = "other"
    """Another pod has the address by now: what it says is dropped."""


class Telemetry:
    """Counts what happens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.answers: Final = Counter(
            ANSWERS, "Answers given to HPAs", ["metric", "reason"], registry=registry
        )
        """By the metric that was asked for, and why it has its value or is refused."""
        self.polls: Final = Counter(POLLS, "Questions to sidecars", ["result"], registry=registry)
        self.registered: Final = Gauge(
            REGISTERED, "APIServices that carry our authority, of two", registry=registry
        )
        self.certificate_ends: Final = Gauge(
            CERTIFICATE_ENDS, "When the serving certificate ends", registry=registry
        )
        ProcessCollector(registry=registry)


class StateCollector(Collector):
    """How much there is to watch, and who writes, at the moment of the scrape."""

    def __init__(
        self,
        counts: Callable[[], tuple[int, int]],
        leads: Callable[[], bool],
        left_out: Callable[[], int],
    ) -> None:
        self._counts = counts
        self._leads = leads
        self._left_out = left_out

    def collect(self) -> Iterator[Metric]:
        """Models, pods, the leader and the objects that were left out."""
        models, pods = self._counts()
        yield GaugeMetricFamily(
            LEADER, "1 for the replica that writes what was learnt", value=self._leads()
        )
        yield GaugeMetricFamily(MODELS, "BatchedModels", value=models)
        yield GaugeMetricFamily(PODS, "Pods of BatchedModels", value=pods)
        yield CounterMetricFamily(
            LEFT_OUT, "Times that an object could not be read and was left out", self._left_out()
        )
