"""How much work was offered in each second of the last minute.

Written by the batcher, read by the autoscaler through `/v1/stats`. Refused work counts too: an
overload that is shed must not look like calm.
"""

from batchedmodel_contract.processes.stats import BUCKET_SECONDS, BUCKETS


class WorkMeter:
    """A ring of one-second buckets; times are monotonic seconds."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._buckets = [0.0] * BUCKETS
        self._newest = self._second(started)
        self._changes_at = (self._newest + 1) * BUCKET_SECONDS
        self._requests = 0
        self.total = 0.0
        """Work since the start."""

    def add(self, work: float, now: float) -> None:
        """A request brought so much work."""
        self._requests += 1
        self._put(work, now)

    def add_unseen(self, now: float) -> None:
        """A request was refused before its body was read: it counts as an average one."""
        if self._requests:
            self._put(self.total / self._requests, now)
            self._requests += 1

    def buckets(self, now: float) -> tuple[float, ...]:
        """The last minute, oldest second first; the present second is the last and not over yet."""
        self._advance(now)
        start = (self._newest + 1) % BUCKETS
        return tuple(self._buckets[start:] + self._buckets[:start])

    def age(self, now: float) -> float:
        """Seconds since counting began."""
        return now - self._started

    def _put(self, work: float, now: float) -> None:
        if now >= self._changes_at:
            self._advance(now)
        self._buckets[self._newest % BUCKETS] += work
        self.total += work

    def _advance(self, now: float) -> None:
        second = self._second(now)
        for passed in range(max(self._newest, second - BUCKETS) + 1, second + 1):
            self._buckets[passed % BUCKETS] = 0.0
        self._newest = max(self._newest, second)
        self._changes_at = (self._newest + 1) * BUCKET_SECONDS

    @staticmethod
    def _second(now: float) -> int:
        return int(now // BUCKET_SECONDS)
