"""What is counted and measured of generated text, for metrics and for the autoscaler.

Work is in seconds of the device, by tokens. A server has a second resource, its cache: a second in
which more of the cache was used than of the device counts as so much of a second.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.processes.stats import BUCKET_SECONDS, SidecarStats
from batchedmodel_sidecar.telemetry.ledger import SECONDS, Histogram, Ledger, OfferedWork, WorkMeter

_TOKEN_SECONDS: Final[Sequence[float]] = (
    0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
)  # fmt: skip


class GenerationCounts(OfferedWork):
    """Plain numbers with one writer."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        super().__init__(ledger, now)
        self._cache: Final = WorkMeter(now)
        self.any = False
        """Whether anything was offered yet."""
        self.queued: Final = Histogram(SECONDS)
        """From a request's arrival until it goes to the server."""
        self.first_token: Final = Histogram(SECONDS)
        """From a request's arrival to its first token, where it streams."""
        self.output_token: Final = Histogram(_TOKEN_SECONDS)
        """Mean time between the tokens of a stream that ended."""
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        """Of prompts, that were in the engine's cache; of our engine only."""
        self.preemptions = 0
        """Sequences that gave way to others since the engine's start; of our engine only."""
        self.cache_usage: float | None = None
        """Of the server's cache, from 0 to 1; None where nobody says so."""

    def asked(self, work: float, now: float) -> None:
        """A request brought so much work, whether it was let in or not."""
        self.any = True
        self.ledger.rows_offered += 1
        self.add(work, 1, now)

    def refused_unread(self, now: float) -> None:
        """A request was refused before it was read: it counts as an average one."""
        self.any = True
        self.add_unseen(1, now)

    def ended(self, prompt_tokens: int, output_tokens: int) -> None:
        """A request ended that had so many."""
        if output_tokens:
            self.prompt_tokens += prompt_tokens
            self.output_tokens += output_tokens

    def cache_used(self, usage: float | None, now: float) -> None:
        """So much of the server's cache is in use."""
        self.cache_usage = usage
        if usage is not None:
            self._cache.at_least(usage * BUCKET_SECONDS, now)

    def texts_stats(
        self,
        settings: BatchSettings,
        now: float,
        *,
        backlog: float,
        at_once: int,
        model_ready: bool,
        draining: bool,
    ) -> SidecarStats:
        """What the autoscaler is told. `at_once`: requests that may be at the server."""
        return SidecarStats(
            model_ready=model_ready,
            draining=draining,
            profile_known=True,
            offered_work=tuple(map(max, self._meter.buckets(now), self._cache.buckets(now))),
            backlog_work=max(0.0, backlog),
            max_batch_size=at_once,
            **self._counted(settings, now),
        )


def with_batches(texts: SidecarStats, batches: SidecarStats) -> SidecarStats:
    """What is told where one server generates texts and runs batches: both take its time."""
    if not batches.profile_known:
        return texts  # its work has another unit
    work = zip(texts.offered_work, batches.offered_work, strict=True)
    return replace(
        texts,
        offered_work=tuple([one + other for one, other in work]),
        backlog_work=max(texts.backlog_work, batches.backlog_work),
    )
