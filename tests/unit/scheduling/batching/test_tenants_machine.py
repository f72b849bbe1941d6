"""Any policy before tenants that compete: whatever happens, each item leaves or is told, once."""

from collections.abc import Iterable
from itertools import product

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.batching.decisions import Batch, Slots
from batchedmodel_scheduling.queue.items import Item, ItemId, Priority, Refusal, Shed
from support.examples import examples
from support.policy_driver import ShippedPolicyDriver, durations
from support.scheduling import measured
from support.strategies import batch_settings

POINTS = list(product((1, 2, 5), (1, 20, 50)))
PROFILE = measured([(r, n, 0.005 + 0.001 * r + 1e-5 * r * n) for r, n in POINTS])
profiles = st.sampled_from([PROFILE, None])
SHARES = [Share("a"), Share("b"), Share("c", weight=4.0), Share("d", most=0.3)]


class TenantsMachine(ShippedPolicyDriver):
    """Four tenants, of which one has more weight and one may have less of the queue."""

    @initialize(chosen=batch_settings(most_workers=3), profile=profiles)
    def begin(self, chosen: BatchSettings, profile: Profile | None) -> None:
        self._begin_shipped(chosen, profile)
        self.back: list[Item] = []
        """Items that left, and may come back."""

    @rule(
        count=st.integers(1, 9),
        share=st.sampled_from(SHARES),
        key=st.sampled_from("abc"),
        length=st.integers(1, 50),
        patience=durations,
        grace=durations,
        priority=st.sampled_from(Priority),
    )
    def callers_arrive(
        self,
        count: int,
        share: Share,
        key: str,
        length: int,
        patience: float,
        grace: float,
        priority: Priority,
    ) -> None:
        for _ in range(count):
            self._arrive(
                key,
                length,
                due_in=patience,
                deadline_in=patience + grace,
                priority=priority,
                share=share,
            )

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), took=st.none() | durations)
    def a_batch_ends(self, data: st.DataObject, took: float | None) -> None:
        batch = self.in_flight[data.draw(st.sampled_from(sorted(self.in_flight)))]
        self.now += took or 0.0
        if took is None:
            self.policy.charges.refused(batch, batch.items[:1], 0.01, lost=False)
            self.back += batch.items
        else:
            self.policy.charges.served(batch, took or None)
        self._end(batch.id, took)

    @precondition(lambda self: self.back)
    @rule()
    def an_item_comes_back(self) -> None:
        item = self.back.pop()
        if item.deadline <= self.now:
            return
        self.settled.pop(item.id)
        self.waiting[item.id] = item
        self.policy.come_back(item)
        self.wake_at = None

    @rule(key=st.sampled_from("abc"), share=st.sampled_from(SHARES), seconds=durations)
    def a_key_rests(self, key: str, share: Share, seconds: float) -> None:
        self.policy.queue.rest(key, share.tenant, self.now + seconds)
        self.wake_at = None

    @rule(chosen=batch_settings(most_workers=3))
    def the_settings_change(self, chosen: BatchSettings) -> None:
        self._change_settings(chosen)

    @rule(profile=profiles, up=st.booleans())
    def the_server_starts_anew(self, profile: Profile | None, up: bool) -> None:
        self._start_server_anew(profile, depth=2 if up else 0)

    @invariant()
    def all_that_waits_has_room_and_nothing_else(self) -> None:
        if hasattr(self, "policy"):
            evicted = len(self.policy.queue.evicted)
            assert self.policy.queue.room.in_use == len(self.waiting) - evicted

    def _held(self) -> Iterable[ItemId]:
        queue = self.policy.queue
        return [item.id for item in (*queue, *queue.evicted, *queue.resting.items.values())]

    def _may_leave(self) -> bool:
        return len(self.waiting) > len(self.policy.queue.resting.items)

    def _check_answer(self, item: Item, refusal: Refusal | None, *, room: bool) -> None:
        if refusal is not None and refusal.reason is Rejection.QUEUE_FULL:
            assert len(self.waiting) > 0

    def _check_shed(self, shed: Shed) -> None:
        assert shed.item.id in self.waiting

    def _check_release(self, batch: Batch, slots: Slots) -> None:
        assert all(self.now < item.deadline for item in batch.items), "released too late"
        rests = self.policy.queue.resting.rests
        assert not any(rests(item.key, item.share.tenant) for item in batch.items)

    def _drain(self) -> None:
        self.depth = 2
        for _ in range(2 * len(self.waiting) + 2):
            self._end_all(0.001)
            self.now += self.settings.max_wait_seconds + 0.4
            self._poll()


TestTenants = pytest.mark.slow(TenantsMachine.TestCase)
TestTenants.settings = hypothesis_settings(max_examples=examples(100), stateful_step_count=50)
