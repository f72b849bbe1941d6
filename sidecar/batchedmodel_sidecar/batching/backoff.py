"""Callers' keys that the server asked to be left alone with, and their rows, which wait here.

Pure; owned by `RequestWindow`, which shows none of these rows to the policy, so that others go on.
A server that refuses one kind of request with 429 or 503 (a tenant's quota, one of its models) says
nothing of the others, and nothing of other callers' requests of that kind.
"""

import math
from collections.abc import Hashable
from typing import Final

from batchedmodel_scheduling.core.policy import Item, ItemId
from batchedmodel_sidecar.batching.isolation import original

_MOST_KEYS: Final = 64


class Backoff:
    """One server's; times are monotonic seconds."""

    def __init__(self) -> None:
        self._until: dict[tuple[Hashable, str], float] = {}
        self._held: dict[ItemId, tuple[Item, str]] = {}
        """With their callers."""
        self._cut_short = False
        """Whether rows may be held whose key rests no more."""

    def rest(self, key: Hashable, caller: str, until: float) -> None:
        """A caller's key rests until then; of too many the one that would end first ends now."""
        rests = original(key), caller
        self._until[rests] = max(until, self._until.get(rests, -math.inf))
        if len(self._until) > _MOST_KEYS:
            del self._until[min(self._until, key=lambda one: self._until[one])]
            self._cut_short = True

    def rests(self, key: Hashable, caller: str) -> bool:
        """Whether a caller's key does, as far as `woken` was asked."""
        return (original(key), caller) in self._until

    def takes(self, item: Item, caller: str) -> bool:
        """Whether the key of a caller's row rests; it waits here then."""
        if not self._until or (original(item.key), caller) not in self._until:
            return False
        self._held[item.id] = item, caller
        return True

    def discard(self, item_id: ItemId) -> None:
        """A row is not wanted any more."""
        self._held.pop(item_id, None)

    def woken(self, now: float) -> list[Item]:
        """The rows whose keys rest no more; they wait here no longer."""
        over = [key for key, until in self._until.items() if until <= now]
        if not over and not self._cut_short:
            return []
        for key in over:
            del self._until[key]
        self._cut_short = False
        held = self._held.values()
        woken = [item for item, caller in held if (original(item.key), caller) not in self._until]
        for item in woken:
            del self._held[item.id]
        return woken

    def changes_at(self) -> float:
        """When the next key ends its rest; infinity when none rests."""
        return min(self._until.values(), default=math.inf)

    @property
    def holds_any(self) -> bool:
        """Whether any row waits here."""
        return bool(self._held)
