"""Where tokens of a step lie: each page that one sees is computed for it; no other page counts."""

from __future__ import annotations  # array.array takes no type argument at run time

import random
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.generator import Draw, StepPart
from batchedmodel_model_server.generation.step_layout import layout_of, pages_in_place

PAGE = 4


def part(ids: list[int], start: int, blocks: list[int], *, draws: bool = True) -> StepPart:
    drawn = [Draw(Sampling(), 0, array("i", ids), 0)] if draws else []
    return StepPart(array("i", ids), start, blocks, drawn)


def test_single_tokens_lie_in_front_and_every_token_has_its_slot() -> None:
    several = part([5, 6, 7], 3, [8, 2])
    singles = [part([9], 4, [1, 3]), part([4], 0, [7]), part([3], 1, [6]), part([2], 2, [5])]
    layout = layout_of([several, *singles], PAGE)
    assert layout.order == (1, 2, 3, 4, 0)
    assert layout.singles == 4
    assert layout.ids.tolist() == [9, 4, 3, 2, 5, 6, 7]
    assert layout.positions.tolist() == [4, 0, 1, 2, 3, 4, 5]
    assert layout.slots.tolist() == [12, 28, 25, 22, 35, 8, 9]
    assert layout.ends.tolist() == [0, 1, 2, 3, 6]
    [span] = layout.spans
    assert (span.begin, span.tokens, span.start, span.blocks.tolist()) == (4, 3, 3, [8, 2])


def test_few_single_tokens_are_spans_of_their_own() -> None:
    layout = layout_of([part([5, 6], 3, [8, 2]), part([9], 4, [1, 3])], PAGE)
    assert (layout.order, layout.singles) == ((1, 0), 0)
    assert [(span.begin, span.tokens, span.start) for span in layout.spans] == [
        (0, 1, 4),
        (1, 2, 3),
    ]
    assert [span.blocks.tolist() for span in layout.spans] == [[1, 3], [8, 2]]


def test_a_page_that_is_begun_and_not_filled_is_named() -> None:
    parts = [
        part([1], 4, [9, 3]),  # the first slot of page 3
        part([1], 5, [9, 4]),  # the second
        part([1] * 4, 0, [5]),  # a whole page
        part([1] * 3, 3, [6, 7]),  # the end of one and the beginning of the next
    ]
    assert sorted(layout_of(parts, PAGE).begun.tolist()) == [3, 7]


@pytest.mark.parametrize("window", [None, 1, 3, 4, 9])
@given(seed=st.integers(0, 2**32))
def test_each_token_sees_its_pages_in_order_and_nothing_hidden(
    window: int | None, seed: int
) -> None:
    rng = random.Random(seed)
    pages = rng.sample(range(200), 90)
    parts: list[StepPart] = []
    for _ in range(rng.randint(4, 9)):
        length = rng.randint(1, 20)
        blocks = [pages.pop() for _ in range(-(-length // PAGE))]
        if parts and rng.random() < 0.5:
            # Choices of one prompt share its first pages.
            shared = list(rng.choice(parts).blocks)[: len(blocks) - 1]
            blocks[: len(shared)] = shared
        parts.append(part([1], length - 1, blocks))
    layout = layout_of(parts, PAGE)
    found = pages_in_place(layout, PAGE, window)
    of_entry = {}
    for run in found.runs:
        for at in range(run.pages):
            of_entry[run.entry + at] = run.page + at
    assert sorted(of_entry) == list(range(len(found.owners)))
    for row, one in enumerate(parts):
        length = one.start + 1
        least = 0 if window is None else max(0, length - window)
        entries = [entry for entry in found.table[row].tolist() if entry < len(found.owners)]
        assert [of_entry[entry] for entry in entries] == list(
            one.blocks[least // PAGE : -(-length // PAGE)]
        )
        assert (found.owners[entries] == row).all()
        seen = np.flatnonzero(~found.hidden[entries].ravel()) + least // PAGE * PAGE
        assert seen.tolist() == list(range(least, length))
    nobody = found.owners == len(parts)
    assert found.hidden[nobody].all()
    assert (~nobody).sum() == (found.table < len(found.owners)).sum()
