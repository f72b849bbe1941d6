"""Which BatchedModel is looked at next, and when. `WorkQueue` decides, `Workers` act.

Many events about one key make one look; a key is never looked at twice at the same time; an event
that comes during a look makes another one after it; and all looks together keep to a rate, so that
a thousand keys that fall due at once do not fall upon the API server at once. Where somebody waits
for a key, it passes those at which something merely may have changed, since after a fail-over all
are due; but of four turns one is theirs. Groups of keys, which are namespaces, take turns, and none
has all places. A key that is edited without end waits ever longer. The times follow the work queues
of Kubernetes' own controllers (client-go's `workqueue`), the
rate is the generic cell rate algorithm.
"""

import asyncio
import heapq
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from batchedmodel_kube.errors import ENDINGS, ClusterError, Conflict

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
AWAITED_IN_A_ROW: Final = 3
"""Turns of those that are awaited before one of another that is due."""
EDITS_AT_ONCE: Final = 4
"""Awaited looks at a key in a row that keep the shortest spacing; a person makes no more."""
LONGEST_SPACING_SECONDS: Final = 10.0
"""Between awaited looks at a key that is edited without end."""
CALM_SECONDS: Final = 10.0
"""Without edits, beyond twice the spacing, before the next edit counts as the first."""
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
    ticket: int = 0
    """Of its present time; an earlier one that is still in a lane counts for nothing."""
    edits: int = 0
    """Awaited looks in a row."""
    edited: float = float("-inf")
    """When the last of them began."""


class _Lane(Generic[K]):
    """Keys by the times at which they are due; of those that are, groups take turns."""

    def __init__(self, group: Callable[[K], Hashable]) -> None:
        self._group = group
        self._later: list[tuple[float, int, K]] = []
        self._ready: dict[Hashable, deque[tuple[int, K]]] = {}
        """In the order of the groups' turns."""

    def push(self, due: float, ticket: int, key: K) -> None:
        heapq.heappush(self._later, (due, ticket, key))

    def take(
        self,
        now: float,
        holds: Callable[[K, int], bool],
        has_room: Callable[[Hashable], bool],
    ) -> K | None:
        """A key that is due and whose ticket still `holds`, of a group that `has_room`."""
        while self._later and self._later[0][0] <= now:
            _, ticket, key = heapq.heappop(self._later)
            self._ready.setdefault(self._group(key), deque()).append((ticket, key))
        for _ in range(len(self._ready)):
            group = next(iter(self._ready))
            waiting = self._ready.pop(group)
            found = None
            if has_room(group):
                while waiting and found is None:
                    ticket, key = waiting.popleft()
                    found = key if holds(key, ticket) else None
            if waiting:
                self._ready[group] = waiting
            if found is not None:
                return found
        return None

    def wake_at(self, has_room: Callable[[Hashable], bool]) -> float | None:
        """When a key falls due, or an earlier time; None: not before an event or the end of one."""
        if any(has_room(group) for group in self._ready):
            return float("-inf")
        return self._later[0][0] if self._later else None


