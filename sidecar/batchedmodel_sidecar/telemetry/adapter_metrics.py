"""What `/metrics` says of adapters, of a model that may have some."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from batchedmodel_contract.lora import AdapterPhase
from batchedmodel_contract.processes import sidecar_metrics as names
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.telemetry.ledger import TenantCounts

AtWork = Callable[[], tuple[set[str], set[str]]]
"""The adapters of what is at the server, and of what waits."""


class AdaptersCollector(Collector):
    """Shows them at the moment of the scrape."""

    def __init__(
        self,
        served: ServedAdapters,
        counts: TenantCounts,
        works: Sequence[AtWork],
        slots: int,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`slots`: adapters that the device has at once; `wall_clock`: seconds since 1970."""
        self._served = served
        self._counts = counts
        self._works = works
        self._slots = slots
        self._wall_clock = wall_clock

    def collect(self) -> Iterator[Metric]:
        """All of it; of adapters the largest ten have a series, the others share one."""
        label = ["adapter"]
        served = CounterMetricFamily(names.ADAPTER_SERVED_ITEMS, "Rows answered", labels=label)
        refused = CounterMetricFamily(names.ADAPTER_REFUSED_ITEMS, "Rows refused", labels=label)
        for rows in self._counts.rows():
            served.add_metric([rows.tenant], rows.served)
            refused.add_metric([rows.tenant], rows.refused)
        yield from (served, refused)
        phases = Counter(state.phase for state in self._served.states)
        doc = "Versions of adapters, by their phase"
        told = GaugeMetricFamily(names.ADAPTERS, doc, labels=["phase"])
        for phase in AdapterPhase:
            told.add_metric([phase.value], phases[phase])
        yield told
        running: set[str] = set()
        waiting: set[str] = set()
        for work in self._works:
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
        info.add_metric([str(self._slots), *lists], self._wall_clock())
        yield info
