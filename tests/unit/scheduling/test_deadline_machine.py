"""All policies, `Deadline` above all, through any sequence of events.

Callers of all kinds arrive and leave, timers ring early, on time and late, batches end early, late
or not at all, the server's memory shrinks, settings and policies change, the server restarts. What
must hold whatever the policy decides stands in `_check_*`; what exactly Greedy and Window decide
is the matter of `test_policy_machine`.
"""

from dataclasses import replace

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.description import CostRule
from batchedmodel_contract.outcomes import HoldReason, Outcome, Rejection, ReleaseReason
from batchedmodel_contract.profile import Profile, ProfilePoint
from batchedmodel_contract.spec import PolicyName
from batchedmodel_scheduling.base import BasePolicy
from batchedmodel_scheduling.deadline.policy import Deadline
from batchedmodel_scheduling.policies import new_policy, reconfigured, relearning
from batchedmodel_scheduling.policy import (
    NEVER,
    Batch,
    BatchId,
    Decision,
    FanOut,
    Finished,
    HandedOver,
    Item,
    ItemId,
    MemoryCap,
    Priority,
    Slots,
)
from support.strategies import batch_settings

LENGTHS = (1, 8, 8, 40, 50)
LONG_ENOUGH = 30.0
PATIENCES = (0.02, 0.05, 0.1, 0.3, 1.0, 5.0, LONG_ENOUGH)
OUT_OF_ORDER = (ReleaseReason.PRESSURE, ReleaseReason.SPARE, ReleaseReason.FLOOR)
"""Under pressure, from spare time and at a priority's turn, due times do not rule."""


def seconds_of(rule: CostRule, lengths: list[int]) -> float:
    return 0.004 + 0.001 * len(lengths) + 1e-5 * cost_of(rule, lengths)


def cost_of(rule: CostRule, lengths: list[int]) -> int:
    if rule is CostRule.ROWS:
        return len(lengths)
    return sum(lengths) if rule is CostRule.PACKED else len(lengths) * max(lengths)


def a_profile(rule: CostRule) -> Profile:
    return Profile(
        cost_rule=rule,
        device="simulated",
        points=tuple(
            ProfilePoint(rows=rows, length=length, seconds=seconds_of(rule, [length] * rows))
            for rows in (1, 2, 5)
            for length in (1, 20, 50)
        ),
    )


PROFILES = [None, *(a_profile(rule) for rule in CostRule)]
profiles = st.sampled_from(PROFILES)
durations = st.sampled_from([0.0, 1e-6, 0.0004, 0.002, 0.006, 0.02, 0.3]) | st.floats(0, 0.05)


@st.composite
def policy_settings(draw: st.DrawFn) -> BatchSettings:
    """Small caps of all kinds; `Deadline` more often than the other two."""
    return replace(
        draw(batch_settings()),
        policy=draw(st.sampled_from([*PolicyName, PolicyName.DEADLINE, PolicyName.DEADLINE])),
        max_batch_tokens=draw(st.sampled_from([None, None, 45, 120])),
        # Two single rows take 10 ms or more: the shortest target is out of reach.
        target_seconds=draw(st.sampled_from([None, 0.008, 0.012, 0.05])),
    )


