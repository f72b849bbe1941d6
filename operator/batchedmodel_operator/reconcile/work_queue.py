"""Which BatchedModel is reconciled next, and when. `WorkQueue` decides, `Workers` act.

- Many events about one key make one reconcile. A key is never reconciled twice at the same time,
  and an event that comes during a reconcile makes another one after it.
- All reconciles together keep to a rate (the generic cell rate algorithm), so that a thousand keys
  that fall due at once do not fall upon the API server at once.
- A key whose manifest was edited is awaited and passes the others: after a fail-over all are due.
  But one of four turns is theirs.
- Groups of keys, which are namespaces, take turns: the one with the fewest reconciles under way
  comes first, and a few of them never have all places.
- An edit costs its key two seconds, and a key may be ten edits in debt: a person's never wait. Keys
  that are in debt share what their group may have, so that storms stay within bounds.
- A key that fails without end waits ever longer.

Times follow the work queues of Kubernetes' own controllers (client-go's `workqueue`).
"""

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from batchedmodel_kube.errors import ENDINGS, ClusterError, Conflict

_log: Final = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)

SPACING_SECONDS: Final = 1.0
"""Between reconciles of one key, and so between writes of its status. A rollout makes dozens of
events a second, and one reconcile answers all that came since the last."""
SHORTEST_SPACING_SECONDS: Final = 0.2
"""Where somebody waits for the reconcile, or the last one asked for it."""
FIRST_RETRY_SECONDS: Final = 0.5
LONGEST_RETRY_SECONDS: Final = 300.0
RECONCILES_PER_SECOND: Final = 100.0
"""One process gets no further than this anyway."""
BURST: Final = 100
AWAITED_IN_A_ROW: Final = 3
"""Turns of those that are awaited before one of another that is due."""
EDIT_SECONDS: Final = 2.0
"""What an edit costs its key: edits that come no faster never wait."""
EDITS_AT_ONCE: Final = 10
"""Edits of a key that come faster and do not wait."""
GROUP_EDIT_SECONDS: Final = 0.1
"""What a reconcile for an edit costs the group, where the key is more than half in debt."""
GROUP_EDITS_AT_ONCE: Final = 40
"""Of those, in a group."""
FAILURES_AT_ONCE: Final = 5
"""So many failures in a row keep the usual spacing of what events ask for: one of them may be what
mends the key. Then it grows, as a reconcile makes an event itself where it writes a new failure
into the status."""
LONGEST_SPACING_SECONDS: Final = 10.0
"""Between reconciles of a key that fails without end, or whose group is edited without end."""
TIMES_THE_FREE: Final = 3
"""A group may have so many times the places that stay free: one alone three quarters, two together
seven eighths. So slow reconciles of a few namespaces leave places to all others."""
_SHORTEST_SLEEP_SECONDS: Final = 0.001
"""A timer rounds, and a wait of nothing at all would be a busy loop."""
_SHARE_SECONDS: Final = 1 / RECONCILES_PER_SECOND
_JITTER: Final = 0.2


@dataclass(slots=True, kw_only=True)
class _Entry:
    due: float | None = None
    """None: it is being reconciled, and no event has come since."""
    running: bool = False
    awaited: bool = False
    """Somebody waits for it: whoever edited the manifest."""
    failures: int = 0
    started: float = float("-inf")
    """When the last reconcile began."""
    asked_again: bool = False
    """An event came during the present reconcile, which may have read too early to see its
    cause."""
    paid_until: float = float("-inf")
    """When its edits so far are paid for."""

    def is_in_debt(self, now: float) -> bool:
        """Whether more than half of the edits that may come at once are still to be paid for."""
        return self.paid_until - now > EDITS_AT_ONCE * EDIT_SECONDS / 2


