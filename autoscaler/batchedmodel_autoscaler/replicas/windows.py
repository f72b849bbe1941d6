"""What the autoscaler remembers of one sidecar: the work of its last minute and a few gauges.

Times are arguments, monotonic seconds. Owned by the autoscaler's state, or by the simulated loop.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from batchedmodel_contract.processes.stats import BUCKET_SECONDS, BUCKETS, SidecarStats

WINDOW_SECONDS: Final = BUCKETS * BUCKET_SECONDS
"""Over which the rate of offered work is taken."""
PANIC_SECONDS: Final = 6.0
"""Over which a sudden rise is seen: well within one look of the HPA. Knative's panic window."""
SHORTEST_SECONDS: Final = 10.0
"""A rate is taken over at least this, as the first second of a model says too little."""
GAUGE_SECONDS: Final = 30.0
"""Over which gauges are averaged: two of the HPA's own steps."""

# The newest bucket is still being filled; on average half of it is over.
_COUNTED_SECONDS: Final = WINDOW_SECONDS - BUCKET_SECONDS / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The work that one run of a sidecar counted, as of one answer."""

    received: float
    age_seconds: float
    """How long it had been counting by then."""
    buckets: tuple[float, ...]
    """Device-seconds per second, oldest first."""

    @property
    def counted(self) -> tuple[float, float]:
        """The time that the buckets speak of."""
        return self.received - min(self.age_seconds, _COUNTED_SECONDS), self.received

    @property
    def rate(self) -> float:
        """Device-seconds offered per second, as of the answer."""
        start, end = self.counted
        return sum(self.buckets) / max(SHORTEST_SECONDS, end - start)

    @property
    def panic_rate(self) -> float:
        """The same over the panic window; the newest second is not over yet and is left out."""
        newest = round(PANIC_SECONDS / BUCKET_SECONDS)
        return sum(self.buckets[-newest - 1 : -1]) / PANIC_SECONDS

    @property
    def panic_variance(self) -> float:
        """Of the panic rate: how far chance alone moves it.

        From the differences of one second to the next (von Neumann's estimate), which a rise of the
        rate hardly changes. Cheap rows leave it near 0; a few heavy ones, which would look like a
        rise, do not.
        """
        seen = max(2, min(BUCKETS - 1, int(self.age_seconds / BUCKET_SECONDS)))
        buckets = self.buckets[-seen - 1 : -1]
        squares = sum((later - earlier) ** 2 for earlier, later in pairwise(buckets))
        return squares / (2 * (seen - 1) * BUCKET_SECONDS * PANIC_SECONDS)

    def work(self, now: float, seconds: float = WINDOW_SECONDS) -> float:
        """Device-seconds that arrived in the last so many seconds before `now`, up to a minute."""
        span = (seconds - max(0.0, now - self.received)) / BUCKET_SECONDS
        if span <= 0:
            return 0.0
        whole = int(span)
        work = sum(self.buckets[BUCKETS - whole :])
        if whole < BUCKETS:
            # Of the bucket that is just leaving the window, the part that is still in it.
            work += (span - whole) * self.buckets[BUCKETS - whole - 1]
        return work

    def over(self, now: float) -> bool:
        """Whether nothing of it lies within the last minute."""
        return now - self.received >= WINDOW_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What waits at one moment, or on average."""

    backlog_work: float = 0.0
    """Device-seconds."""
    queue_length: float = 0.0
    outstanding: float = 0.0
    """Rows."""
    queue_wait: float | None = 0.0
    """Seconds that a row waited; None while too little was told."""


class _Sample(NamedTuple):
    """What is kept of an answer: numbers alone, as thousands of pods have ten of these."""

    received: float
    age_seconds: float
    backlog_work: float
    queue_length: int
    outstanding: int
    waited_row_seconds: float | None
    released_rows: int | None


class History:
    """One pod's sidecar, over its restarts."""

    def __init__(self) -> None:
        self.stats: SidecarStats | None = None
        """The newest answer."""
        self.received = float("-inf")
        self.rows_per_second: float | None = None
        """What a pod like this can do, as others showed; read while its sidecar has no profile."""
        self._samples: deque[_Sample] = deque()

    def record(self, stats: SidecarStats, now: float) -> Window | None:
        """Take an answer in; returns what an earlier run of the sidecar leaves behind."""
        left = None
        if self.stats is not None and self.stats.instance != stats.instance:
            left = self.window()
            self._samples.clear()
        self.stats, self.received = stats, now
        self._samples.append(
            _Sample(
                now,
                stats.age_seconds,
                stats.backlog_work,
                stats.queue_length,
                stats.outstanding,
                stats.waited_row_seconds,
                stats.released_rows,
            )
        )
        while self._samples[0].received <= now - GAUGE_SECONDS:
            self._samples.popleft()
        return left

    def window(self) -> Window | None:
        """The work of its last minute; None where work is not yet in seconds of a device.

        Where the latency target allows only small batches, work takes longer than in full ones: it
        counts as the time that it takes within the target.
        """
        if self.stats is None:
            return None
        seconds = self.batch_seconds
        if self.stats.profile_known:
            seconds = 1.0 / (self.stats.sustainable_share or 1.0)
        if seconds is None:
            return None
        return Window(
            received=self.received,
            age_seconds=self.stats.age_seconds,
            buckets=tuple(work * seconds for work in self.stats.offered_work),
        )

    @property
    def batch_seconds(self) -> float | None:
        """Of a full batch, by `rows_per_second`: the unit of work without a profile."""
        if self.stats is None or not self.rows_per_second:
            return None
        return self.stats.max_batch_size / self.rows_per_second

    def gauges(self) -> Gauges:
        """Averages of the last answers. Polls are jittered, so a plain mean has no bias."""
        samples = self._samples
        count = max(1, len(samples))
        return Gauges(
            backlog_work=sum(one.backlog_work for one in samples) / count,
            queue_length=sum(one.queue_length for one in samples) / count,
            outstanding=sum(one.outstanding for one in samples) / count,
            queue_wait=_queue_wait(samples),
        )


def _queue_wait(samples: Sequence[_Sample]) -> float | None:
    """How long a row waited, from the first of the answers to the last.

    By Little's law: exact whatever happened between two answers. While nothing leaves, it is as
    long as the rows were seen to wait.
    """
    if not samples:
        return None
    last = samples[-1]
    waited, released = last.waited_row_seconds, last.released_rows
    if len(samples) > 1:
        before, left = samples[0].waited_row_seconds, samples[0].released_rows
    else:
        before, left = (0.0, 0) if last.age_seconds <= GAUGE_SECONDS else (None, None)
    if waited is None or released is None or before is None or left is None:
        return None
    return max(0.0, waited - before) / (max(0, released - left) or max(1, last.queue_length))


def covered_seconds(windows: Iterable[Window], now: float) -> float:
    """How much of the last minute at least one of the windows speaks of."""
    covered, reached = 0.0, now - WINDOW_SECONDS
    for start, end in sorted(window.counted for window in windows):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
