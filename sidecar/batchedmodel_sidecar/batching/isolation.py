"""Callers whose rows share no batch with others', and callers whose rows rest for a while.

Pure; owned by the batcher and by its request window. A refused request costs the callers who share
its batch: a server's verdict on a batch says nothing of each row, and to find the bad rows takes as
long as several batches. So one caller's bad requests would slow all others down.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from batchedmodel_scheduling.core.policy import Item, ItemId
from batchedmodel_sidecar.answers import Answer
from batchedmodel_sidecar.calls import Call
from batchedmodel_sidecar.errors import CallError, Fatal, Unserved

_FROM: Final = 3.0
"""Refusals, less what answers made good, from which a caller goes apart."""
_MOST: Final = 10.0
_MADE_GOOD: Final = 0.1
"""By an answer."""
_MOST_CALLERS: Final = 1_024
_MOST_KEYS: Final = 64


class Alone(NamedTuple):
    """The compatibility key of a row over which the server died: no other row has it."""

    item: ItemId


class Apart(NamedTuple):
    """The compatibility key of rows that share batches with rows of their own caller alone."""

    key: Hashable
    caller: str
    call: int = 0
    """The number of a call that shares batches with no other."""


def original(key: Hashable) -> Hashable:
    """The key that a row came with, whether or not it goes apart."""
    return key.key if isinstance(key, Apart) else key


def apart(item: Item, caller: str) -> Item:
    """The row with a key of its caller's own; it stays as it is where it has such a key already."""
    if isinstance(item.key, Apart | Alone):
        return item
    return item._replace(key=Apart(item.key, caller))


@dataclass(slots=True, kw_only=True)
class _Record:
    refused: float = 0.0
    answered: int = 0
    """Calls of its own, since there is this record."""
    others: int = -1
    """Calls of others that had been answered when a refusal counted last; -1: none has."""


class Standing:
    """How callers fared lately; of too many the first are forgotten.

    A caller that is refused more often than about every tenth time goes apart: each of its calls is
    sent by itself. A refusal counts only if others were answered since the last one that counted:
    where a server refuses everybody, no caller is to blame. A caller over whose row alone a server
    died goes apart at once.
    """

    def __init__(self) -> None:
        self._answered = 0
        self._numbers = count(1)
        self._records: dict[str, _Record] = {}

    def __len__(self) -> int:
        """How many callers there is a record of."""
        return len(self._records)

    def placed(self, call: Call, caller: str) -> Call:
        """The call, with a key of its own if its caller goes apart."""
        if not self.goes_apart(caller):
            return call
        return call.apart(Apart(call.key, caller, next(self._numbers)))

    def goes_apart(self, caller: str) -> bool:
        """Whether a caller's calls share no batch with others'."""
        record = self._records.get(caller)
        return record is not None and record.refused >= _FROM

    def parts(self, caller: str, result: Answer | CallError | None) -> bool:
        """A call of this caller has ended so; whether the caller goes apart from now on."""
        if isinstance(result, Answer):
            self._was_answered(caller)
            return False
        if not isinstance(result, Unserved) or not result.answered:
            return False
        went = self.goes_apart(caller)
        self._was_refused(caller, _FROM if isinstance(result, Fatal) else 1.0)
        return self.goes_apart(caller) and not went

    def _was_answered(self, caller: str) -> None:
        self._answered += 1
        record = self._records.get(caller)
        if record is None:
            return  # nothing bad is known of it, as of nearly everybody
        record.answered += 1
        record.refused -= _MADE_GOOD
        if record.refused <= 0:
            del self._records[caller]

    def _was_refused(self, caller: str, weight: float) -> None:
        if caller not in self._records and len(self._records) >= _MOST_CALLERS:
            del self._records[next(iter(self._records))]
        record = self._records.setdefault(caller, _Record())
        if self._answered - record.answered > record.others:
            record.others = self._answered - record.answered
            record.refused = min(_MOST, record.refused + weight)


class Backoff:
    """Callers' keys that the server asked to be left alone with, and their rows, which wait here.

    The policy sees none of these rows, so that others go on. A server that refuses one kind of
    request with 429 or 503 (a tenant's quota, one of its models) says nothing of the others, and
    nothing of other callers' requests of that kind. Times are monotonic seconds.
    """

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
        """Whether a caller's key rests; `woken` ends what is over."""
        return (original(key), caller) in self._until

    def takes(self, item: Item, caller: str) -> bool:
        """Whether the key of a caller's row rests; it waits here then."""
        if not self._until or not self.rests(item.key, caller):
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
        woken = [item for item, caller in held if not self.rests(item.key, caller)]
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
