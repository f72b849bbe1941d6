"""Drives a policy as its shell would, through any sequence of events.

The state machines of the policies that ship and of their rivals extend it. It keeps every item
until that is settled, so it knows what must wait in the policy. What holds for any policy is
checked here; what one of them decides is the matter of its own machine.
"""

from abc import abstractmethod
from collections.abc import Hashable, Iterable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import HoldReason, Rejection
from batchedmodel_scheduling.batching.decisions import (
    Batch,
    BatchId,
    Decision,
    Finished,
    HandedOver,
    Policy,
    Slots,
)
from batchedmodel_scheduling.batching.policies import new_policy, reconfigured, relearning
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.items import (
    NEVER,
    Item,
    ItemId,
    Priority,
    Refusal,
    RequestGroup,
    Shed,
)

durations = st.sampled_from([0.0, 1e-6, 0.0004, 0.002, 0.006, 0.02, 0.3]) | st.floats(0, 0.05)


class PolicyDriver(RuleBasedStateMachine):
    """Everybody who deals with a policy; items keep the order in which they came."""

    policy: Policy

    def _begin(self, policy: Policy, settings: BatchSettings, *, depth: int) -> None:
        self.policy, self.settings = policy, settings
        self.depth = depth
        """Batches that each worker takes."""
        self.now = 1000.0
        self.offered = 0
        self.waiting: dict[ItemId, Item] = {}
        self.settled: dict[ItemId, str] = {}
        self.in_flight: dict[BatchId, Batch] = {}
        self.handed: set[BatchId] = set()
        self.last_batch = 0
        self.wake_at: float | None = None
        """What the last poll said; None when something has happened since."""

    # What may happen

    @precondition(lambda self: self.offered)
    @rule(data=st.data())
    def a_caller_leaves(self, data: st.DataObject) -> None:
        gone = ItemId(data.draw(st.integers(1, self.offered)))
        self.policy.withdraw(gone, self.now)
        if gone in self.waiting:
            self._settle(self.waiting[gone], "withdrawn")
            self.wake_at = None

    @rule(seconds=durations)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_timer_rings_whenever_it_likes(self) -> None:
        self._poll()

    @precondition(lambda self: self.in_flight.keys() - self.handed)
    @rule()
    def a_batch_is_handed_over(self) -> None:
        self._hand_over(min(self.in_flight.keys() - self.handed))

    def teardown(self) -> None:
        """Whatever happened: a server that works serves or sheds all that waits."""
        if not hasattr(self, "policy"):
            return
        self._drain()
        assert not self.waiting
        assert self._poll().wake_at == NEVER
        assert len(self.settled) == self.offered

    # What must hold

    @invariant()
    def every_item_waits_or_is_settled(self) -> None:
        assert sorted(self._held()) == sorted(self.waiting)
        assert len(self.waiting) + len(self.settled) == self.offered

    @abstractmethod
    def _held(self) -> Iterable[ItemId]:
        """The items that wait as the policy itself sees it."""

    @abstractmethod
    def _drain(self) -> None:
        """Let a server work until nothing waits, with a bound."""

    def _check_answer(self, item: Item, refusal: Refusal | None, *, room: bool) -> None:
        """Whether the item should have been taken; `room` is what there was before it came."""
        assert (refusal is None) == room
        assert refusal is None or refusal.reason is Rejection.QUEUE_FULL

    @abstractmethod
    def _check_shed(self, shed: Shed) -> None:
        """Whether an item that waits may be given up now."""

    @abstractmethod
    def _check_release(self, batch: Batch, slots: Slots) -> None:
        """Whether this batch may leave; its items still stand among the waiting ones."""

    def _check_hold(self, decision: Decision, slots: Slots) -> None:
        """Whether nothing may leave though something waits."""

    # What is done

    def _arrive(
        self,
        key: Hashable,
        length: int,
        *,
        due_in: float,
        deadline_in: float,
        priority: Priority = Priority.NORMAL,
        yields: float = 0.0,
        request_group: RequestGroup | None = None,
        share: Share = NOBODY,
    ) -> None:
        """Offer a new item; its times are seconds from now."""
        self.offered += 1
        item = Item(
            id=ItemId(self.offered),
            key=key,
            length=length,
            arrived=self.now,
            due=self.now + due_in,
            deadline=self.now + deadline_in,
            priority=priority,
            yields=yields,
            request_group=request_group,
            share=share,
        )
        room = len(self.waiting) < self.settings.max_queue_size - self.settings.spare_rows
        refusal = self.policy.offer(item, self.now)
        self._check_answer(item, refusal, room=room)
        if refusal is None:
            self.waiting[item.id] = item
            self.wake_at = None
        else:
            assert 0 < refusal.retry_after <= 60
            self.settled[item.id] = "refused"

    def _poll(self) -> Decision:
        depth = self.depth * self.settings.max_concurrent_batches
        slots = Slots(depth=depth, in_flight=len(self.in_flight))
        decision = self.policy.poll(self.now, slots)
        for shed in decision.shed:
            self._check_shed(shed)
            self._settle(shed.item, shed.outcome)
        if decision.release is not None:
            assert decision.wake_at == self.now
            assert decision.reason is decision.release.reason
            self._release(decision.release, slots)
            self.wake_at = None
        elif self._may_leave():
            assert decision.reason in (HoldReason.BUSY, HoldReason.GATHERING)
            assert decision.wake_at > self.now, "a timer that rings at once for ever"
            self._check_hold(decision, slots)
            self.wake_at = decision.wake_at
        else:
            assert decision.reason is HoldReason.EMPTY
            assert bool(self.waiting) == (decision.wake_at < NEVER)
            self.wake_at = decision.wake_at
        return decision

    def _may_leave(self) -> bool:
        """Whether anything waits that may leave once a server takes it."""
        return bool(self.waiting)

    def _release(self, batch: Batch, slots: Slots) -> None:
        assert slots.in_flight < slots.depth, "released to a server that can take nothing"
        assert batch.id > self.last_batch, "an identifier repeats"
        assert 1 <= len(batch.items) <= self.settings.max_batch_size
        assert len({item.key for item in batch.items}) == 1, "incompatible items share a batch"
        self._check_release(batch, slots)
        for item in batch.items:
            self._settle(item, "released")
        self.in_flight[batch.id] = batch
        self.last_batch = batch.id

    def _hand_over(self, batch: BatchId) -> None:
        self.policy.observe(HandedOver(batch=batch), self.now)
        self.handed.add(batch)
        self.wake_at = None

    def _end(self, batch: BatchId, took: float | None, queued: float = 0.0) -> None:
        done = Finished(batch=batch, compute_seconds=took, queue_seconds=queued)
        self.policy.observe(done, self.now)
        del self.in_flight[batch]
        self.handed.discard(batch)
        self.wake_at = None

    def _end_all(self, took: float | None) -> None:
        for batch in list(self.in_flight):
            self._end(batch, took)

    def _a_worker_is_free(self, slots: Slots) -> bool:
        return slots.in_flight < min(slots.depth, self.settings.max_concurrent_batches)

    def _settle(self, item: Item, how: str) -> None:
        assert item.id not in self.settled, f"already {self.settled[item.id]}, now {how}"
        assert self.waiting.pop(item.id) is item, "not what was offered"
        self.settled[item.id] = how


class ShippedPolicyDriver(PolicyDriver):
    """A policy of the product, and a server that may measure itself and may start anew."""

    policy: BasePolicy

    def _begin_shipped(self, settings: BatchSettings, profile: Profile | None) -> None:
        self._begin(new_policy(settings, profile), settings, depth=2)
        self.profile = profile

    def _held(self) -> Iterable[ItemId]:
        queue = self.policy.queue
        return [item.id for item in (*queue, *queue.evicted)]

    def _change_settings(self, settings: BatchSettings) -> None:
        self.policy = reconfigured(self.policy, settings, self.now)
        self.settings = settings
        self.wake_at = None

    def _start_server_anew(self, profile: Profile | None, depth: int) -> None:
        self._end_all(None)
        self.policy = relearning(self.policy, profile)
        self.profile, self.depth = profile, depth
        self.wake_at = None
