"""Both ways cover the tokens that have an adapter, each once, and no other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_model_server.lora.mix import (
    Costs,
    Groups,
    WayCost,
    chosen,
    groups_of,
    of_rows,
    of_step,
    runs_of,
)

COSTS = Costs(
    in_place=WayCost(base=0.0, piece=10.0, token=1.0),
    gathered=WayCost(base=20.0, piece=1.0, token=2.0),
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


def test_one_long_run_is_computed_in_place_and_many_short_ones_are_gathered() -> None:
    assert not isinstance(chosen(np.ones(50, int), COSTS), Groups)
    assert isinstance(chosen(np.array([1, 2, 3, 4] * 8), COSTS), Groups)


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
