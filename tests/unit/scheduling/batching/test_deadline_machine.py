"""All policies, `Deadline` above all, through any sequence of events.

Callers of all kinds arrive and leave, timers ring early, on time and late, batches end early, late
or not at all, the server's memory shrinks, settings and policies change, the server restarts. What
must hold whatever the policy decides stands in `_check_*`; what exactly Greedy and Window decide
is the matter of `test_policy_machine`.
"""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, PolicyName
from batchedmodel_contract.outcomes import HoldReason, Outcome, Rejection, ReleaseReason
from batchedmodel_scheduling.batching.deadline import Deadline
from batchedmodel_scheduling.batching.decisions import Batch, Decision, MemoryCap, Slots
from batchedmodel_scheduling.queue.items import NEVER, Item, Priority, Refusal, RequestGroup, Shed
from support.examples import examples
from support.policy_driver import ShippedPolicyDriver
from support.scheduling import cost_of, measured
from support.strategies import batch_settings

LENGTHS = (1, 8, 8, 40, 50)
LONG_ENOUGH = 30.0
PATIENCES = (0.02, 0.05, 0.1, 0.3, 1.0, 5.0, LONG_ENOUGH)
OUT_OF_ORDER = (ReleaseReason.PRESSURE, ReleaseReason.SPARE, ReleaseReason.FLOOR)
"""Under pressure, from spare time and at a priority's turn, due times do not rule."""


def seconds_of(rule: CostRule, lengths: list[int]) -> float:
    return 0.004 + 0.001 * len(lengths) + 1e-5 * cost_of(rule, lengths)


def a_profile(rule: CostRule) -> Profile:
    points = product((1, 2, 5), (1, 20, 50))
    return measured([(r, n, seconds_of(rule, [n] * r)) for r, n in points], rule)


PROFILES = [None, *(a_profile(rule) for rule in CostRule)]
profiles = st.sampled_from(PROFILES)


@st.composite
def policy_settings(draw: st.DrawFn) -> BatchSettings:
    """Small caps of all kinds; `Deadline` more often than the other two."""
    # Two single rows take 10 ms or more: the shortest target is out of reach.
    target = draw(st.sampled_from([None, 0.008, 0.012, 0.05]))
    return replace(
        draw(batch_settings(most_workers=3)),
        policy=draw(st.sampled_from([*PolicyName, PolicyName.DEADLINE, PolicyName.DEADLINE])),
        max_batch_tokens=draw(st.sampled_from([None, None, 45, 120])),
        target_seconds=target,
        lateness=draw(st.sampled_from(Lateness)) if target else Lateness.SERVE,
    )


