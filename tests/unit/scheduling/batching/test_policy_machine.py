"""Greedy and Window against a trivial model of themselves, through any sequence of events.

Callers arrive and leave, timers fire early, on time and late, batches end early, late or not at
all, settings change, the server restarts. What must hold meanwhile stands in `_check_*`.
"""

import bisect
from collections.abc import Hashable
from itertools import product

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.outcomes import Outcome, ReleaseReason
from batchedmodel_scheduling.batching.decisions import Batch, Decision, Slots
from batchedmodel_scheduling.queue.items import NEVER, Item, Shed
from support.examples import examples
from support.policy_driver import ShippedPolicyDriver, durations
from support.scheduling import measured
from support.strategies import batch_settings

POINTS = list(product((1, 2, 5), (1, 20, 50)))
PROFILE = measured([(r, n, 0.005 + 0.001 * r + 1e-5 * r * n) for r, n in POINTS])
QUEUEING = (PolicyName.GREEDY, PolicyName.WINDOW)
profiles = st.sampled_from([PROFILE, None])


class PolicyMachine(ShippedPolicyDriver):
    """Checks what these two decide against the plain list of what waits."""

    @initialize(chosen=batch_settings(policies=QUEUEING, most_workers=3), profile=profiles)
    def begin(self, chosen: BatchSettings, profile: Profile | None) -> None:
        self._begin_shipped(chosen, profile)

    # What may happen

    @rule(
        key=st.sampled_from("aab"),
        length=st.integers(1, 50),
        patience=st.sampled_from([0.0, 0.003, 0.03, 30.0, 30.0]),
    )
    def a_caller_arrives(self, key: Hashable, length: int, patience: float) -> None:
        self._arrive(key, length, due_in=patience / 2, deadline_in=patience)

    @rule(key=st.sampled_from("ab"), length=st.sampled_from([1, 50]))
    def a_crowd_arrives(self, key: Hashable, length: int) -> None:
        """Full groups, again and again: what keeps others from the model if anything does."""
        for _ in range(self.settings.max_batch_size):
            self._arrive(key, length, due_in=15.0, deadline_in=30.0)

    @precondition(lambda self: self.wake_at is not None and self.now < self.wake_at < NEVER)
    @rule()
    def the_timer_rings_on_time(self) -> None:
        assert self.wake_at is not None
        self.now = self.wake_at
        decision = self._poll()
        assert decision.release or decision.shed, "woken in vain"

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), took=st.none() | durations, queued=st.sampled_from([0.0, 0.01]))
    def a_batch_ends(self, data: st.DataObject, took: float | None, queued: float) -> None:
        batch = data.draw(st.sampled_from(sorted(self.in_flight)))
        self.now += took or 0.0
        self._end(batch, took, queued)

    @rule(chosen=batch_settings(policies=QUEUEING, most_workers=3))
    def the_settings_change(self, chosen: BatchSettings) -> None:
        self._change_settings(chosen)

    @rule(profile=profiles, up=st.booleans())
    def the_server_starts_anew(self, profile: Profile | None, up: bool) -> None:
        self._start_server_anew(profile, depth=2 if up else 0)

    def _drain(self) -> None:
        self.depth = 2
        for _ in range(len(self.waiting) + 1):
            self._end_all(0.001)
            self.now += self.settings.max_wait_seconds
            self._poll()

    # What must hold

    def _check_shed(self, shed: Shed) -> None:
        assert shed.outcome is Outcome.EXPIRED
        assert shed.item.deadline <= self.now, "shed before its deadline"

    def _check_release(self, batch: Batch, slots: Slots) -> None:
        cap, head = self.settings.max_batch_size, batch.items[0]
        assert all(self.now < item.deadline for item in batch.items), "released too late"
        # Neither more nor others than the oldest of one group, in order of arrival.
        assert list(batch.items) == self._group(head)[:cap]
        assert (batch.reason is ReleaseReason.FULL) == (len(batch.items) == cap)
        self._check_order(batch)
        if batch.reason is not ReleaseReason.FULL:
            self._check_partial_release(batch, slots)

    def _check_order(self, batch: Batch) -> None:
        """Nobody who is due is overtaken: each waits only for heads that came before its own."""
        chosen = batch.items[0]
        for other in self.waiting.values():
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
        oldest = min(item.arrived for item in self.waiting.values())
        assert batch.items[0].arrived == oldest, "somebody waits longer"
        idle = self._a_worker_is_free(slots)
        if not idle:
            assert self.profile is not None, "handed over blindly"
        if self.settings.policy is PolicyName.WINDOW:
            assert batch.reason is ReleaseReason.DELAY
            assert oldest + self.settings.max_wait_seconds <= self.now, "its window is not over"
        else:
            reason = ReleaseReason.IDLE if idle else ReleaseReason.JUST_IN_TIME
            assert batch.reason is reason

    def _check_hold(self, decision: Decision, slots: Slots) -> None:
        due = [item for item in self.waiting.values() if self._is_due(item)]
        if slots.in_flight < slots.depth and due:
            first = min(due, key=lambda item: (item.arrived, item.id))
            full = len(self._group(first)) >= self.settings.max_batch_size
            assert not full, "full, first and held all the same"
        if self._a_worker_is_free(slots):
            oldest = min(item.arrived for item in self.waiting.values())
            over = oldest + self.settings.max_wait_seconds
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
            for item in self.waiting.values()
            if (item.key, bisect.bisect_left(edges, item.length)) == group
        ]


TestPolicies = pytest.mark.slow(PolicyMachine.TestCase)
TestPolicies.settings = hypothesis_settings(max_examples=examples(100), stateful_step_count=50)