class WorkQueue(Generic[K]):
    """Keys with the times at which they are due. Pure: time is an argument, nothing waits."""

    def __init__(
        self,
        jitter: Callable[[], float],
        *,
        group: Callable[[K], Hashable],
        most_of_group: int,
    ) -> None:
        """`jitter`: a number from 0 to 1, another one at each call.

        `group`: whose key it is; of one group at most so many are looked at at the same time.
        """
        self._jitter = jitter
        self._group = group
        self._most_of_group = most_of_group
        self._running: Counter[Hashable] = Counter()
        self._entries: dict[K, _Entry] = {}
        self._awaited: _Lane[K] = _Lane(group)
        self._others: _Lane[K] = _Lane(group)
        self._in_a_row = 0
        """Turns of awaited ones since another had one."""
        self._count = 0
        self._paid_until = float("-inf")
        """When the looks so far would end if each took its share of the rate."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: K, now: float, *, awaited: bool = False) -> None:
        """Something happened to the key; those that are `awaited` come before others."""
        entry = self._entries.setdefault(key, _Entry())
        if awaited and not entry.awaited:
            # By the spacing of edits from now on, which may be the longer one.
            entry.awaited, entry.due = True, None
        if entry.running:
            entry.asked_again = True
        else:
            self._due(key, entry, self._earliest(entry, now))

    def take(self, now: float) -> K | None:
        """A key that is due; it counts as being looked at until `succeeded` or `failed`."""
        if now < self._allowed_at():
            return None
        lanes = [self._awaited, self._others]
        if self._in_a_row >= AWAITED_IN_A_ROW:
            lanes.reverse()
        for lane in lanes:
            key = lane.take(now, self._holds, self._has_room)
            if key is not None:
                self._in_a_row = self._in_a_row + 1 if lane is self._awaited else 0
                self._begin(key, now)
                return key
        return None

    def wake_at(self) -> float | None:
        """When the next key is due, or an earlier time; None: not before an event."""
        lanes = (self._awaited, self._others)
        heads = [at for lane in lanes if (at := lane.wake_at(self._has_room)) is not None]
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

    def longest_reconcile(self, now: float) -> float:
        """Seconds since the beginning of the look that takes longest; 0 without any."""
        running = (now - entry.started for entry in self._entries.values() if entry.running)
        return max(running, default=0.0)

    def _holds(self, key: K, ticket: int) -> bool:
        entry = self._entries.get(key)
        return entry is not None and not entry.running and entry.ticket == ticket

    def _has_room(self, group: Hashable) -> bool:
        return self._running[group] < self._most_of_group

    def _begin(self, key: K, now: float) -> None:
        entry = self._entries[key]
        self._running[self._group(key)] += 1
        self._paid_until = max(self._paid_until, now) + _SHARE_SECONDS
        if entry.awaited:
            calm = now - entry.edited > CALM_SECONDS + 2 * _spacing(entry)
            entry.edits, entry.edited = 1 if calm else entry.edits + 1, now
        entry.running, entry.due, entry.started, entry.awaited = True, None, now, False

    def _allowed_at(self) -> float:
        # Half a share more, or rounding would decide whether the last of a burst is in it.
        return self._paid_until - (LOOKS_IN_A_BURST - 0.5) * _SHARE_SECONDS

    def _ended(self, key: K) -> _Entry:
        entry = self._entries[key]
        entry.running = False
        group = self._group(key)
        self._running[group] -= 1
        if not self._running[group]:
            del self._running[group]
        return entry

    def _again(self, key: K, entry: _Entry, now: float) -> None:
        if entry.asked_again:
            entry.asked_again = False
            self._due(key, entry, self._earliest(entry, now))

    def _earliest(self, entry: _Entry, now: float) -> float:
        if entry.awaited and now - entry.edited <= CALM_SECONDS + 2 * _spacing(entry):
            return max(
                now, entry.started + SHORTEST_SPACING_SECONDS, entry.edited + _spacing(entry)
            )
        spacing = SHORTEST_SPACING_SECONDS if entry.awaited else SPACING_SECONDS
        return max(now, entry.started + spacing)

    def _due(self, key: K, entry: _Entry, due: float) -> None:
        if entry.due is not None and entry.due <= due:
            return
        self._push(key, entry, due)

    def _push(self, key: K, entry: _Entry, due: float) -> None:
        entry.due = due
        self._count += 1  # so that the heap never has to compare keys
        entry.ticket = self._count
        lane = self._awaited if entry.awaited else self._others
        lane.push(due, self._count, key)


def _spacing(entry: _Entry) -> float:
    doublings = min(max(0, entry.edits - EDITS_AT_ONCE), 16)
    return min(SHORTEST_SPACING_SECONDS * 2.0**doublings, LONGEST_SPACING_SECONDS)


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

    def longest_reconcile(self) -> float:
        """Seconds since the beginning of the look that takes longest."""
        return self._queue.longest_reconcile(self._clock())

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
        except ENDINGS:
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
        except BaseException:
            # Our bug, met by this key only: the others must be served all the same.
            delay = self._queue.failed(key, self._clock())
            self.looks["failed"] += 1
            _log.exception("%s: failed unexpectedly; again in %.1f s", key, delay)
        else:
            self.looks["succeeded"] += 1
            self._queue.succeeded(key, self._clock(), come_back_after)
