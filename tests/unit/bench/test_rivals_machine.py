"""Every rival through any sequence of events: nothing lost, nothing twice, no cap exceeded."""

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.outcomes import HoldReason
from batchedmodel_scheduling.policy import (
    NEVER,
    Batch,
    BatchId,
    Decision,
    Finished,
    HandedOver,
    Item,
    ItemId,
    MemoryCap,
    Priority,
    Slots,
)
from rivals.bucket_window import BucketWindow
from rivals.clockwork import Clockwork
from rivals.cork import Cork, Line
from rivals.nexus import Nexus
from rivals.rival import Rival
from rivals.tei import Tei
from rivals.triton import Triton
from support.strategies import batch_settings

LIMIT = 0.05
BUDGET = 80


def _seconds(rows: int, longest: int) -> float:
    return 0.004 + 0.0001 * rows * longest


RIVALS: dict[str, Callable[[BatchSettings], Rival]] = {
    "window": BucketWindow,
    "window, dropping": lambda s: BucketWindow(s, drop_expired=True),
    "triton": lambda s: Triton(s, preferred=(2, 4)),
    "triton, rejecting": lambda s: Triton(s, reject_expired=True),
    "cork": lambda s: Cork(s, limit=LIMIT),
    "cork, exact": lambda s: Cork(s, limit=LIMIT, known=Line(per_row=0.001, fixed=0.004)),
    "nexus": lambda s: Nexus(s, _seconds, target=LIMIT, length=20),
    "clockwork": lambda s: Clockwork(s, _seconds),
    "tei, padded": lambda s: Tei(s, budget=BUDGET),
    "tei, packed": lambda s: Tei(s, budget=BUDGET, padded=False),
}
HEED_DEADLINES = {"window, dropping", "triton, rejecting", "nexus", "clockwork"}
NEVER_SHED = {"window", "triton", "tei, padded", "tei, packed"}
durations = st.sampled_from([0.0, 1e-6, 0.0004, 0.002, 0.006, 0.02, 0.3])


class RivalMachine(RuleBasedStateMachine):
    """Drives a rival as the simulator would, and keeps a plain list of what must wait in it."""

    @initialize(name=st.sampled_from(sorted(RIVALS)), settings=batch_settings())
    def begin(self, name: str, settings: BatchSettings) -> None:
        self.name = name
        self.settings = settings
        self.policy = RIVALS[name](settings)
        self.now = 1000.0
        self.depth = 1
        self.offered = 0
        self.waiting: dict[ItemId, Item] = {}
        self.gone: set[ItemId] = set()
        self.in_flight: dict[BatchId, Batch] = {}
        self.last_batch = 0

    @rule(
        key=st.sampled_from("aab"),
        length=st.integers(1, 50),
        patience=st.sampled_from([0.0, 0.003, 0.03, 30.0]),
        priority=st.sampled_from(Priority),
        count=st.sampled_from([1, 1, 2, 7]),
    )
    def callers_arrive(
        self, key: str, length: int, patience: float, priority: Priority, count: int
    ) -> None:
        for _ in range(count):
            self.offered += 1
            item = Item(
                id=ItemId(self.offered),
                key=key,
                length=length,
                arrived=self.now,
                due=self.now + patience,
                deadline=self.now + 2 * patience,
                priority=priority,
            )
            has_room = len(self.waiting) < self.settings.max_queue_size
            assert (self.policy.offer(item, self.now) is None) == has_room
            if has_room:
                self.waiting[item.id] = item
            else:
                self.gone.add(item.id)

    @precondition(lambda self: self.offered)
    @rule(data=st.data())
    def a_caller_leaves(self, data: st.DataObject) -> None:
        left = ItemId(data.draw(st.integers(1, self.offered)))
        self.policy.withdraw(left, self.now)
        if self.waiting.pop(left, None) is not None:
            self.gone.add(left)

    @rule(seconds=durations)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_timer_fires_whenever_it_likes(self) -> None:
        self._poll()

    @rule()
    def the_timer_fires_on_time(self) -> None:
        decision = self._poll()
        if decision.release is None and decision.wake_at < NEVER:
            self.now = decision.wake_at
            woken = self._poll()
            assert woken.release or woken.shed, "woken in vain"

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), took=st.none() | durations)
    def a_batch_ends(self, data: st.DataObject, took: float | None) -> None:
        batch = data.draw(st.sampled_from(sorted(self.in_flight)))
        self.now += took or 0.0
        self._end(batch, took)

    @rule(settings=batch_settings(), depth=st.sampled_from([0, 1, 2]))
    def settings_and_server_change(self, settings: BatchSettings, depth: int) -> None:
        self.policy.configure(settings, self.now)
        self.policy.observe(MemoryCap(cost=None), self.now)
        self.settings, self.depth = settings, depth

    def teardown(self) -> None:
        """A server that works serves or sheds all that waits."""
        if not hasattr(self, "policy"):
            return
        self.depth = 1
        for _ in range(3 * len(self.waiting) + 1):
            for batch in list(self.in_flight):
                self._end(batch, 0.001)
            decision = self._poll()
            if decision.release is None and decision.wake_at < NEVER:
                self.now = decision.wake_at
        assert not self.waiting
        assert len(self.gone) == self.offered

    @invariant()
    def what_waits_waits_here(self) -> None:
        assert self.policy.waiting.keys() == self.waiting.keys()

    def _poll(self) -> Decision:
        slots = Slots(depth=self.depth, in_flight=len(self.in_flight))
        decision = self.policy.poll(self.now, slots)
        for given_up in decision.shed:
            assert self.name not in NEVER_SHED
            self._settle(given_up.item)
        if decision.release is not None:
            assert decision.wake_at == self.now
            assert decision.reason is decision.release.reason
            self._check(decision.release, slots)
        elif self.waiting:
            assert decision.wake_at > self.now, "a timer that fires at once for ever"
            assert decision.reason in (HoldReason.BUSY, HoldReason.GATHERING)
        else:
            assert (decision.wake_at, decision.reason) == (NEVER, HoldReason.EMPTY)
        return decision

    def _check(self, batch: Batch, slots: Slots) -> None:
        assert slots.in_flight < slots.depth, "released to a server that can take nothing"
        assert batch.id > self.last_batch, "an identifier repeats"
        assert 1 <= len(batch.items) <= self.settings.max_batch_size
        assert len({item.key for item in batch.items}) == 1
        assert list(batch.items) == sorted(batch.items, key=lambda item: item.id)
        lengths = [item.length for item in batch.items]
        if self.name == "tei, padded":
            assert len(lengths) * max(lengths) <= BUDGET
        if self.name == "tei, packed":
            assert sum(lengths) <= BUDGET
        if self.name in HEED_DEADLINES:
            assert all(self.now < item.deadline for item in batch.items)
        for item in batch.items:
            self._settle(item)
        self.in_flight[batch.id] = batch
        self.last_batch = batch.id
        self.policy.observe(HandedOver(batch=batch.id), self.now)

    def _settle(self, item: Item) -> None:
        assert self.waiting.pop(item.id) is item, "settled twice or never offered"
        assert item.id not in self.gone
        self.gone.add(item.id)

    def _end(self, batch: BatchId, took: float | None) -> None:
        del self.in_flight[batch]
        self.policy.observe(Finished(batch=batch, compute_seconds=took), self.now)


TestRivals = RivalMachine.TestCase
