"""Who gives way in an engine that is full to a tenant who has little of it.

Of those that wait, whose tenant has least of the engine goes first. Where there is no room for it,
and another tenant has at least twice as much as it would have, texts of that tenant wait in its
place: they are computed anew later. Each of them gives way once before one does again, and only a
part of the time may go to what is computed anew. So nobody pays where there is one tenant.
"""

from collections.abc import Sequence
from typing import Final

from batchedmodel_scheduling.engine.step_planner import EngineSequence, StepSettings
from batchedmodel_scheduling.latency.step_times import StepCost
from batchedmodel_scheduling.queue.items import NEVER

_TWICE: Final = 2.0
"""A tenant gives way that has so many times what the other will have; with less both would."""
_PART: Final = 8.0
"""One part of so many of the time, at most, goes to what is computed anew."""
_AT_ONCE: Final = 1.0
"""Seconds of it that may be spent at once where none was spent for long."""


class EngineParts:
    """What part of an engine each tenant has, by its weight: of places, or of blocks if more."""

    def __init__(self, sequences: int, blocks: int) -> None:
        """What the engine has in all; `blocks` are whatever `add` counts."""
        self._sequences: Final = sequences
        self._blocks: Final = blocks
        self._held: Final[dict[str, tuple[int, int, float]]] = {}

    def __len__(self) -> int:
        """Tenants that have some."""
        return len(self._held)

    def add(self, tenant: str, weight: float, places: int, blocks: int) -> None:
        """A tenant has so much more."""
        has = self._held.get(tenant, (0, 0, weight))
        self._held[tenant] = (has[0] + places, has[1] + blocks, weight)

    def of(self, tenant: str, weight: float = 1.0, places: int = 0, blocks: int = 0) -> float:
        """What it has, with so much more."""
        has = self._held.get(tenant, (0, 0, weight))
        return self._part(has[0] + places, has[1] + blocks, has[2])

    def most(self) -> str | None:
        """Who has most; None where nobody has anything."""
        if not self._held:
            return None
        return max(self._held, key=self.of)

    def has_little(self, tenant: str, weight: float, places: int, blocks: int) -> bool:
        """Whether a tenant with so much more has at most half of what another has."""
        most = self.most()
        if most is None or most == tenant:
            return False
        return _TWICE * self.of(tenant, weight, places, blocks) <= self.of(most)

    def _part(self, places: int, blocks: int, weight: float) -> float:
        return max(places / self._sequences, blocks / self._blocks) / weight


class GivingWay:
    """Decides it for one engine, step by step."""

    def __init__(self) -> None:
        self._next_at = -NEVER

    def in_turn(
        self,
        waiting: Sequence[EngineSequence],
        running: Sequence[EngineSequence],
        settings: StepSettings,
    ) -> list[EngineSequence]:
        """Those that wait, in the order of their turns."""
        if all(one.tenant == waiting[0].tenant for one in waiting):
            return list(waiting)
        parts = _parts(running, settings)
        return sorted(waiting, key=lambda one: parts.of(one.tenant))

    def to(
        self,
        first: EngineSequence,
        running: Sequence[EngineSequence],
        free_blocks: int,
        settings: StepSettings,
        cost: StepCost,
        now: float,
    ) -> list[EngineSequence]:
        """Those that wait from now on, so that the first of those that wait can run.

        They are none where it can without, or where that is not enough.
        """
        if now < self._next_at:
            return []
        places = len(running) + 1 - settings.max_sequences
        going_on = [one for one in running if one.missing == 1]
        blocks = settings.lacks(first, first.missing) + len(running)
        blocks -= free_blocks - settings.needed(going_on)
        if places <= 0 and blocks <= 0:
            return []
        parts = _parts(running, settings)
        whole = settings.blocks_of(first.length)
        if not parts.has_little(first.tenant, first.weight, 1, whole):
            return []
        most, moved = parts.most(), list[EngineSequence]()
        theirs = [one for one in reversed(running) if one.tenant == most]
        for one in sorted(theirs, key=lambda one: (one.moved, -one.priority)):
            moved.append(one)
            places -= 1
            blocks -= one.blocks - one.shared + 1  # with the one that is left for it to grow
            if places <= 0 and blocks <= 0:
                self._spend(moved, cost, now)
                return moved
        return []

    def _spend(self, moved: Sequence[EngineSequence], cost: StepCost, now: float) -> None:
        seconds = cost.prefill_token * sum([one.computed for one in moved])
        self._next_at = max(self._next_at, now - _PART * _AT_ONCE) + _PART * seconds


def _parts(running: Sequence[EngineSequence], settings: StepSettings) -> EngineParts:
    parts = EngineParts(settings.max_sequences, settings.blocks)
    for one in running:
        parts.add(one.tenant, one.weight, 1, one.blocks)
    return parts
