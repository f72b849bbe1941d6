"""What `/metrics` says. Counters and gauges are read from the ledger, which is always exact.

The registry is handed in, so that every test and every process has its own.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from batchedmodel_contract.lora import AdapterPhase
from batchedmodel_contract.outcomes import Outcome, Rejection, ReleaseReason
from batchedmodel_contract.processes import sidecar_metrics as names
from batchedmodel_scheduling.batching.policy import Signals
from batchedmodel_scheduling.generation.admission import Admission
from batchedmodel_sidecar.compiled import is_compiled
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.telemetry.generation_counts import GenerationCounts
from batchedmodel_sidecar.telemetry.ledger import Durations, Histogram, Ledger, TenantCounts

AtWork = Callable[[], tuple[set[str], set[str]]]
"""The adapters of what is at the server, and of what waits."""


class DurationsCollector(Collector):
    """Shows the histograms."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations

    def collect(self) -> Iterator[Metric]:
        """All of them as they are now."""
        known = self._durations
        yield _histogram(names.QUEUE_DURATION, "From a row's arrival to its release", known.queue)
        doc = "Forward pass, as the server measured it"
        yield _histogram(names.MODEL_DURATION, doc, known.model)
        doc = "From a call's acceptance to its end"
        yield _histogram(names.REQUEST_DURATION, doc, known.request)
        yield _histogram(names.LOOP_LAG, "By how much the loop woke late", known.loop_lag)
        yield _histogram(names.BATCH_SIZE, "Rows in a released batch", known.batch_size)


@dataclass(frozen=True, kw_only=True, eq=False)
class LedgerCollector(Collector):
    """Shows the ledger and the few facts of the other parts at the moment of the scrape."""

    ledger: Ledger
    settings_hash: Callable[[], str]
    settings_errors: Callable[[], int]
    model_is_ready: Callable[[], bool]
    circuit_is_open: Callable[[], bool]
    oldest_age: Callable[[], float]
    signals: Callable[[], Signals]
    clock: Callable[[], float]

    def collect(self) -> Iterator[Metric]:
        """One pass over the books, in one turn of the loop: the figures belong together."""
        books = self.ledger
        yield _counter(names.REQUESTS_OFFERED, "Calls that were told a verdict", books.offered)
        yield _counter(names.REQUESTS_ACCEPTED, "Calls that were accepted", books.accepted)
        yield _by(names.REQUESTS_REJECTED, "Calls refused", "reason", Rejection, books.rejected)
        yield _by(names.REQUESTS_SETTLED, "Accepted calls", "outcome", Outcome, books.settled)
        doc = "Completed calls that were answered after their target"
        yield _counter(names.REQUESTS_LATE, doc, books.late)
        doc = "Calls that asked for more priority than they may have"
        yield _counter(names.UNTRUSTED_PRIORITIES, doc, books.untrusted_priorities)
        cancelled = CounterMetricFamily(names.CANCELLED, "Callers that left", labels=["stage"])
        cancelled.add_metric(["queued"], books.cancelled_waiting)
        cancelled.add_metric(["inflight"], books.cancelled_in_flight)
        yield cancelled
        yield _counter(names.OFFERED_ITEMS, "Rows offered, accepted or not", books.rows_offered)
        returned = "Rows that waited again: the server died over them, or asked for rest"
        yield _counter(names.RETURNED_ITEMS, returned, books.rows_returned)
        served, refused = names.TENANT_SERVED_ITEMS, names.TENANT_REFUSED_ITEMS
        yield from _by_name("tenant", books.tenants, served, refused, "Rows not let in")
        waiting = GaugeMetricFamily(names.TENANT_QUEUE_LENGTH, "Rows that wait", labels=["tenant"])
        for rows in books.tenants.rows():
            waiting.add_metric([rows.tenant], rows.waiting)
        yield waiting
        yield _by(names.BATCHES, "Batches released", "reason", ReleaseReason, books.batches)
        yield _gauge(names.QUEUE_LENGTH, "Rows that wait", books.rows_waiting)
        yield _gauge(names.QUEUE_OLDEST_AGE, "Of the calls that wait", self.oldest_age())
        yield _gauge(names.QUEUE_REQUESTS, "Calls that wait", books.waiting)
        at_model = books.in_flight + books.passing
        yield _gauge(names.INFLIGHT_REQUESTS, "Calls at the model", at_model)
        yield _gauge(names.INFLIGHT_BATCHES, "Batches at the model", books.batches_in_flight)
        yield _gauge(names.EXECUTING_ITEMS, "Rows at the model", books.rows_at_model.value)
        now = self.clock()
        waited = books.waiting_rows.integral(now)
        yield _counter(names.QUEUE_ITEM_SECONDS, "Rows that wait, over time", waited)
        executed = books.rows_at_model.integral(now)
        yield _counter(names.EXECUTING_ITEM_SECONDS, "Rows at the model, over time", executed)
        yield _counter(names.TOKENS, "Of answered rows, as the server counts", books.tokens)
        yield _counter(names.PADDED_TOKENS, "Computed for them, padding too", books.padded_tokens)
        doc = "Rows that ran alone for longer than texts beside them had time for"
        yield _counter(names.LONG_ROWS, doc, books.long_rows)
        yield _gauge(names.CIRCUIT_OPEN, "1 if batches keep failing", self.circuit_is_open())
        yield _gauge(names.MODEL_READY, "1 if the model answers", self.model_is_ready())
        yield from _adaptive(self.signals())
        doc = "Settings files that could not be used"
        yield _counter(names.SETTINGS_ERRORS, doc, self.settings_errors())
        doc = "1 if what runs for each request is compiled"
        yield _gauge(names.COMPILED, doc, is_compiled())
        in_force = GaugeMetricFamily(names.SETTINGS, "Batch settings in force", labels=["hash"])
        in_force.add_metric([self.settings_hash()], 1)
        yield in_force