class SchedulingMachine(RuleBasedStateMachine):
    """Drives a policy as its shell would, and keeps the items that it must still hold."""

    policy: BasePolicy

    @initialize(chosen=policy_settings(), profile=profiles)
    def begin(self, chosen: BatchSettings, profile: Profile | None) -> None:
        self.now = 1000.0
        self.settings, self.profile = chosen, profile
        self.policy = new_policy(chosen, profile)
        self.memory: int | None = None
        self.depth = 2
        self.offered = 0
        self.waiting: dict[ItemId, Item] = {}
        self.settled: dict[ItemId, str] = {}
        self.most = chosen.max_queue_size
        self.in_flight: dict[BatchId, Batch] = {}
        self.handed: set[BatchId] = set()
        self.last_batch = 0
        self.wake_at: float | None = None

    # What may happen

    @rule(
        key=st.sampled_from("aab"),
        length=st.sampled_from(LENGTHS),
        patience=st.sampled_from([0.0, 0.003, 0.012, 0.03, 0.1, LONG_ENOUGH]),
        grace=st.sampled_from([0.0, 0.0, 0.02, LONG_ENOUGH]),
        priority=st.sampled_from(Priority),
        group=st.none() | st.builds(FanOut, id=st.sampled_from("xy"), size=st.integers(1, 6)),
        count=st.sampled_from([1, 1, 1, 2, 7]),
    )
    def callers_arrive(
        self,
        key: str,
        length: int,
        patience: float,
        grace: float,
        priority: Priority,
        group: FanOut | None,
        count: int,
    ) -> None:
        for _ in range(count):
            self.offered += 1
            item = Item(
                id=ItemId(self.offered),
                key=key,
                length=length,
                arrived=self.now,
                due=self.now + patience,
                deadline=self.now + patience + grace,
                priority=priority,
                fan_out=group,
            )
            self._offer(item)

    @rule(
        length=st.sampled_from(LENGTHS),
        callers=st.lists(
            st.tuples(st.sampled_from(PATIENCES), st.sampled_from(Priority)), max_size=12
        ),
        refuse=st.booleans(),
    )
    def a_backlog_of_all_priorities_builds_up(
        self, length: int, callers: list[tuple[float, Priority]], refuse: bool
    ) -> None:
        """On one key: where a lane is not simply in order of due times."""
        for patience, priority in callers:
            self.offered += 1
            item = Item(
                id=ItemId(self.offered),
                key="a",
                length=length,
                arrived=self.now,
                due=self.now + patience,
                deadline=self.now + (patience if refuse else LONG_ENOUGH),
                priority=priority,
            )
            self._offer(item)

    def _offer(self, item: Item) -> None:
        refusal = self.policy.offer(item, self.now)
        self.wake_at = None
        if refusal is None:
            self.waiting[item.id] = item
            return
        self.settled[item.id] = "refused"
        assert 0 < refusal.retry_after <= 60
        if refusal.reason is Rejection.PREDICTED_LATE:
            assert isinstance(self.policy, Deadline)
            assert item.deadline < self.now + LONG_ENOUGH, "refused with all the time in the world"
        else:
            assert refusal.reason is Rejection.QUEUE_FULL
            assert len(self.waiting) >= self.settings.max_queue_size

    @precondition(lambda self: self.offered)
    @rule(data=st.data())
    def a_caller_leaves(self, data: st.DataObject) -> None:
        gone = ItemId(data.draw(st.integers(1, self.offered)))
        self.policy.withdraw(gone, self.now)
        self.wake_at = None
        if gone in self.waiting:
            self._settle(self.waiting[gone], "withdrawn")

    @rule(seconds=durations)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_timer_rings_whenever_it_likes(self) -> None:
        self._poll()

    @precondition(lambda self: self.wake_at is not None and self.now < self.wake_at < NEVER)
    @rule(late=st.sampled_from([0.0, 0.0, 0.0002, 0.004]))
    def the_timer_rings(self, late: float) -> None:
        assert self.wake_at is not None
        self.now = self.wake_at + late
        self._poll()

    @precondition(lambda self: self.in_flight.keys() - self.handed)
    @rule()
    def a_batch_is_handed_over(self) -> None:
        batch = min(self.in_flight.keys() - self.handed)
        self.policy.observe(HandedOver(batch=batch), self.now)
        self.handed.add(batch)
        self.wake_at = None

    @precondition(lambda self: self.in_flight)
    @rule(
        data=st.data(),
        factor=st.sampled_from([None, 0.3, 1.0, 1.0, 1.0, 4.0]),
        queued=st.sampled_from([0.0, 0.01]),
    )
    def a_batch_ends(self, data: st.DataObject, factor: float | None, queued: float) -> None:
        batch = data.draw(st.sampled_from(sorted(self.in_flight)))
        lengths = [item.length for item in self.in_flight[batch].items]
        took = None if factor is None else factor * seconds_of(self._rule(), lengths)
        self.now += took or 0.0
        self._end(batch, took, queued)

    @rule(cost=st.sampled_from([None, 3, 45, 120]))
    def the_server_tells_what_its_memory_holds(self, cost: int | None) -> None:
        self.policy.observe(MemoryCap(cost=cost), self.now)
        self.memory = cost
        self.wake_at = None

    @rule(chosen=policy_settings())
    def the_settings_change(self, chosen: BatchSettings) -> None:
        self.policy = reconfigured(self.policy, chosen, self.now)
        self.settings = chosen
        self.most = max(chosen.max_queue_size, len(self.waiting))
        self.wake_at = None

    @rule(profile=profiles, depth=st.sampled_from([0, 1, 2]))
    def the_server_starts_anew(self, profile: Profile | None, depth: int) -> None:
        for batch in list(self.in_flight):
            self._end(batch, None, 0.0)
        self.policy = relearning(self.policy, profile)
        self.profile, self.memory, self.depth = profile, None, depth
        # Those evicted of whom nobody has been told yet wait again.
        self.most = max(self.settings.max_queue_size, len(self.waiting))
        self.wake_at = None

    def teardown(self) -> None:
        """Whatever happened: a server that works serves or sheds all that waits."""
        if not hasattr(self, "policy"):
            return
        self.depth = 1
        holds = 0
        while self.waiting:
            for batch in list(self.in_flight):
                self._end(batch, None, 0.0)
            before = len(self.waiting)
            decision = self._poll()
            if decision.release is None and len(self.waiting) == before:
                assert decision.reason is HoldReason.GATHERING
                self.now = decision.wake_at
                holds += 1
                assert holds < 1000, "held for ever"
        assert self._poll().wake_at == NEVER
        assert len(self.settled) == self.offered

    # What must hold

    @invariant()
    def every_item_waits_or_is_settled(self) -> None:
        assert sorted(item.id for item in self.policy.waiting()) == sorted(self.waiting)
        assert len(self.waiting) + len(self.settled) == self.offered

    def _poll(self) -> Decision:
        slots = Slots(depth=self.depth, in_flight=len(self.in_flight))
        decision = self.policy.poll(self.now, slots)
        self._check_shed(decision)
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
        assert len(self.waiting) <= self.most, "the queue is longer than it may be"
        return decision

    def _check_shed(self, decision: Decision) -> None:
        for shed in decision.shed:
            item = shed.item
            if shed.outcome is Outcome.EXPIRED:
                assert item.deadline <= self.now, "shed before its deadline"
            else:
                assert isinstance(self.policy, Deadline)
                # Late items are still wanted, or not; the one kind is evicted, the other given up.
                evicted = shed.outcome is Outcome.EVICTED
                assert evicted == (item.due < item.deadline)
                assert evicted or shed.outcome is Outcome.SHED
            self._settle(item, shed.outcome)

    def _check_release(self, batch: Batch, slots: Slots) -> None:
        assert slots.in_flight < slots.depth, "released to a server that can take nothing"
        assert batch.id > self.last_batch, "an identifier repeats"
        assert all(self.now < item.deadline for item in batch.items), "released too late"
        assert len({item.key for item in batch.items}) == 1, "incompatible items share a batch"
        self._check_caps(batch)
        for item in batch.items:
            self._settle(item, "released")
        self._check_order(batch)
        self.in_flight[batch.id] = batch
        self.last_batch = batch.id

    def _check_caps(self, batch: Batch) -> None:
        lengths = [item.length for item in batch.items]
        assert 1 <= len(lengths) <= self.settings.max_batch_size
        rule = self._rule()
        tokens = None if rule is CostRule.ROWS else self.settings.max_batch_tokens
        for bound in (tokens, self.memory):
            assert bound is None or len(lengths) == 1 or cost_of(rule, lengths) <= bound

    def _check_order(self, batch: Batch) -> None:
        """Of two alike that both may be on time, the one that is due later does not go before."""
        if batch.reason in OUT_OF_ORDER:
            return
        by_due = isinstance(self.policy, Deadline)
        for gone in batch.items:
            for left in self.waiting.values():
                alike = (gone.key, gone.length, gone.priority)
                if (left.key, left.length, left.priority) != alike or self._is_late(left):
                    continue
                if by_due:
                    assert (gone.due, gone.id) < (left.due, left.id), "overtaken"
                else:
                    assert gone.id < left.id, "overtaken"

    def _is_late(self, item: Item) -> bool:
        """Whether the item was given up and waits for spare time: seen nowhere from outside."""
        return isinstance(self.policy, Deadline) and item.id in self.policy._spare

    def _check_hold(self, decision: Decision, slots: Slots) -> None:
        assert decision.reason in (HoldReason.BUSY, HoldReason.GATHERING)
        assert decision.wake_at > self.now, "a timer that rings at once for ever"
        if slots.depth and not slots.in_flight:
            assert decision.reason is HoldReason.GATHERING
        if decision.reason is HoldReason.GATHERING:
            # Late ones wait for what is left over.
            wanted = [item for item in self.waiting.values() if not self._is_late(item)]
            over = min(item.arrived for item in wanted) + self.settings.max_wait_seconds
            opens = self.policy.pipeline.opens_at(slots, self.now)
            assert decision.wake_at <= max(over, opens), "held for longer than a wait may be"
        # An early ring changes nothing.
        again = self.policy.poll(self.now, slots)
        assert (again.release, again.shed) == (None, ())
        assert (again.wake_at, again.reason) == (decision.wake_at, decision.reason)

    def _rule(self) -> CostRule:
        return self.profile.cost_rule if self.profile else CostRule.PADDED

    def _end(self, batch: BatchId, took: float | None, queued: float) -> None:
        done = Finished(batch=batch, compute_seconds=took, queue_seconds=queued)
        self.policy.observe(done, self.now)
        del self.in_flight[batch]
        self.handed.discard(batch)
        self.wake_at = None

    def _settle(self, item: Item, how: str) -> None:
        assert item.id not in self.settled, f"already {self.settled[item.id]}, now {how}"
        del self.waiting[item.id]
        self.settled[item.id] = how


TestPolicies = SchedulingMachine.TestCase
TestPolicies.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)