class WorkQueue(Generic[K]):
    """Keys with the times at which they are due. Pure: time is an argument, nothing waits."""

    def __init__(
        self,
        jitter: Callable[[], float],
        *,
        group: Callable[[K], Hashable],
        places: int,
    ) -> None:
        """`jitter`: a number from 0 to 1, another one at each call.

        `group`: whose key it is; `places`: how many are reconciled at the same time.
        """
        self._jitter = jitter
        self._group = group
        self._places = places
        self._running: Counter[Hashable] = Counter()
        self._entries: dict[K, _Entry] = {}
        self._later: list[tuple[float, int, K]] = []
        """A heap by due times. What is no longer its entry's time counts for nothing."""
        self._ready: dict[bool, dict[Hashable, dict[K, None]]] = {True: {}, False: {}}
        """Keys that are due, the awaited ones and the others, by groups in the order of turns."""
        self._in_a_row = 0
        """Turns of awaited ones since another had one."""
        self._count = 0
        self._debts: dict[Hashable, float] = {}
        """By group: when what edits of keys in debt cost it is paid for."""
        self._paid_until = float("-inf")
        """When the reconciles so far would end if each took its share of the rate."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: K, now: float, *, awaited: bool = False) -> None:
        """Something happened to the key; those that are `awaited` come before others."""
        entry = self._entries.setdefault(key, _Entry())
        if awaited:
            most = now + EDITS_AT_ONCE * EDIT_SECONDS
            entry.paid_until = min(max(entry.paid_until, now), most) + EDIT_SECONDS
        if awaited and not entry.awaited:
            # By the spacing of edits from now on, which may be the longer one.
            self._remove(False, self._group(key), key)
            entry.awaited, entry.due = True, None
        if entry.running:
            entry.asked_again = True
        else:
            self._schedule(key, entry, self._earliest(key, entry, now))

    def take(self, now: float) -> K | None:
        """A key that is due; it counts as being reconciled until `succeeded` or `failed`."""
        if now < self._allowed_at():
            return None
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            entry = self._entries.get(key)
            if entry is not None and entry.due == due:
                self._ready[entry.awaited].setdefault(self._group(key), {})[key] = None
        theirs = self._in_a_row >= AWAITED_IN_A_ROW
        for awaited in (not theirs, theirs):
            ready = self._ready[awaited]
            group = self._next(ready)
            if group is None:
                continue
            key = next(iter(ready[group]))
            self._remove(awaited, group, key)
            if group in ready:
                ready[group] = ready.pop(group)  # the next turn is another's
            self._in_a_row = self._in_a_row + 1 if awaited else 0
            self._begin(key, group, now)
            return key
        return None

    def wake_at(self) -> float | None:
        """When the next key is due, or an earlier time; None: not before an event."""
        if any(self._has_room(group) for ready in self._ready.values() for group in ready):
            return self._allowed_at()
        return max(self._later[0][0], self._allowed_at()) if self._later else None

    def succeeded(self, key: K, now: float, come_back_after: float | None) -> None:
        """The reconcile ended well; None forgets the key."""
        entry = self._end(key, now)
        entry.failures = 0
        if come_back_after is not None:
            # A thousand keys that were all reconciled when the process began must not stay in step.
            spread = 1 - _JITTER * self._jitter()
            earliest = entry.started + SHORTEST_SPACING_SECONDS
            self._schedule(key, entry, max(now + come_back_after * spread, earliest))
        elif entry.due is None:
            del self._entries[key]

    def failed(self, key: K, now: float) -> float:
        """The reconcile failed; returns the seconds until the next, unless an event comes first."""
        # An event that came meanwhile may be the very change that mends it.
        entry = self._end(key, now)
        delay = min(FIRST_RETRY_SECONDS * 2.0**entry.failures, LONGEST_RETRY_SECONDS)
        delay *= 1 - _JITTER * self._jitter()
        # 2**failures must stay a number that a float can hold.
        entry.failures = min(entry.failures + 1, 32)
        self._schedule(key, entry, now + delay)
        return delay

    def longest_reconcile(self, now: float) -> float:
        """Seconds since the beginning of the reconcile that takes longest; 0 without any."""
        running = (now - entry.started for entry in self._entries.values() if entry.running)
        return max(running, default=0.0)

    def edits_wait(self, key: K, now: float) -> float:
        """For up to how many seconds edits that come now wait; 0 where they do not."""
        entry = self._entries.get(key) or _Entry()
        of_group = self._debts.get(self._group(key), now) - now
        if entry.is_in_debt(now) and of_group > GROUP_EDITS_AT_ONCE * GROUP_EDIT_SECONDS:
            return LONGEST_SPACING_SECONDS
        is_next_late = entry.paid_until - now > (EDITS_AT_ONCE - 1) * EDIT_SECONDS
        return EDIT_SECONDS if is_next_late else 0.0

    def _next(self, groups: Iterable[Hashable]) -> Hashable | None:
        """Of those with room the one with the fewest reconciles under way, else by turns.

        Whoever keeps places with slow reconciles comes after whoever asks for one now and then.
        """
        return min(filter(self._has_room, groups), key=self._running.__getitem__, default=None)

    def _has_room(self, group: Hashable) -> bool:
        free = self._places - self._running.total()
        return self._running[group] < TIMES_THE_FREE * free

    def _allowed_at(self) -> float:
        # Half a share more, or rounding would decide whether the last of a burst is in it.
        return self._paid_until - (BURST - 0.5) * _SHARE_SECONDS

    def _begin(self, key: K, group: Hashable, now: float) -> None:
        entry = self._entries[key]
        self._running[group] += 1
        self._paid_until = max(self._paid_until, now) + _SHARE_SECONDS
        if entry.awaited and entry.is_in_debt(now):
            self._debts[group] = max(self._debts.get(group, now), now) + GROUP_EDIT_SECONDS
        entry.running, entry.due, entry.started, entry.awaited = True, None, now, False

    def _end(self, key: K, now: float) -> _Entry:
        entry, group = self._entries[key], self._group(key)
        entry.running = False
        self._running[group] -= 1
        if not self._running[group]:
            del self._running[group]
            if self._debts.get(group, now) < now:
                del self._debts[group]
        if entry.asked_again:
            entry.asked_again = False
            self._schedule(key, entry, self._earliest(key, entry, now))
        return entry

    def _earliest(self, key: K, entry: _Entry, now: float) -> float:
        """When a reconcile may begin because of an event that came now or before."""
        if not entry.awaited:
            times = entry.failures - FAILURES_AT_ONCE
            return max(now, entry.started + _doubled(SPACING_SECONDS, times))
        allowed = entry.paid_until - EDITS_AT_ONCE * EDIT_SECONDS
        debt = self._debts.get(self._group(key))
        if debt is not None and entry.is_in_debt(now):
            of_group = debt - GROUP_EDITS_AT_ONCE * GROUP_EDIT_SECONDS
            allowed = max(allowed, min(of_group, entry.started + LONGEST_SPACING_SECONDS))
        return max(now, entry.started + SHORTEST_SPACING_SECONDS, allowed)

    def _schedule(self, key: K, entry: _Entry, due: float) -> None:
        """The key is due then, if it is not sooner."""
        if entry.due is None or due < entry.due:
            entry.due = due
            self._count += 1  # so that the heap never has to compare keys
            heapq.heappush(self._later, (due, self._count, key))

    def _remove(self, awaited: bool, group: Hashable, key: K) -> None:
        ready = self._ready[awaited]
        keys = ready.get(group, {})
        keys.pop(key, None)
        if not keys:
            ready.pop(group, None)


def _doubled(seconds: float, times: int) -> float:
    return min(seconds * 2.0 ** min(max(0, times), 16), LONGEST_SPACING_SECONDS)


class Workers(Generic[K]):
    """Takes keys from the queue as they fall due and reconciles several of them at the same
    time."""

    def __init__(
        self,
        queue: WorkQueue[K],
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        at_most: int,
        clock: Callable[[], float],
        log_fields: Callable[[K], Mapping[str, object]] = lambda _: {},
    ) -> None:
        """`reconcile` returns seconds until the next, or None to forget the key.

        `log_fields`: `extra` of a log's line about a key.
        """
        self._queue = queue
        self._reconcile = reconcile
        self._at_most = at_most
        self._clock = clock
        self._log_fields = log_fields
        self._wake = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._closing = False
        self.reconciles = {"succeeded": 0, "failed": 0, "overtaken": 0}
        """How many reconciles ended, by outcome."""

    def add(self, key: K, *, awaited: bool = False) -> None:
        """Something happened to the key; those that are `awaited` come before others."""
        self._queue.add(key, self._clock(), awaited=awaited)
        self._wake.set()

    def longest_reconcile(self) -> float:
        """Seconds since the beginning of the reconcile that takes longest."""
        return self._queue.longest_reconcile(self._clock())

    def __len__(self) -> int:
        """Keys that are known, those at rest included."""
        return len(self._queue)

    async def run(self) -> None:
        """Work until `close`; the reconciles that have begun are then ended first."""
        try:
            while not self._closing:
                self._wake.clear()
                while len(self._running) < self._at_most:
                    key = self._queue.take(self._clock())
                    if key is None:
                        break
                    task = asyncio.create_task(self._one(key))
                    self._running.add(task)
                    task.add_done_callback(self._ended)
                await self._sleep()
        finally:
            # Where it fails, too: what has begun must not write once another leads.
            if self._running:
                await asyncio.wait(self._running)

    def close(self) -> None:
        """Begin no more reconciles."""
        self._closing = True
        self._wake.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._wake.set()

    async def _sleep(self) -> None:
        due = self._queue.wake_at() if len(self._running) < self._at_most else None
        try:
            wait = None if due is None else max(_SHORTEST_SLEEP_SECONDS, due - self._clock())
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _one(self, key: K) -> None:
        try:
            come_back_after = await self._reconcile(key)
        except ENDINGS:
            # Kopf cancels whatever runs when its watching fails; the work itself goes on.
            self._queue.failed(key, self._clock())
            raise
        except ClusterError as error:
            delay = self._queue.failed(key, self._clock())
            # To be overtaken is normal where several write the same objects.
            overtaken = isinstance(error, Conflict)
            self.reconciles["overtaken" if overtaken else "failed"] += 1
            level = logging.INFO if overtaken else logging.WARNING
            _log.log(
                level, "%s: %s; again in %.1f s", key, error, delay, extra=self._log_fields(key)
            )
        except BaseException:
            # Our bug, met by this key only: the others must be served all the same.
            delay = self._queue.failed(key, self._clock())
            self.reconciles["failed"] += 1
            fields = self._log_fields(key)
            _log.exception("%s: failed unexpectedly; again in %.1f s", key, delay, extra=fields)
        else:
            self.reconciles["succeeded"] += 1
            self._queue.succeeded(key, self._clock(), come_back_after)
