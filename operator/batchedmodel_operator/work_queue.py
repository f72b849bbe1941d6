"""Which BatchedModel is looked at next, and when. `WorkQueue` decides, `Workers` act.

Many events about one key make one look; a key is never looked at twice at the same time; an event
that comes during a look makes another one after it; and all looks together keep to a rate, so that
a thousand keys that fall due at once do not fall upon the API server at once. Where somebody waits
for a key, it passes those at which something merely may have changed: after a fail-over all are
due. The times follow the work queues of Kubernetes' own controllers (client-go's `workqueue`), the
rate is the generic cell rate algorithm.
"""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from batchedmodel_operator.errors import ClusterError, Conflict

_log: Final = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)

SPACING_SECONDS: Final = 1.0
"""A rollout makes dozens of events a second; one look answers all that came since the last. So no
status is written more often."""
SHORTEST_SPACING_SECONDS: Final = 0.2
"""Where somebody waits for the look, or the last one asked for it."""
FIRST_RETRY_SECONDS: Final = 0.5
LONGEST_RETRY_SECONDS: Final = 300.0
LOOKS_PER_SECOND: Final = 100.0
"""Each asks for some seven objects. One process gets no further than this anyway."""
LOOKS_IN_A_BURST: Final = 100
_SHORTEST_SLEEP_SECONDS: Final = 0.001
"""A timer rounds, and a wait of nothing at all would be a busy loop."""
_SHARE_SECONDS: Final = 1 / LOOKS_PER_SECOND
_JITTER: Final = 0.2


@dataclass(slots=True, kw_only=True)
class _Entry:
    due: float | None = None
    """None: nothing to do until an event."""
    running: bool = False
    asked_again: bool = False
    """An event came during the present look, which may have read too early to see its cause."""
    awaited: bool = False
    """Somebody waits for it: whoever edited the manifest."""
    failures: int = 0
    started: float = float("-inf")


class WorkQueue(Generic[K]):
    """Keys with the times at which they are due. Pure: time is an argument, nothing waits."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        """`jitter`: a number from 0 to 1, another one at each call."""
        self._jitter = jitter
        self._entries: dict[K, _Entry] = {}
        self._awaited: list[tuple[float, int, K]] = []
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._paid_until = float("-inf")
        """When the looks so far would end if each took its share of the rate."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: K, now: float, *, awaited: bool = False) -> None:
        """Something happened to the key; those that are `awaited` come before others."""
        entry = self._entries.setdefault(key, _Entry())
        if awaited and not entry.awaited:
            entry.awaited = True
            if entry.due is not None:
                self._push(key, entry, entry.due)
        if entry.running:
            entry.asked_again = True
        else:
            self._due(key, entry, self._earliest(entry, now))

    def take(self, now: float) -> K | None:
        """A key that is due; it counts as being looked at until `succeeded` or `failed`."""
        if now < self._allowed_at():
            return None
        for heap in (self._awaited, self._heap):
            while heap and heap[0][0] <= now:
                due, _, key = heapq.heappop(heap)
                entry = self._entries.get(key)
                if entry is None or entry.running or entry.due != due:
                    continue  # something earlier has replaced this time
                entry.running, entry.due, entry.started = True, None, now
                entry.awaited = False
                self._paid_until = max(self._paid_until, now) + _SHARE_SECONDS
                return key
        return None

    def wake_at(self) -> float | None:
        """When the next key is due, or an earlier time; None: not before an event."""
        heads = [heap[0][0] for heap in (self._awaited, self._heap) if heap]
        return max(min(heads), self._allowed_at()) if heads else None

    def succeeded(self, key: K, now: float, come_back_after: float | None) -> None:
        """The look ended well; None forgets the key."""
        entry = self._ended(key)
        entry.failures = 0
        if come_back_after is None and not entry.asked_again:
            del self._entries[key]
        self._again(key, entry, now)
        if come_back_after is not None:
            # A thousand keys that were all looked at when the process began must not stay in step.
            spread = 1 - _JITTER * self._jitter()
            earliest = entry.started + SHORTEST_SPACING_SECONDS
            self._due(key, entry, max(now + come_back_after * spread, earliest))

    def failed(self, key: K, now: float) -> float:
        """The look failed; returns the seconds until the next, unless an event comes first."""
        entry = self._ended(key)
        delay = min(FIRST_RETRY_SECONDS * 2.0**entry.failures, LONGEST_RETRY_SECONDS)
        delay *= 1 - _JITTER * self._jitter()
        # 2**failures must stay a number that a float can hold.
        entry.failures = min(entry.failures + 1, 32)
        # An event that came meanwhile may be the very change that mends it.
        self._again(key, entry, now)
        self._due(key, entry, now + delay)
        return delay

    def longest_look(self, now: float) -> float:
        """Seconds since the beginning of the look that takes longest; 0 without any."""
        running = (now - entry.started for entry in self._entries.values() if entry.running)
        return max(running, default=0.0)

    def _allowed_at(self) -> float:
        # Half a share more, or rounding would decide whether the last of a burst is in it.
        return self._paid_until - (LOOKS_IN_A_BURST - 0.5) * _SHARE_SECONDS

    def _ended(self, key: K) -> _Entry:
        entry = self._entries[key]
        entry.running = False
        return entry

    def _again(self, key: K, entry: _Entry, now: float) -> None:
        if entry.asked_again:
            entry.asked_again = False
            self._due(key, entry, self._earliest(entry, now))

    def _earliest(self, entry: _Entry, now: float) -> float:
        spacing = SHORTEST_SPACING_SECONDS if entry.awaited else SPACING_SECONDS
        return max(now, entry.started + spacing)

    def _due(self, key: K, entry: _Entry, due: float) -> None:
        if entry.due is not None and entry.due <= due:
            return
        self._push(key, entry, due)

    def _push(self, key: K, entry: _Entry, due: float) -> None:
        entry.due = due
        self._count += 1  # so that the heap never has to compare keys
        heap = self._awaited if entry.awaited else self._heap
        heapq.heappush(heap, (due, self._count, key))