@dataclass(frozen=True, kw_only=True, eq=False)
class GenerationCollector(Collector):
    """Shows what is known of generated text."""

    counts: GenerationCounts
    admission: Callable[[], Admission]
    """By which requests go at present."""
    model: Callable[[], ReadyModel | None]
    """The one that can be asked now."""

    def collect(self) -> Iterator[Metric]:
        """All of it as it is now."""
        counts, admission = self.counts, self.admission()
        yield _histogram(names.GENERATION_QUEUE, "Until requests go to the server", counts.queued)
        doc = "From a request's arrival to its first token, of streams"
        yield _histogram(names.FIRST_TOKEN, doc, counts.first_token)
        doc = "Mean time between the tokens of a stream"
        yield _histogram(names.OUTPUT_TOKEN, doc, counts.output_token)
        doc = "Of answered requests, as the server counts or as estimated"
        yield _counter(names.PROMPT_TOKENS, doc, counts.prompt_tokens)
        doc = "Of prompts, those that our engine had in its cache"
        yield _counter(names.CACHED_TOKENS, doc, counts.cached_tokens)
        yield _counter(names.OUTPUT_TOKENS, "Generated tokens", counts.output_tokens)
        yield _gauge(names.GENERATION_RUNNING, "Requests at the server", admission.running)
        yield _gauge(names.GENERATION_WAITING, "Requests that wait here", admission.waiting)
        limit = admission.limit
        yield _gauge(names.GENERATION_LIMIT, "Requests that may be at the server", limit)
        doc = "Texts of our engine that gave their blocks to others and were computed anew"
        yield _counter(names.PREEMPTIONS, doc, counts.preemptions)
        yield _gauge(names.CACHE_USAGE, "Of the server's cache, 0 to 1", counts.cache_usage)
        blocks = GaugeMetricFamily(
            names.CACHE_INFO,
            "Tokens of a block of our engine's cache, and blocks on whichever device it has",
            labels=["block_size", "num_gpu_blocks"],
        )
        model = self.model()
        if model is not None and (engine := model.generation) is not None:
            blocks.add_metric([str(engine.block_tokens), str(engine.blocks)], 1)
        yield blocks


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptersCollector(Collector):
    """Shows them at the moment of the scrape."""

    served: ServedAdapters
    counts: TenantCounts
    works: Sequence[AtWork]
    slots: int
    """Adapters that the device has at once."""
    wall_clock: Callable[[], float] = time.time
    """Seconds since 1970."""

    def collect(self) -> Iterator[Metric]:
        """All of it; of adapters the largest ten have a series, the others share one."""
        served, refused = names.ADAPTER_SERVED_ITEMS, names.ADAPTER_REFUSED_ITEMS
        yield from _by_name("adapter", self.counts, served, refused, "Rows refused")
        phases = Counter(state.phase for state in self.served.states)
        doc = "Versions of adapters, by their phase"
        told = GaugeMetricFamily(names.ADAPTERS, doc, labels=["phase"])
        for phase in AdapterPhase:
            told.add_metric([phase.value], phases[phase])
        yield told
        running: set[str] = set()
        waiting: set[str] = set()
        for work in self.works:
            at_server, in_line = work()
            running |= at_server
            waiting |= in_line
        # The value says when: a reader that finds several series believes the last.
        info = GaugeMetricFamily(
            names.LORA_REQUESTS,
            "When it was told which adapters requests have, at the server and waiting",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        lists = (",".join(sorted(found)) for found in (running, waiting))
        info.add_metric([str(self.slots), *lists], self.wall_clock())
        yield info


def _by_name(
    label: str, books: TenantCounts, served: str, refused: str, refused_doc: str
) -> Iterator[Metric]:
    answered = CounterMetricFamily(served, "Rows answered", labels=[label])
    not_let_in = CounterMetricFamily(refused, refused_doc, labels=[label])
    for rows in books.rows():
        answered.add_metric([rows.tenant], rows.served)
        not_let_in.add_metric([rows.tenant], rows.refused)
    yield from (answered, not_let_in)


def _adaptive(signals: Signals) -> Iterator[Metric]:
    """How the policy adapts, and what it makes of the target; no sample of what nobody knows."""
    size = signals.effective_batch_size
    yield _gauge(names.EFFECTIVE_BATCH_SIZE, "Rows in a batch, lately", size)
    wait = signals.effective_wait_seconds
    yield _gauge(names.EFFECTIVE_WAIT, "From a row's arrival to its release, lately", wait)
    lateness = signals.predicted_lateness_seconds
    yield _gauge(names.PREDICTED_LATENESS, "By how much batches left too late, lately", lateness)
    feasible = signals.target_feasible
    yield _gauge(names.TARGET_FEASIBLE, "1 if an idle server meets the target", feasible)
    rate = signals.sustainable_rate
    yield _gauge(names.SUSTAINABLE_RATE, "Rows a second that are in time", rate)
    least = signals.smallest_feasible_target_seconds
    yield _gauge(names.SMALLEST_FEASIBLE_TARGET, "Least target that an idle server meets", least)


def _gauge(name: str, doc: str, value: float | None) -> Metric:
    return GaugeMetricFamily(name, doc, value)


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(name, doc, value)


def _histogram(name: str, doc: str, histogram: Histogram) -> Metric:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, histogram.cumulative(), strict=True))
    return HistogramMetricFamily(name, doc, buckets=buckets, sum_value=histogram.sum)


def _by(
    name: str,
    doc: str,
    label: str,
    members: type[StrEnum],
    values: Mapping[Any, int],
) -> Metric:
    """One series for every member, zero included: a rate over a series that appears is wrong."""
    family = CounterMetricFamily(name, doc, labels=[label])
    for member in members:
        family.add_metric([member.value], values.get(member, 0))
    return family