class SchedulingMachine(ShippedPolicyDriver):
    """Checks what must hold whatever the policy is."""

    @initialize(chosen=policy_settings(), profile=profiles)
    def begin(self, chosen: BatchSettings, profile: Profile | None) -> None:
        self._begin_shipped(chosen, profile)
        self.memory: int | None = None
        self.most = chosen.max_queue_size

    # What may happen

    @rule(
        key=st.sampled_from("aab"),
        length=st.sampled_from(LENGTHS),
        patience=st.sampled_from([0.0, 0.003, 0.012, 0.03, 0.1, LONG_ENOUGH]),
        grace=st.sampled_from([0.0, 0.0, 0.02, LONG_ENOUGH]),
        priority=st.sampled_from(Priority),
        yields=st.sampled_from([0.0, 0.0, 0.0, 0.02]),
        group=st.none() | st.builds(RequestGroup, id=st.sampled_from("xy"), size=st.integers(1, 6)),
        count=st.sampled_from([1, 1, 1, 2, 7]),
    )
    def callers_arrive(
        self,
        key: str,
        length: int,
        patience: float,
        grace: float,
        priority: Priority,
        yields: float,
        group: RequestGroup | None,
        count: int,
    ) -> None:
        for _ in range(count):
            self._arrive(
                key,
                length,
                due_in=patience,
                deadline_in=patience + grace,
                priority=priority,
                yields=yields,
                request_group=group,
            )

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
            last = patience if refuse else LONG_ENOUGH
            self._arrive("a", length, due_in=patience, deadline_in=last, priority=priority)

    @precondition(lambda self: self.wake_at is not None and self.now < self.wake_at < NEVER)
    @rule(late=st.sampled_from([0.0, 0.0, 0.0002, 0.004]))
    def the_timer_rings(self, late: float) -> None:
        assert self.wake_at is not None
        self.now = self.wake_at + late
        self._poll()

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
        self._change_settings(chosen)
        self.most = max(chosen.max_queue_size, len(self.waiting))

    @rule(profile=profiles, depth=st.sampled_from([0, 1, 2]))
    def the_server_starts_anew(self, profile: Profile | None, depth: int) -> None:
        self._start_server_anew(profile, depth)
        self.memory = None
        # Those evicted of whom nobody has been told yet wait again.
        self.most = max(self.settings.max_queue_size, len(self.waiting))

    def _drain(self) -> None:
        self.depth = 1
        holds = 0
        while self.waiting:
            self._end_all(None)
            before = len(self.waiting)
            decision = self._poll()
            if decision.release is None and len(self.waiting) == before:
                assert decision.reason is HoldReason.GATHERING
                self.now = decision.wake_at
                holds += 1
                assert holds < 1000, "held for ever"

    # What must hold

    def _check_answer(self, item: Item, refusal: Refusal | None, *, room: bool) -> None:
        if refusal is not None and refusal.reason is Rejection.PREDICTED_LATE:
            assert isinstance(self.policy, Deadline)
            assert item.deadline < self.now + LONG_ENOUGH, "refused with all the time in the world"
        elif refusal is not None:
            assert refusal.reason is Rejection.QUEUE_FULL
            assert not room

    def _poll(self) -> Decision:
        decision = super()._poll()
        assert len(self.waiting) <= self.most, "the queue is longer than it may be"
        return decision

    def _check_shed(self, shed: Shed) -> None:
        item = shed.item
        if shed.outcome is Outcome.EXPIRED:
            assert item.deadline <= self.now, "shed before its deadline"
        else:
            # An item that was evicted is told so by whichever policy decides next.
            assert isinstance(self.policy, Deadline) or shed.outcome is Outcome.EVICTED
            # Late items are still wanted, or not; the one kind is evicted, the other given up.
            evicted = shed.outcome is Outcome.EVICTED
            assert evicted == (item.due < item.deadline)
            assert evicted or shed.outcome is Outcome.SHED

    def _check_release(self, batch: Batch, slots: Slots) -> None:
        assert all(self.now < item.deadline for item in batch.items), "released too late"
        self._check_caps(batch)
        self._check_order(batch)

    def _check_caps(self, batch: Batch) -> None:
        lengths = [item.length for item in batch.items]
        rule = self._rule()
        tokens = None if rule is CostRule.ROWS else self.settings.max_batch_tokens
        for bound in (tokens, self.memory):
            assert bound is None or len(lengths) == 1 or cost_of(rule, lengths) <= bound

    def _check_order(self, batch: Batch) -> None:
        """Of two alike that both may be on time, the one that is due later does not go before."""
        if batch.reason in OUT_OF_ORDER:
            return
        by_due = isinstance(self.policy, Deadline)
        stay = [item for item in self.waiting.values() if item not in batch.items]
        for gone in batch.items:
            for left in stay:
                alike = (gone.key, gone.length, gone.priority)
                if (left.key, left.length, left.priority) != alike or self._is_late(left):
                    continue
                if by_due:
                    assert _turn(gone) < _turn(left), "overtaken"
                else:
                    assert gone.id < left.id, "overtaken"

    def _is_late(self, item: Item) -> bool:
        """Whether the item was given up and waits for spare time: seen nowhere from outside."""
        if not isinstance(self.policy, Deadline):
            return False
        return item in list(self.policy.queue.late)

    def _check_hold(self, decision: Decision, slots: Slots) -> None:
        if self._a_worker_is_free(slots):
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


def _turn(item: Item) -> tuple[float, int]:
    return item.due + item.yields, item.id


TestPolicies = pytest.mark.slow(SchedulingMachine.TestCase)
TestPolicies.settings = hypothesis_settings(max_examples=examples(100), stateful_step_count=40)
