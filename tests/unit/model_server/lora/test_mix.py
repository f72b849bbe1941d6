"""Both ways cover the tokens that have an adapter, each once, and no other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_model_server.lora.layers import (
    PADDING_PER_RUN,
    PADDING_PER_RUN_IN_HALVES,
    Groups,
    chosen,
    groups_of,
    of_rows,
    of_step,
    runs_of,
)

MIXED = st.lists(st.integers(0, 4), min_size=1, max_size=30).filter(any)


@given(MIXED)
def test_runs_and_groups_hold_each_token_with_an_adapter_once(drawn: list[int]) -> None:
    slots = np.array(drawn)
    by_runs = np.zeros(len(slots), int)
    for run in runs_of(slots):
        by_runs[run.begin : run.end] += run.slot
    assert by_runs.tolist() == drawn
    groups, by_groups = groups_of(slots), np.zeros(len(slots), int)
    for slot, places, real in zip(groups.slots, groups.places, groups.real, strict=True):
        by_groups[places[real]] += slot
    assert by_groups.tolist() == drawn


@pytest.mark.parametrize(
    ("slots", "gathers", "gathers_halves"),
    [
        ([1] * 50, False, False),
        ([1, 2, 3], False, False),
        ([1, 2, 3, 4] * 8, True, True),
        (np.repeat([1, 2, 3, 4] * 6, 30).tolist(), True, True),
        # A part of a prompt among texts that go on.
        ([*range(1, 16), *[16] * 50], False, True),
        ([*range(1, 16), *[16] * 500], False, False),
    ],
)
def test_one_long_run_is_computed_in_place_and_many_short_ones_are_gathered(
    slots: list[int], *, gathers: bool, gathers_halves: bool
) -> None:
    by = [chosen(np.array(slots), each) for each in (PADDING_PER_RUN, PADDING_PER_RUN_IN_HALVES)]
    assert [isinstance(one, Groups) for one in by] == [gathers, gathers_halves]


def test_tokens_of_rows_have_the_slots_of_their_rows_however_they_lie() -> None:
    rows, lengths = np.array([2, 0]), np.array([1, 2])
    found = of_rows(rows, lengths, packed=True)
    padded = {(2,): [2, 0], (2, 2): [2, 2, 0, 0]}
    assert {shape: slots.tolist() for shape, slots in found.items()} == {
        **padded,
        (1, 3): [2, 0, 0],
    }
    found = of_rows(rows, lengths, packed=False)
    assert {shape: slots.tolist() for shape, slots in found.items()} == padded


def test_tokens_of_a_step_have_the_slots_of_their_parts() -> None:
    found = of_step(np.array([3, 0, 1]), np.array([0, 1, 4]), np.array([0, 4]))
    assert found[1, 5].tolist() == [3, 0, 1, 1, 1]
    assert found[1, 2].tolist() == [3, 1]
