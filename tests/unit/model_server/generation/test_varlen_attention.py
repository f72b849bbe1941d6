"""Steps on a GPU, by a kernel that checks what torch's does and computes on a CPU."""

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from batchedmodel_model_server.api.generator import StepPart
from batchedmodel_model_server.generation.paged_attention import (
    LayerShape,
    PagedCache,
    PagedStep,
    Terms,
)
from batchedmodel_model_server.generation.step_layout import layout_of
from batchedmodel_model_server.generation.varlen_attention import VarlenStep

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PAGE = 256
HEADS, KEY_HEADS, SIZE = 4, 2, 8
STEPS: Sequence[Sequence[int]] = ([300, 5, 1], [1, 1, 1], [20, 1, 260], [1, 1, 1])
"""Tokens of each text in each step."""


class FlashAttention2:
    """`varlen_attn` of stock torch 2.13: what it refuses, and when it packs grouped queries."""

    def __init__(self) -> None:
        self.packs: list[bool] = []
        self.by_table: list[bool] = []

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        ends: Any,
        key_ends: Any,
        most: int,
        _: int,
        **how: Any,
    ) -> Any:
        table: Any = how.get("block_table")
        used: Any = how.get("seqused_k")
        if (ends is None) != (key_ends is None):
            raise RuntimeError("both cumulative_sequence_length must be set or both not set")
        if key_ends.shape != ends.shape or (table is not None and key.shape[1] % PAGE):
            raise RuntimeError("wrong shape of cu_seqlens_k, or block size not divisible by 256")
        left, right = how.get("window_size", (-1, -1))
        self.packs.append(most == 1 and query.shape[1] > key.shape[-2] and left < 0 and right < 0)
        self.by_table.append(table is not None)
        pieces = []
        for n, (begin, end) in enumerate(pairwise(ends.tolist())):
            first, last = key_ends[n : n + 2].tolist()
            seen = [one[first:last] for one in (key, value)]
            if table is not None:
                seen = [one[table[n]].flatten(0, 1)[: used[n]] for one in (key, value)]
            length = len(seen[0])
            distance = torch.arange(length)[length - (end - begin) :, None] - torch.arange(length)
            mask = (distance >= -(right if right >= 0 else length)) & (
                distance <= (left if left >= 0 else length)
            )
            q, k, v = (one.transpose(0, 1)[None] for one in (query[begin:end], *seen))
            output = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, mask, scale=how.get("scale"), enable_gqa=True
            )
            pieces.append(output[0].transpose(0, 1))
        return torch.cat(pieces)


def cache_of(*, heads_first: bool, page: int = PAGE) -> PagedCache:
    return PagedCache(
        [LayerShape(KEY_HEADS, SIZE, SIZE)],
        blocks=8,
        block_tokens=page,
        dtype=torch.float32,
        device="cpu",
        heads_first=heads_first,
    )


@pytest.mark.parametrize("window", [None, 40])
def test_steps_of_a_gpu_are_those_of_a_cpu(window: int | None) -> None:
    torch.manual_seed(0)
    kernel, terms = FlashAttention2(), Terms(0.3, window, None)
    ours, theirs = cache_of(heads_first=False), cache_of(heads_first=True)
    starts, blocks = [0, 0, 0], [[6, 1], [3], [0, 7]]
    for counts in STEPS:
        parts = [
            StepPart(array("i", [0] * count), start, table, [])
            for count, start, table in zip(counts, starts, blocks, strict=True)
        ]
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
        layout = layout_of(parts, PAGE)
        query = torch.randn(1, HEADS, sum(counts), SIZE)
        key, value = torch.randn(2, 1, KEY_HEADS, sum(counts), SIZE).unbind(0)
        step = VarlenStep(ours, layout, kernel)
        found = step.attend(query, key, value, terms)
        expected = PagedStep(theirs, layout).attend(query, key, value, terms)
        assert torch.allclose(found, expected, atol=1e-5)
    assert all(kernel.by_table)
    # Grouped queries of single tokens were never packed: their window ended at the own token.
    assert kernel.packs == [window is None and set(counts) == {1} for counts in STEPS]
