"""Greedy and Window against a trivial model of themselves, through any sequence of events.

Callers arrive and leave, timers fire early, on time and late, batches end early, late or not at
all, settings change, the server restarts. What must hold meanwhile stands in `_check_*`.
"""

import bisect
from collections.abc import Hashable

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.description import CostRule
from batchedmodel_contract.outcomes import HoldReason, Outcome, Rejection, ReleaseReason
from batchedmodel_contract.profile import Profile, ProfilePoint
from batchedmodel_contract.spec import PolicyName
from batchedmodel_scheduling.policies import new_policy, reconfigured, relearning
from batchedmodel_scheduling.policy import (
    NEVER,
    Batch,
    BatchId,
    Decision,
    Finished,
    HandedOver,
    Item,
    ItemId,
    Slots,
)
from support.strategies import batch_settings

PROFILE = Profile(
    cost_rule=CostRule.PADDED,
    device="simulated",
    points=tuple(
        ProfilePoint(rows=rows, length=length, seconds=0.005 + 0.001 * rows + 1e-5 * rows * length)
        for rows in (1, 2, 5)
        for length in (1, 20, 50)
    ),
)
QUEUEING = (PolicyName.GREEDY, PolicyName.WINDOW)
profiles = st.sampled_from([PROFILE, None])
durations = st.sampled_from([0.0, 1e-6, 0.0004, 0.002, 0.006, 0.02, 0.3]) | st.floats(0, 0.05)


