"""Nexus with one session for each length bucket, all on one device.

Each bucket is a session with a target and an assigned batch size of its own, as models of different
shapes and latency targets are to Nexus. When the device is free, the first session in order that
has a batch in time runs it.

Source: `nexus`; sessions that share a device run in turns within a duty cycle (SOSP 2019, 6.1).
Generous: a session without work passes its turn, each bucket knows its own target, and there are
orders that Nexus does not have.
"""

import bisect
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.batching.decisions import Decision, Event, Policy, Slots
from batchedmodel_scheduling.queue.items import NEVER, Item, ItemId, Refusal, Shed
from rival_policies.nexus import Nexus
from rival_policies.rival import Seconds


class Order(Enum):
    """Which session is asked first."""

    TURNS = "in turns"
    DUE = "by due time"
    LENGTH = "short rows first"


class NexusPerBucket(Policy):
    """A session for each bucket of which the target is known."""

    def __init__(
        self, settings: BatchSettings, seconds: Seconds, targets: Mapping[int, float], order: Order
    ) -> None:
        """`targets`: in seconds, by the greatest length of each bucket."""
        self._order: Final = order
        self._edges: Final = sorted(targets)
        self._sessions: Final = [
            Nexus(settings, seconds, target=targets[edge], length=edge) for edge in self._edges
        ]
        self._session_of: Final[dict[ItemId, Nexus]] = {}
        self._turn = 0

    def offer(self, item: Item, now: float) -> Refusal | None:
        """Let it wait in its session."""
        session = self._sessions[bisect.bisect_left(self._edges, item.length)]
        self._session_of[item.id] = session
        return session.offer(item, now)

    def withdraw(self, item_id: ItemId, now: float) -> None:
        """Forget a waiting item."""
        session = self._session_of.pop(item_id, None)
        if session is not None:
            session.withdraw(item_id, now)

    def poll(self, now: float, slots: Slots) -> Decision:
        """Ask the sessions in order until one has a batch."""
        shed: list[Shed] = []
        for at in self._in_order():
            decision = self._sessions[at].poll(now, slots)
            shed += decision.shed
            if decision.release is not None:
                self._turn = at + 1
                return replace(decision, shed=tuple(shed))
        return replace(decision, shed=tuple(shed), wake_at=NEVER)

    def observe(self, event: Event, now: float) -> None:
        """Learn nothing."""

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Use other settings from now on."""
        for session in self._sessions:
            session.configure(settings, now)

    def _in_order(self) -> list[int]:
        places = list(range(len(self._sessions)))
        if self._order is Order.TURNS:
            first = self._turn % len(places)
            return places[first:] + places[:first]
        if self._order is Order.DUE:
            places.sort(key=lambda at: min(_dues(self._sessions[at]), default=NEVER))
        return places


def _dues(session: Nexus) -> list[float]:
    return [item.due for item in session.waiting.values()]
