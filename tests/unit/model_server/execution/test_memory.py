"""The first bound on a batch, from what smaller ones took."""

from dataclasses import dataclass
from functools import partial

import pytest

from batchedmodel_model_server.api.handler import Batch
from batchedmodel_model_server.execution.memory import MemoryBudget, MemoryCap, affordable, meter_of
from batchedmodel_model_server.profiling.warmup import WarmUp
from support.model_server_handlers import Clock, Timed, loaded
from support.warm_ups import complete, whole


@dataclass
class Meter:
    """A device on which a batch takes `once` and as many bytes again for each of its cost."""

    bytes_free: int | None
    once: int = 100
    per_cost: int = 10
    worst: int = 0

    def begin(self) -> None:
        self.worst = 0

    def taken(self) -> int:
        return self.worst

    def room(self) -> int | None:
        return self.bytes_free

    def run(self, cost: int) -> None:
        self.worst = max(self.worst, self.once + self.per_cost * cost)


def budget_after(meter: Meter, *costs: int) -> MemoryBudget:
    budget = MemoryBudget(meter)
    for cost in costs:
        budget.metered(cost, partial(meter.run, cost))
    return budget


def test_what_one_batch_takes_says_nothing_of_a_larger_one() -> None:
    assert budget_after(Meter(10_000)).cost is None
    assert budget_after(Meter(10_000), 16).cost is None


def test_a_batch_may_fill_four_fifths_of_the_room() -> None:
    # 8000 bytes, of which 100 are taken once, and 10 for each of the cost.
    assert budget_after(Meter(10_000), 16, 32).cost == 790


def test_what_is_taken_once_is_not_counted_for_each_batch() -> None:
    assert budget_after(Meter(10_000, once=5000), 16, 32).cost == 300


def test_a_device_without_a_known_bound_has_no_budget() -> None:
    assert budget_after(Meter(None), 16, 32).cost is None


def test_batches_that_take_no_more_than_half_as_large_ones_speak_against_none() -> None:
    assert budget_after(Meter(10_000, per_cost=0), 16, 32, 64).cost is None


def test_what_has_run_is_never_called_too_large() -> None:
    assert budget_after(Meter(200), 16, 32).cost == 32


@pytest.mark.parametrize(
    ("seen", "cost"),
    [
        ([], None),
        ([(10, 100)], None),
        # Two that are nearly alike say nothing of the slope: noise would.
        ([(10, 100), (12, 200)], None),
        ([(10, 100), (20, 200)], 100),
        ([(20, 200), (10, 100)], 100),
        ([(1, 90), (10, 100), (20, 200)], 100),
        ([(10, 200), (20, 200)], None),
    ],
)
def test_the_slope_goes_on_up_to_the_room(seen: list[tuple[int, int]], cost: int | None) -> None:
    assert affordable(1000, seen) == cost


class Weighed(Timed):
    """Takes memory of a device that a meter measures."""

    meter: Meter

    def forward(self, batch: Batch) -> object:  # type: ignore[override]
        self.meter.run(batch.array("x").size)
        return super().forward(batch)


def weighed(meter: Meter) -> Weighed:
    handler = Weighed(Clock(), 1e-4)
    handler.meter = meter
    return handler


def test_the_warm_up_leaves_out_what_would_not_fit_and_bounds_the_batches() -> None:
    cap, meter = MemoryCap(), Meter(10_000)
    handler = weighed(meter)
    profile = whole(loaded(handler), 4, cap, handler.clock.read, budget=MemoryBudget(meter))
    assert max(rows * length for rows, length in handler.seen) == 756
    assert cap.cost == profile.max_cost == 790


def test_where_everything_fits_nothing_is_bounded() -> None:
    cap, meter = MemoryCap(), Meter(10**9)
    handler = weighed(meter)
    profile = whole(loaded(handler), 4, cap, handler.clock.read, budget=MemoryBudget(meter))
    assert len(profile.points) == 16
    assert cap.cost is profile.max_cost is None


def test_what_callers_batches_took_between_is_not_taken_for_that_of_smaller_ones() -> None:
    """A burst before the first idle moment: a small shape seemed to take all of its memory, and the
    bound that followed was kept for good."""
    cap, meter = MemoryCap(), Meter(60_000)
    handler = weighed(meter)
    budget = MemoryBudget(meter)
    warm_up = WarmUp(loaded(handler), 4, cap, handler.clock.read, budget=budget)
    warm_up.begin()
    meter.run(4000)
    complete(warm_up)
    profile = warm_up.profile()
    assert len(profile.points) == 16
    assert cap.cost is profile.max_cost is None


@dataclass
class Workspace(Meter):
    """On which a library takes memory once, when the first large batch comes."""

    def run(self, cost: int) -> None:
        self.once = 20_000 if cost >= 1000 else self.once
        super().run(cost)


def test_a_bound_that_followed_from_few_shapes_goes_once_everything_has_fitted() -> None:
    """What a library took once looked like the price of size, and bounded batches for good."""
    cap, meter = MemoryCap(), Workspace(80_000)
    handler = weighed(meter)
    budget = MemoryBudget(meter)
    warm_up = WarmUp(loaded(handler), 4, cap, handler.clock.read, budget=budget)
    warm_up.begin()
    assert warm_up.profile().max_cost is not None
    complete(warm_up)
    assert len(warm_up.profile().points) == 16
    assert cap.cost is warm_up.profile().max_cost is None


def test_what_is_measured_anew_goes_beyond_a_bound_that_followed_from_less() -> None:
    """A partial profile of another pace is measured anew, and its bound stayed."""
    cap, meter = MemoryCap(), Meter(10**9)
    cap.begin_with(1100)
    handler = weighed(meter)
    profile = whole(loaded(handler), 4, cap, handler.clock.read, budget=MemoryBudget(meter))
    assert len(profile.points) == 16
    assert cap.cost is profile.max_cost is None


def test_the_memory_of_this_process_is_seen_to_be_taken() -> None:
    meter = meter_of("host")
    meter.begin()
    before = meter.taken()
    held = b"x" * (64 * 2**20)
    assert meter.taken() - before > len(held) // 2


def test_the_room_is_what_the_least_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = meter_of("host")
    meter.begin()
    limits = "batchedmodel_model_server.execution.memory.limits"
    monkeypatch.setattr(limits, lambda _: ("max",))
    assert meter.room() is None
    monkeypatch.setattr(limits, lambda _: ())
    assert meter.room() is None
    monkeypatch.setattr(limits, lambda _: ("1",))
    assert meter.room() == 0
    monkeypatch.setattr(limits, lambda _: ("max", str(2**50), str(2**60)))
    room = meter.room()
    assert room is not None
    assert 2**49 < room < 2**50


def test_what_batches_before_have_left_free_in_the_process_is_counted_again() -> None:
    blocks, size = 2_000, 60_000  # bytes: so small ones stay with the C library once they are free
    pinned = []
    before = []
    for number in range(blocks):
        before.append(bytearray(size))
        if number % 50 == 49:
            pinned.append(bytearray(size))
    del before
    meter = meter_of("cpu")
    meter.begin()
    again = [bytearray(size) for _ in range(blocks)]
    assert meter.taken() > 0.7 * len(again) * size
    del pinned
