"""Every rival through any sequence of events: nothing lost, nothing twice, no cap exceeded."""

from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.batching.decisions import Batch, MemoryCap, Slots
from batchedmodel_scheduling.queue.items import NEVER, ItemId, Priority, Shed
from rival_policies.bucket_window import BucketWindow
from rival_policies.clockwork import Clockwork
from rival_policies.cork import Cork, Line
from rival_policies.nexus import Nexus
from rival_policies.receding import Receding
from rival_policies.rival import Rival
from rival_policies.tei import Tei
from rival_policies.triton import Triton
from support.policy_driver import PolicyDriver, durations
from support.strategies import batch_settings

LIMIT = 0.05
BUDGET = 80


def _seconds(lengths: Sequence[int]) -> float:
    return 0.004 + 0.0001 * len(lengths) * max(lengths)


RIVALS: dict[str, Callable[[BatchSettings], Rival]] = {
    "window": BucketWindow,
    "window, dropping": lambda s: BucketWindow(s, drop_expired=True),
    "triton": lambda s: Triton(s, preferred=(2, 4)),
    "triton, rejecting": lambda s: Triton(s, reject_expired=True),
    "cork": lambda s: Cork(s, limit=LIMIT),
    "cork, exact": lambda s: Cork(s, limit=LIMIT, known=Line(per_row=0.001, fixed=0.004)),
    "nexus": lambda s: Nexus(s, _seconds, target=LIMIT, length=20),
    "clockwork": lambda s: Clockwork(s, _seconds),
    "planner": lambda s: Receding(s, _seconds, target=LIMIT, worth=float),
    "planner, packed": lambda s: Receding(s, _seconds, target=LIMIT, worth=float, padded=False),
    "tei, padded": lambda s: Tei(s, budget=BUDGET),
    "tei, packed": lambda s: Tei(s, budget=BUDGET, padded=False),
    "tei, dropping": lambda s: Tei(s, budget=BUDGET, drop_expired=True),
}
HEED_DEADLINES = {
    "window, dropping", "triton, rejecting", "nexus", "clockwork", "planner", "planner, packed",
    "tei, dropping",
}  # fmt: skip
NEVER_SHED = {"window", "triton", "tei, padded", "tei, packed"}


class RivalMachine(PolicyDriver):
    """Drives a rival as the simulator would: a batch is handed over as soon as it is released."""

    policy: Rival

    @initialize(name=st.sampled_from(sorted(RIVALS)), settings=batch_settings())
    def begin(self, name: str, settings: BatchSettings) -> None:
        self._begin(RIVALS[name](settings), settings, depth=1)
        self.name = name

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
            self._arrive(key, length, due_in=patience, deadline_in=2 * patience, priority=priority)

    @rule()
    def the_timer_rings_on_time(self) -> None:
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
        self.wake_at = None

    def _held(self) -> Iterable[ItemId]:
        return self.policy.waiting

    def _drain(self) -> None:
        self.depth = 1
        for _ in range(3 * len(self.waiting) + 1):
            self._end_all(0.001)
            decision = self._poll()
            if decision.release is None and decision.wake_at < NEVER:
                self.now = decision.wake_at

    def _check_shed(self, shed: Shed) -> None:
        assert self.name not in NEVER_SHED

    def _check_release(self, batch: Batch, slots: Slots) -> None:
        assert list(batch.items) == sorted(batch.items, key=lambda item: item.id)
        lengths = [item.length for item in batch.items]
        if self.name == "tei, padded":
            assert len(lengths) * max(lengths) <= BUDGET
        if self.name == "tei, packed":
            assert sum(lengths) <= BUDGET
        if self.name in HEED_DEADLINES:
            assert all(self.now < item.deadline for item in batch.items)

    def _release(self, batch: Batch, slots: Slots) -> None:
        super()._release(batch, slots)
        self._hand_over(batch.id)


TestRivals = pytest.mark.slow(RivalMachine.TestCase)