class PolicyMachine(RuleBasedStateMachine):
    """Drives a policy as its shell would, and keeps a plain list of what must wait in it."""

    @initialize(chosen=batch_settings(policies=QUEUEING), profile=profiles)
    def begin(self, chosen: BatchSettings, profile: Profile | None) -> None:
        self.now = 1000.0
        self.settings, self.profile = chosen, profile
        self.policy = new_policy(chosen, profile)
        self.depth = 2
        self.offered = 0
        self.waiting: list[Item] = []
        self.settled: dict[ItemId, str] = {}
        self.in_flight: dict[BatchId, Batch] = {}
        self.handed: set[BatchId] = set()
        self.last_batch = 0
        self.wake_at: float | None = None

    # What may happen

    @rule(
        key=st.sampled_from("aab"),
        length=st.integers(1, 50),
        patience=st.sampled_from([0.0, 0.003, 0.03, 30.0, 30.0]),
    )
    def a_caller_arrives(self, key: Hashable, length: int, patience: float) -> None:
        self._arrive(key, length, patience)

    @rule(key=st.sampled_from("ab"), length=st.sampled_from([1, 50]))
    def a_crowd_arrives(self, key: Hashable, length: int) -> None:
        """Full groups, again and again: what keeps others from the model if anything does."""
        for _ in range(self.settings.max_batch_size):
            self._arrive(key, length, 30.0)

    def _arrive(self, key: Hashable, length: int, patience: float) -> None:
        self.offered += 1
        item = Item(
            id=ItemId(self.offered),
            key=key,
            length=length,
            arrived=self.now,
            due=self.now + patience / 2,
            deadline=self.now + patience,
        )
        room = len(self.waiting) < self.settings.max_queue_size
        refusal = self.policy.offer(item, self.now)
        assert (refusal is None) == room
        if refusal is None:
            self.waiting.append(item)
            self.wake_at = None
        else:
            assert refusal.reason is Rejection.QUEUE_FULL
            assert 0 < refusal.retry_after < NEVER
            self.settled[item.id] = "refused"

    @precondition(lambda self: self.offered)
    @rule(data=st.data())
    def a_caller_leaves(self, data: st.DataObject) -> None:
        gone = ItemId(data.draw(st.integers(1, self.offered)))
        self.policy.withdraw(gone, self.now)
        for item in self.waiting:
            if item.id == gone:
                self._settle(item, "withdrawn")
                self.wake_at = None
                break

    @rule(seconds=durations)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_timer_fires_whenever_it_likes(self) -> None:
        self._poll()

    @precondition(lambda self: self.wake_at is not None and self.now < self.wake_at < NEVER)
    @rule()
    def the_timer_fires_on_time(self) -> None:
        assert self.wake_at is not None
        self.now = self.wake_at
        decision = self._poll()
        assert decision.release or decision.shed, "woken in vain"

    @precondition(lambda self: self.in_flight.keys() - self.handed)
    @rule()
    def a_batch_is_handed_over(self) -> None:
        batch = min(self.in_flight.keys() - self.handed)
        self.policy.observe(HandedOver(batch=batch), self.now)
        self.handed.add(batch)
        self.wake_at = None

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), took=st.none() | durations, queued=st.sampled_from([0.0, 0.01]))
    def a_batch_ends(self, data: st.DataObject, took: float | None, queued: float) -> None:
        batch = data.draw(st.sampled_from(sorted(self.in_flight)))
        self.now += took or 0.0
        self._end(batch, took, queued)

    @rule(chosen=batch_settings(policies=QUEUEING))
    def the_settings_change(self, chosen: BatchSettings) -> None:
        self.policy = reconfigured(self.policy, chosen, self.now)
        self.settings = chosen
        self.wake_at = None

    @rule(profile=profiles, up=st.booleans())
    def the_server_starts_anew(self, profile: Profile | None, up: bool) -> None:
        for batch in list(self.in_flight):
            self._end(batch, None, 0.0)
        self.policy = relearning(self.policy, profile)
        self.profile = profile
        self.depth = 2 if up else 0
        self.wake_at = None

    def teardown(self) -> None:
        """Whatever happened: a server that works serves or sheds all that waits."""
        if not hasattr(self, "policy"):
            return
        self.depth = 2
        for _ in range(len(self.waiting) + 1):
            for batch in list(self.in_flight):
                self._end(batch, 0.001, 0.0)
            self.now += self.settings.max_wait_seconds
            self._poll()
        assert not self.waiting
        assert self._poll().wake_at == NEVER
        assert len(self.settled) == self.offered

    # What must hold

    @invariant()
    def every_item_waits_or_is_settled(self) -> None:
        assert len(list(self.policy.waiting())) == len(self.waiting)
        assert len(self.waiting) + len(self.settled) == self.offered

    def _poll(self) -> Decision:
        slots = Slots(depth=self.depth, in_flight=len(self.in_flight))
        decision = self.policy.poll(self.now, slots)
        for shed in decision.shed:
            assert shed.outcome is Outcome.EXPIRED
            assert shed.item.deadline <= self.now, "shed before its deadline"
            self._settle(shed.item, "shed")
        if decision.release is not None:
            assert decision.wake_at == self.now
            assert decision.reason is decision.release.reason
            self._check_release(decision.release, slots)
            self.wake_at = None
        elif self.waiting:
            self._check_hold(decision, slots)
            self.wake_at = decision.wake_at
        else:
            assert (decision.wake_at, decision.reason) == (NEVER, HoldReason.EMPTY)
            self.wake_at = NEVER
        return decision

    def _check_release(self, batch: Batch, slots: Slots) -> None:
        assert slots.in_flight < slots.depth, "released to a server that can take nothing"
        assert batch.id > self.last_batch, "an identifier repeats"
        cap, head = self.settings.max_batch_size, batch.items[0]
        assert all(self.now < item.deadline for item in batch.items), "released too late"
        # Neither more nor others than the oldest of one group, in order of arrival.
        assert list(batch.items) == self._group(head)[:cap]
        assert (batch.reason is ReleaseReason.FULL) == (len(batch.items) == cap)
        self._check_order(batch)
        if batch.reason is not ReleaseReason.FULL:
            self._check_partial_release(batch, slots)
        for item in batch.items:
            self._settle(item, "released")
        self.in_flight[batch.id] = batch
        self.last_batch = batch.id

    def _check_order(self, batch: Batch) -> None:
        """Nobody who is due is overtaken: each waits only for heads that came before its own."""
        chosen = batch.items[0]
        for other in self.waiting:
            is_older = (other.arrived, other.id) < (chosen.arrived, chosen.id)
            assert not (is_older and self._is_due(other)), f"{other.id} is overtaken"

    def _is_due(self, item: Item) -> bool:
        """Whether the item is held back no longer, were it the head of its group."""
        if self.settings.policy is PolicyName.GREEDY:
            return True
        if item.arrived + self.settings.max_wait_seconds <= self.now:
            return True
        group = self._group(item)
        return group[0] is item and len(group) >= self.settings.max_batch_size

    def _check_partial_release(self, batch: Batch, slots: Slots) -> None:
        oldest = min(item.arrived for item in self.waiting)
        assert batch.items[0].arrived == oldest, "somebody waits longer"
        if slots.in_flight:
            assert self.profile is not None, "handed over blindly"
        if self.settings.policy is PolicyName.WINDOW:
            assert batch.reason is ReleaseReason.DELAY
            assert oldest + self.settings.max_wait_seconds <= self.now, "its window is not over"
        else:
            idle = ReleaseReason.JUST_IN_TIME if slots.in_flight else ReleaseReason.IDLE
            assert batch.reason is idle

    def _check_hold(self, decision: Decision, slots: Slots) -> None:
        assert decision.reason in (HoldReason.BUSY, HoldReason.GATHERING)
        assert decision.wake_at > self.now, "a timer that fires at once for ever"
        due = [item for item in self.waiting if self._is_due(item)]
        if slots.in_flight < slots.depth and due:
            first = min(due, key=lambda item: (item.arrived, item.id))
            full = len(self._group(first)) >= self.settings.max_batch_size
            assert not full, "full, first and held all the same"
        if slots.depth and not slots.in_flight:
            over = min(item.arrived for item in self.waiting) + self.settings.max_wait_seconds
            assert self.settings.policy is PolicyName.WINDOW, "held from an idle model"
            assert decision.wake_at == over > self.now
        # An early wake changes nothing.
        assert self.policy.poll(self.now, slots) == Decision(
            release=None, shed=(), wake_at=decision.wake_at, reason=decision.reason
        )

    def _group(self, member: Item) -> list[Item]:
        edges = self.settings.length_buckets
        group = (member.key, bisect.bisect_left(edges, member.length))
        return [
            item
            for item in self.waiting
            if (item.key, bisect.bisect_left(edges, item.length)) == group
        ]

    def _end(self, batch: BatchId, took: float | None, queued: float) -> None:
        done = Finished(batch=batch, compute_seconds=took, queue_seconds=queued)
        self.policy.observe(done, self.now)
        del self.in_flight[batch]
        self.handed.discard(batch)
        self.wake_at = None

    def _settle(self, item: Item, how: str) -> None:
        assert item.id not in self.settled, f"already {self.settled[item.id]}, now {how}"
        self.waiting.remove(item)
        self.settled[item.id] = how


TestPolicies = PolicyMachine.TestCase
TestPolicies.settings = hypothesis_settings(max_examples=100, stateful_step_count=50, deadline=None)
