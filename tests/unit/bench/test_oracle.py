"""The clairvoyant optimum."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_cli.simulator.engine import Request
from batchedmodel_cli.simulator.workload import requests
from scheduling_bench.affine import Affine
from scheduling_bench.oracle import (
    Machine,
    least_dropped,
    machine,
    on_time_at_least,
)
from support.examples import examples

NEVER = 1 << 60


def arriving(times: Sequence[int], target: int) -> list[Request]:
    return [Request(at=at, length=1, due=at + target, deadline=at + target) for at in times]


def least_dropped_by_trying_everything(times: Sequence[int], target: int, device: Machine) -> int:
    """Over all sets of items, all partitions of each into batches and all orders of these."""
    count = len(times)
    ends = [0] + [NEVER] * (2**count - 1)
    for served in range(1, 2**count):
        batch = served
        while batch:
            members = [times[n] for n in range(count) if batch >> n & 1]
            if len(members) <= len(device.batch_times) and ends[served ^ batch] < NEVER:
                begin = max(ends[served ^ batch], max(members) + device.hand_off)
                end = begin + device.batch_times[len(members) - 1]
                if end <= min(members) + target:
                    ends[served] = min(ends[served], end)
            batch = (batch - 1) & served
    return count - max(served.bit_count() for served in range(2**count) if ends[served] < NEVER)


@settings(max_examples=examples(150))
@given(
    times=st.lists(st.integers(0, 40), min_size=1, max_size=8).map(sorted),
    target=st.integers(1, 25),
    batch_times=st.lists(st.integers(1, 15), min_size=1, max_size=8).map(sorted),
    hand_off=st.integers(0, 4),
)
def test_no_partition_into_batches_has_more_on_time(
    times: list[int], target: int, batch_times: list[int], hand_off: int
) -> None:
    device = Machine(batch_times=tuple(batch_times), hand_off=hand_off)
    expected = least_dropped_by_trying_everything(times, target, device)
    listed = arriving(times, target)
    assert least_dropped(listed, device) == expected
    for at_most in range(len(times) + 1):
        found = least_dropped(listed, device, at_most=at_most)
        assert found == (expected if expected <= at_most else None)


def test_a_drop_makes_room_for_the_others() -> None:
    device = Machine(batch_times=(6, 8, 9))
    # Alone the first would be in time, but then not all three that come after it.
    assert least_dropped(arriving([0, 4, 5, 5], 10), device) == 1


def test_the_hand_off_counts_from_the_last_member() -> None:
    listed = arriving([0, 3], 9)
    assert least_dropped(listed, Machine(batch_times=(6, 6), hand_off=0)) == 0
    assert least_dropped(listed, Machine(batch_times=(6, 6), hand_off=1)) == 1


def test_the_hand_off_of_a_batch_may_pass_while_another_runs() -> None:
    listed = arriving([0, 1], 12)
    assert least_dropped(listed, Machine(batch_times=(5,), hand_off=2)) == 0


def test_the_wanted_share_is_rounded_in_favour_of_the_target() -> None:
    # One of three is lost.
    listed = arriving([0, 0, 0], 10)
    device = Machine(batch_times=(5,))
    assert on_time_at_least(listed, 2 / 3, device)
    assert not on_time_at_least(listed, 0.67, device)
    assert on_time_at_least([], 0.99, device)


def test_many_drops_are_found_too() -> None:
    listed = arriving([0] * 200, 10)
    assert least_dropped(listed, Machine(batch_times=(5, 6, 7))) == 197


def test_a_machine_rounds_as_the_plant_does() -> None:
    found = machine(Affine(fixed=0.005, per_row=0.001), max_rows=3, hand_off_seconds=0.0005)
    assert found == Machine(batch_times=(6_000_000, 7_000_000, 8_000_000), hand_off=500_000)


def test_mixed_lengths_and_mixed_targets_are_refused() -> None:
    device = Machine(batch_times=(5,))
    with pytest.raises(ValueError, match="equal lengths and equal targets"):
        least_dropped(requests([0, 1], [1, 2], 0.05), device)
    with pytest.raises(ValueError, match="equal lengths and equal targets"):
        least_dropped([*requests([0], [1], 0.05), *requests([1], [1], 0.06)], device)


def test_requests_must_ascend() -> None:
    with pytest.raises(ValueError, match="ascend in time"):
        least_dropped(arriving([5, 4], 10), Machine(batch_times=(5,)))