class Workers(Generic[K]):
    """Takes keys from the queue as they fall due and looks at several of them at the same time."""

    def __init__(
        self,
        queue: WorkQueue[K],
        look: Callable[[K], Awaitable[float | None]],
        *,
        at_most: int,
        clock: Callable[[], float],
    ) -> None:
        """`look` returns seconds until the next look, or None to forget the key."""
        self._queue = queue
        self._look = look
        self._at_most = at_most
        self._clock = clock
        self._wake = asyncio.Event()
        self._looks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.looks = {"succeeded": 0, "failed": 0, "overtaken": 0}
        """How many looks ended, by outcome."""

    def add(self, key: K, *, awaited: bool = False) -> None:
        """Something happened to the key; those that are `awaited` come before others."""
        self._queue.add(key, self._clock(), awaited=awaited)
        self._wake.set()

    def longest_look(self) -> float:
        """Seconds since the beginning of the look that takes longest."""
        return self._queue.longest_look(self._clock())

    def __len__(self) -> int:
        """Keys that are known, those at rest included."""
        return len(self._queue)

    async def run(self) -> None:
        """Work until `close`; the looks that have begun are then ended first."""
        try:
            while not self._closing:
                self._wake.clear()
                while len(self._looks) < self._at_most:
                    key = self._queue.take(self._clock())
                    if key is None:
                        break
                    task = asyncio.create_task(self._one(key))
                    self._looks.add(task)
                    task.add_done_callback(self._ended)
                await self._sleep()
        finally:
            # Where it fails, too: what has begun must not write once another leads.
            if self._looks:
                await asyncio.wait(self._looks)

    def close(self) -> None:
        """Begin no more looks."""
        self._closing = True
        self._wake.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._looks.discard(task)
        self._wake.set()

    async def _sleep(self) -> None:
        due = self._queue.wake_at() if len(self._looks) < self._at_most else None
        try:
            wait = None if due is None else max(_SHORTEST_SLEEP_SECONDS, due - self._clock())
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _one(self, key: K) -> None:
        try:
            come_back_after = await self._look(key)
        except asyncio.CancelledError:
            # Kopf cancels whatever runs when its watching fails; the work itself goes on.
            self._queue.failed(key, self._clock())
            raise
        except ClusterError as error:
            delay = self._queue.failed(key, self._clock())
            # To be overtaken is normal where several write the same objects.
            overtaken = isinstance(error, Conflict)
            self.looks["overtaken" if overtaken else "failed"] += 1
            level = logging.INFO if overtaken else logging.WARNING
            _log.log(level, "%s: %s; again in %.1f s", key, error, delay)
        except Exception:
            # Our bug, met by this key only: the others must be served all the same.
            delay = self._queue.failed(key, self._clock())
            self.looks["failed"] += 1
            _log.exception("%s: failed unexpectedly; again in %.1f s", key, delay)
        else:
            self.looks["succeeded"] += 1
            self._queue.succeeded(key, self._clock(), come_back_after)
