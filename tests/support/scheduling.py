"""What tests of policies share: entries, profiles, and a device that serves in virtual time."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_contract.manifest.batching import BatchSettings, Objective
from batchedmodel_scheduling.batching.decisions import Batch, Decision, Finished, HandedOver, Slots
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.items import Item, ItemId, Priority, Refusal, Shed
from batchedmodel_scheduling.queue.ready_queue import QueuedItem, ReadyQueue, entry_of
from support.strategies import an_item

Seconds = Callable[[list[int]], float]
IDLE, BUSY = Slots(depth=2, in_flight=0), Slots(depth=2, in_flight=1)


def an_entry(
    number: int,
    due: float,
    *,
    length: int = 1,
    work: float = 1.0,
    priority: Priority = Priority.NORMAL,
    key: str = "a",
    arrived: float = 0.0,
    deadline: float = 1000.0,
    yields: float = 0.0,
    step: float = 1.0,
    objective: Objective = Objective.WORK,
) -> QueuedItem:
    """A waiting item as plans see it, of which only the interesting fields need to be given."""
    item = an_item(
        number,
        due=due,
        length=length,
        priority=priority,
        key=key,
        arrived=arrived,
        deadline=deadline,
        yields=yields,
    )
    return entry_of(item, work, step, objective)


def queue_of(entries: Iterable[QueuedItem]) -> ReadyQueue:
    """These wait."""
    queue = ReadyQueue(())
    for entry in entries:
        queue.add(entry)
    return queue


def cost_of(rule: CostRule, lengths: list[int]) -> int:
    """What a device pays for, worked out apart from the code under test."""
    if rule is CostRule.ROWS:
        return len(lengths)
    return sum(lengths) if rule is CostRule.PACKED else len(lengths) * max(lengths)


def measured(points: Iterable[tuple[int, int, float]], rule: CostRule = CostRule.PADDED) -> Profile:
    """The profile of a device on which such rows and lengths took such seconds."""
    found = (ProfilePoint(rows=r, length=n, seconds=s) for r, n, s in points)
    return Profile(cost_rule=rule, device="simulated", points=tuple(found))


def row_profile(fixed: float, per_row: float, rows: Iterable[int] = (1, 2, 4, 8, 16)) -> Profile:
    """A device that pays for rows only."""
    return measured([(n, 1, fixed + per_row * n) for n in rows], CostRule.ROWS)


def offer(policy: BasePolicy, items: Iterable[Item]) -> None:
    """Items that must be taken, each when it arrives."""
    for item in items:
        assert policy.offer(item, item.arrived) is None


def policy_with(
    settings: BatchSettings, items: Iterable[Item], profile: Profile | None = None
) -> BasePolicy:
    """The policy that the settings name, with these items waiting."""
    policy = new_policy(settings, profile)
    offer(policy, items)
    return policy


def released(decision: Decision) -> list[int]:
    """Numbers of the items that leave; none if none do."""
    return [int(item.id) for item in decision.release.items] if decision.release else []


def start(policy: BasePolicy, now: float, slots: Slots = IDLE) -> Batch:
    """Release a batch and hand it over at once."""
    batch = policy.poll(now, slots).release
    assert batch is not None
    policy.observe(HandedOver(batch=batch.id), now)
    return batch


@dataclass(slots=True, kw_only=True)
class Served:
    """What became of the items."""

    finished: dict[ItemId, float] = field(default_factory=dict)
    shed: list[tuple[float, Shed]] = field(default_factory=list)
    refused: dict[ItemId, Refusal] = field(default_factory=dict)
    batches: list[tuple[float, Batch]] = field(default_factory=list)

    def late(self, items: Iterable[Item]) -> list[int]:
        """Numbers of those that were not answered when they were due."""
        return [int(i.id) for i in items if self.finished.get(i.id, math.inf) > i.due + 1e-9]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    batch: Batch
    reached: float
    begins: float
    took: float

    @property
    def ends(self) -> float:
        return self.begins + self.took

    def event(self) -> Finished:
        queued = self.begins - self.reached
        return Finished(batch=self.batch.id, compute_seconds=self.took, queue_seconds=queued)


def serve(
    policy: BasePolicy,
    items: Iterable[Item],
    seconds: Seconds,
    *,
    depth: int = 2,
    hand_off: float = 0.0005,
) -> Served:
    """Offer items when they arrive and run what is released, `hand_off` seconds later at least."""
    served = Served()
    coming = sorted(items, key=lambda item: (item.arrived, item.id))[::-1]
    running: list[_Running] = []
    wake = math.inf
    while True:
        ends = running[0].ends if running else math.inf
        now = min(ends, wake, coming[-1].arrived if coming else math.inf)
        if now == math.inf:
            return served
        if ends == now:
            done = running.pop(0)
            served.finished.update((item.id, now) for item in done.batch.items)
            policy.observe(done.event(), now)
        while coming and coming[-1].arrived == now:
            item = coming.pop()
            refusal = policy.offer(item, now)
            if refusal is not None:
                served.refused[item.id] = refusal
        while True:
            decision = policy.poll(now, Slots(depth=depth, in_flight=len(running)))
            served.shed += [(now, shed) for shed in decision.shed]
            if decision.release is None:
                wake = decision.wake_at
                break
            batch = decision.release
            served.batches.append((now, batch))
            policy.observe(HandedOver(batch=batch.id), now)
            reached = now + hand_off
            begins = max([reached, *(one.ends for one in running)])
            took = seconds([item.length for item in batch.items])
            running.append(_Running(batch=batch, reached=reached, begins=begins, took=took))
