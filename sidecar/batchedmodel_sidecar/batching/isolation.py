"""Callers whose requests the server often refuses while it answers others': theirs go apart.

Pure; owned by the batcher. A request that is refused costs those who share its batch: what a server
says of a whole batch says nothing of each of them, and the search for those to blame takes as
long as several batches. So one caller's bad requests would slow all others down. Whoever is refused
more often than about every tenth time gets batches of its own: that costs less than its company.
Whoever is refused more often than every third time has each call sent by itself.

A refusal counts only if others were answered since the last one that counted: where a server
refuses everybody, nobody is to blame. Over whose row alone a server died goes apart at once.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from batchedmodel_scheduling.core.policy import Item, ItemId
from batchedmodel_sidecar.calls import Answer, Call
from batchedmodel_sidecar.errors import CallError, Fatal, Unserved

_FROM: Final = 3.0
"""Refusals, less what answers made good, from which a caller goes apart."""
_MOST: Final = 10.0
_MOSTLY: Final = 1 / 3
"""Of a caller's calls are refused: to look for those costs more than to send each by itself."""
_LATELY: Final = 0.1
_MADE_GOOD: Final = 0.1
"""By an answer."""
_MOST_CALLERS: Final = 1_024


class Alone(NamedTuple):
    """The compatibility key of a suspect, which nobody shares."""

    item: ItemId


class Apart(NamedTuple):
    """The compatibility key of rows that share batches with rows of their own caller alone."""

    key: Hashable
    caller: str
    call: int = 0
    """A number of the call's own, where it shares batches with none of its caller's others."""


def original(key: Hashable) -> Hashable:
    """The key that a row came with, whether or not it goes apart."""
    return key.key if isinstance(key, Apart) else key


def apart(item: Item, caller: str) -> Item:
    """The row with a key that others' rows have not; a suspect has one, and is known by it."""
    if isinstance(item.key, Apart | Alone):
        return item
    return item._replace(key=Apart(item.key, caller))


@dataclass(slots=True, kw_only=True)
class _Record:
    refused: float = 0.0
    answered: int = 0
    """Calls of its own, since there is this record."""
    part: float = 0.0
    """Of its calls that are refused, lately."""
    others: int = 0
    """Calls of others that had been answered when a refusal counted last; -1: none has."""


class Standing:
    """How callers fared lately; of too many the first are forgotten."""

    def __init__(self) -> None:
        self._answered = 0
        self._numbers = count(1)
        self._records: dict[str, _Record] = {}

    def __len__(self) -> int:
        """Callers of whom something bad is known."""
        return len(self._records)

    def placed(self, call: Call, caller: str) -> Call:
        """The call, with a key of its caller's own if that goes apart, or one of its own."""
        if not self.goes_apart(caller):
            return call
        by_itself = self._records[caller].part > _MOSTLY
        number = next(self._numbers) if by_itself else 0
        return call._replace(key=Apart(call.key, caller, number))

    def goes_apart(self, caller: str) -> bool:
        """Whether a caller's calls share no batch with others'."""
        record = self._records.get(caller)
        return record is not None and record.refused >= _FROM

    def parts(self, caller: str, result: Answer | CallError | None) -> bool:
        """A call of this caller has ended so; whether it goes apart from now on."""
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
        if caller not in self._records:
            return  # nothing bad is known of it, as of nearly everybody
        record = self._records[caller]
        record.answered += 1
        record.part -= _LATELY * record.part
        record.refused -= _MADE_GOOD
        if record.refused <= 0:
            del self._records[caller]

    def _was_refused(self, caller: str, weight: float) -> None:
        record = self._record_of(caller)
        record.part += _LATELY * (1 - record.part)
        if self._answered - record.answered > record.others:
            record.others = self._answered - record.answered
            record.refused = min(_MOST, record.refused + weight)

    def _record_of(self, caller: str) -> _Record:
        """What is known of a caller; one of whom nothing bad was known has one from now on."""
        record = self._records.get(caller)
        if record is None:
            if len(self._records) >= _MOST_CALLERS:
                del self._records[next(iter(self._records))]
            record = _Record(refused=0.0, others=-1)
            self._records[caller] = record
        return record
