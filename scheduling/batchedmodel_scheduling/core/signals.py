"""What a policy does by itself, as metrics: how large, how long, how late, and what it could."""

import math
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.core.policy import Item
from batchedmodel_scheduling.latency.batch_times import BatchTimes

_WEIGHT: Final = 0.1  # of the newest batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The state of the adaptation; the last four are None without a whole profile or a target."""

    effective_batch_size: float
    """Rows, over the recent batches."""
    effective_wait_seconds: float
    """From a row's arrival to its release, over the recent batches."""
    predicted_lateness_seconds: float
    """By how much a batch's most urgent row was expected to miss its due time when it left."""
    target_feasible: bool | None
    """Whether a row of usual length on an idle server meets the target."""
    sustainable_rate: float | None
    """Rows a second of usual length that one server can answer within the target."""
    sustainable_share: float | None
    """The same as a share of what full batches would answer, above 0 and at most 1; None also for a
    target that not even one row meets."""
    smallest_feasible_target_seconds: float | None
    """What such a row needs on an idle server."""


class Recent:
    """Running averages over the batches that left."""

    def __init__(self) -> None:
        self.batch_size = 0.0
        self.wait = 0.0
        self.lateness = 0.0
        self.length = 1.0
        """Of a row, whatever batch it was in."""
        self._rows = self._tokens = 0.0
        self._seen = False

    def observe(self, items: list[Item], now: float, ends: float) -> None:
        """A batch leaves; it is expected to end at `ends`."""
        count = len(items)
        arrived, length, due = 0.0, 0.0, math.inf
        for item in items:
            arrived += item.arrived
            length += item.length
            due = min(due, item.due)
        wait, late = now - arrived / count, max(0.0, ends - due)
        part = _WEIGHT if self._seen else 1.0
        self._seen = True
        self.batch_size += part * (count - self.batch_size)
        self.wait += part * (wait - self.wait)
        self.lateness += part * (late - self.lateness)
        self._rows += part * (count - self._rows)
        self._tokens += part * (length - self._tokens)
        self.length = self._tokens / self._rows


def signals(recent: Recent, times: BatchTimes, hand_off: float, settings: BatchSettings) -> Signals:
    """Averages of what was done, and what the device allows."""
    feasible, rate, share, smallest = None, None, None, None
    if times.counts_seconds:
        table = times.upper_table(max(1, round(recent.length)), settings.max_batch_size)
        smallest = hand_off + table[1]
        target = settings.target_seconds
        feasible = None if target is None else smallest <= target
        rate = sustainable_rate(table[: settings.max_batch_size + 1], target)
        full = settings.max_batch_size / table[settings.max_batch_size]
        share = min(1.0, rate / full) if rate else None
    return Signals(
        effective_batch_size=recent.batch_size,
        effective_wait_seconds=recent.wait,
        predicted_lateness_seconds=recent.lateness,
        target_feasible=feasible,
        sustainable_rate=rate,
        sustainable_share=share,
        smallest_feasible_target_seconds=smallest,
    )


def sustainable_rate(table: list[float], target: float | None) -> float:
    """Rows a second in time, by seconds per batch size from 0 on; 0 if not even one is.

    An item that comes just after a batch has left waits for that batch and then for its own: twice
    the time of a batch must fit into the target.
    """
    longest = math.inf if target is None else target / 2
    rates = [rows / table[rows] for rows in range(1, len(table)) if table[rows] <= longest]
    return max(rates, default=0.0)
