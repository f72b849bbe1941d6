"""What the autoscaler tells about itself: metrics in Prometheus' form, and probes."""

from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum
from typing import Final

from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)
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


_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


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
            REGISTERED, "APIServices that carry our authority", registry=registry
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


def admin_application(
    registry: CollectorRegistry,
    missing: Callable[[], list[str]],
    of_models: Callable[[], Awaitable[str]],
) -> web.Application:
    """The routes of the admin port: probes for the kubelet, and these metrics.

    `missing`: what must still come before questions can be answered. `of_models`: the text of the
    metrics that each model has.
    """

    async def live(request: web.Request) -> web.Response:
        return web.Response(text="live\n")

    async def ready(request: web.Request) -> web.Response:
        awaited = missing()
        if awaited:
            return web.Response(status=503, text=f"not there yet: {', '.join(awaited)}\n")
        return web.Response(text="ready\n")

    async def metrics(request: web.Request) -> web.Response:
        body = generate_latest(registry) + (await of_models()).encode()
        return web.Response(body=body, headers={"Content-Type": _METRICS_TYPE})

    application = web.Application()
    application.router.add_get("/livez", live)
    application.router.add_get("/readyz", ready)
    application.router.add_get("/metrics", metrics)
    return application
