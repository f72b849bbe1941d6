"""What every policy has: settings, a pipeline, bounds, running averages, words for a full queue."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import Rejection, ReleaseReason
from batchedmodel_scheduling.core.limits import limits
from batchedmodel_scheduling.core.pipeline import Pipeline
from batchedmodel_scheduling.core.policy import (
    Batch,
    Event,
    Item,
    MemoryCap,
    Policy,
    Refusal,
)
from batchedmodel_scheduling.core.signals import Recent, Signals, signals
from batchedmodel_scheduling.lora.companions import Turn, companions

_UNKNOWN_SECONDS: Final = 0.05  # of a batch, where nobody has measured any
_RETRY_UNKNOWN: Final = 1.0
# Not as a pair: compiled by mypyc 2.4, a constant pair of numbers reads as one that is not set.
_RETRY_SHORTEST: Final = 0.01
_RETRY_LONGEST: Final = 60.0


class BasePolicy(Policy):
    """A policy of the product. The sidecar asks it for more than `Policy` has."""

    def __init__(self, settings: BatchSettings, pipeline: Pipeline) -> None:
        self.pipeline: Final = pipeline
        self.memory = MemoryCap(cost=None)
        self.recent = Recent()
        self._use(settings)

    @abstractmethod
    def refusal(self) -> Refusal | None:
        """What an item would be told now whatever it holds: known before its body is read."""

    @abstractmethod
    def waiting(self) -> Iterator[Item]:
        """All waiting items, for a successor."""

    @abstractmethod
    def take_over(self, item: Item) -> None:
        """Let an item wait that a predecessor had accepted."""

    def observe(self, event: Event, now: float) -> None:
        """Learn what became of a released batch, or what the server holds."""
        if isinstance(event, MemoryCap):
            self.memory = event
            self._use(self.settings)
        else:
            self.pipeline.observe(event, now)

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Use other settings from now on."""
        self._use(settings)

    def work(self, length: int) -> float:
        """What an item of this length costs: seconds of the device, its share of a full batch.

        Full batches instead of seconds while not all of the device was measured.
        """
        rows = self.settings.max_batch_size
        share = self.pipeline.times.share(length, rows)
        return 1 / rows if share is None else share

    def batch_work(self, lengths: Sequence[int]) -> float:
        """What a batch of items of these lengths costs, in the units of `work`."""
        seconds = self.pipeline.times.paid(lengths)
        work = None if seconds is None else self.work_of(seconds, max(lengths))
        return len(lengths) / self.settings.max_batch_size if work is None else work

    def work_of(self, seconds: float, longest: int) -> float | None:
        """What so long a time of the device is in these units; None while nothing is known.

        `longest`: of the items that it was for.
        """
        times, rows = self.pipeline.times, self.settings.max_batch_size
        if times.counts_seconds:
            return seconds
        full = times.table(longest, rows)[rows] * times.drift.scale
        return seconds / full if full else None

    def rank(self, item: Item) -> float:
        """Which of one tenant's items comes first, in seconds: the lowest."""
        return item.arrived

    def retry_after(self, rows: int | None) -> float:
        """The time to serve so many rows; None for what no time helps."""
        if rows is None:
            return _RETRY_LONGEST
        drain = self.pipeline.drain_seconds(rows)
        delay = _RETRY_UNKNOWN if drain is None else drain
        return min(_RETRY_LONGEST, max(_RETRY_SHORTEST, delay))

    def signals(self) -> Signals:
        """What is adapted without being set."""
        return signals(self.recent, self.pipeline.times, self.pipeline.hand_off, self.settings)

    def _use(self, settings: BatchSettings) -> None:
        self.settings = settings
        self.most_waiting = settings.max_queue_size - settings.spare_rows
        """Rows."""
        self.pipeline.most_workers = settings.max_concurrent_batches
        self.limits = limits(settings, self.memory, self.pipeline.times.rule)

    def _queue_full(self, rows: int) -> Refusal | None:
        if rows < self.most_waiting:
            return None
        return Refusal(reason=Rejection.QUEUE_FULL, retry_after=self.retry_after(rows))

    def _companions(self, waiting: Sequence[Item], rows: int, now: float) -> list[int]:
        """The places of those that leave together for their adapters' sake; at most so many."""
        lengths = [item.length for item in waiting[:rows]]
        seconds = self.pipeline.times.predict(lengths) or _UNKNOWN_SECONDS
        turn = Turn(rows=rows, now=now, seconds=seconds)
        return companions(waiting, self.pipeline.adapters, turn)

    def _released(self, items: list[Item], reason: ReleaseReason, now: float) -> Batch:
        """Make a batch of items that no longer wait."""
        lengths = [item.length for item in items]
        ends = self.pipeline.starts_at(now) + (self.pipeline.times.predict(lengths) or 0.0)
        self.recent.observe(items, now, ends)
        return self.pipeline.release(items, reason)
