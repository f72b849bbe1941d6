"""The memory of keys and values: pages of a fixed number of tokens, for each layer its own.

Layers may differ in the number and size of their heads. How a page lies in memory is the device's
choice: a CPU computes on the tokens of one head at a time, kernels of GPUs on tokens with all their
heads.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple


class LayerShape(NamedTuple):
    """What one layer keeps of a token."""

    heads: int
    key_size: int
    """Numbers of a head."""
    value_size: int

    @property
    def numbers(self) -> int:
        """Of a token."""
        return self.heads * (self.key_size + self.value_size)


class PagedCache:
    """Pages of keys and values on one device."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        blocks: int,
        block_tokens: int,
        dtype: Any,
        device: str,
        heads_first: bool,
    ) -> None:
        import torch

        def pages(heads: int, size: int) -> Any:
            inner = (heads, block_tokens) if heads_first else (block_tokens, heads)
            # Zeros that nobody touches take no memory of a CPU. What is no number, as memory may
            # hold at first, would reach everybody who shares a page's unused end.
            return torch.zeros(blocks, *inner, size, dtype=dtype, device=device)

        self.blocks: Final = blocks
        self.block_tokens: Final = block_tokens
        self.shapes: Final = tuple(shapes)
        self.device: Final = device
        self.keys: Final = [pages(one.heads, one.key_size) for one in shapes]
        """For each layer blocks x heads x tokens x size, or blocks x tokens x heads x size."""
        self.values: Final = [pages(one.heads, one.value_size) for one in shapes]

    def copy(self, source: int, target: int) -> None:
        """Make a block's content another's as well."""
        for tensor in (*self.keys, *self.values):
            tensor[target].copy_(tensor[source])


def block_bytes(shapes: Sequence[LayerShape], block_tokens: int, number_bytes: int) -> int:
    """What a block takes in all layers together."""
    return block_tokens * number_bytes * sum(one.numbers for one in shapes)
