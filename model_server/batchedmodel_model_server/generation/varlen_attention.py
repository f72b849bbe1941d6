"""Attention of one step over a paged cache, on a GPU.

One kernel of torch's takes all sequences of a step, those that go on by a token and parts of
prompts alike. It finds keys and values by a table of pages; a model on a backend that does not is
refused by its trial at load. Unproven: no GPU has run it. It follows torch's documentation of
`varlen_attn`, and what FlashAttention 2 behind it checks: it wants the ends of keys beside a table
of pages, and packs the queries that share a head of keys only for single tokens without a window,
causal or other.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from batchedmodel_model_server.generation.paged_attention import PagedCache, Terms
from batchedmodel_model_server.generation.step_layout import StepLayout

Kernel = Callable[..., Any]


class VarlenStep:
    """The attention of a step; its cache has the tokens in front of the heads."""

    def __init__(self, cache: PagedCache, layout: StepLayout, kernel: Kernel) -> None:
        import torch

        def on_device(numbers: Any, dtype: Any = np.int32) -> Any:
            return torch.from_numpy(np.asarray(numbers, dtype)).to(cache.device)

        self._cache: Final = cache
        self._kernel: Final = kernel
        self._layer = 0
        page = cache.block_tokens
        ends = [0, *(layout.ends + 1).tolist()]
        lengths = (layout.positions[layout.ends] + 1).tolist()
        tables: list[Sequence[int]] = [*layout.blocks, *(list(one.blocks) for one in layout.spans)]
        self._slots: Final = on_device(layout.slots, np.int64)
        self._ends: Final = on_device(ends)
        self._key_ends: Final = on_device([0, *np.cumsum(lengths)])
        self._most: Final = (max(b - a for a, b in pairwise(ends)), max(lengths))
        counts = [-(-length // page) for length in lengths]
        table = np.zeros((len(tables), max(counts)), np.int32)
        for row, (blocks, count) in enumerate(zip(tables, counts, strict=True)):
            table[row, :count] = blocks[:count]
        self._table, self._lengths = on_device(table), on_device(lengths)

    def attend(self, query: Any, key: Any, value: Any, terms: Terms) -> Any:
        """1 x heads x tokens x size in, 1 x tokens x heads x size out."""
        if terms.softcap is not None:
            raise NotImplementedError("attention with a cap of its scores (softcap) on a GPU")
        keys, values = self._cache.keys[self._layer], self._cache.values[self._layer]
        self._layer += 1
        keys.flatten(0, 1).index_copy_(0, self._slots, key[0].transpose(0, 1))
        values.flatten(0, 1).index_copy_(0, self._slots, value[0].transpose(0, 1))
        how = {
            "scale": terms.scaling,
            # So many tokens to the left of the own one, and none to the right, where there are any.
            "window_size": (
                -1 if terms.window is None else terms.window - 1,
                -1 if self._most[0] == 1 and terms.window is None else 0,
            ),
            "enable_gqa": query.shape[1] != key.shape[1],
            "seqused_k": self._lengths,
            "block_table": self._table,
        }
        queries = query[0].transpose(0, 1)
        ends = self._ends, self._key_ends
        return self._kernel(queries, keys, values, *ends, *self._most, **how)[None]
