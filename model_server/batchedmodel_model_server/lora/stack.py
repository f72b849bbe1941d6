"""The matrices of all slots for one module, and the two ways to add them to its output."""

from typing import Any, Final

from batchedmodel_model_server.api.adapters import AdapterBounds, LowRank
from batchedmodel_model_server.lora.mix import Run, Slots


class Stack:
    """Zeros where a slot has nothing for this module."""

    def __init__(self, bounds: AdapterBounds, sizes: tuple[int, int], like: Any) -> None:
        """`sizes`: inputs and outputs of the module; `like`: its weight."""
        inputs, outputs = sizes
        self.a: Final = like.new_zeros(bounds.slots, inputs, bounds.max_rank)
        self.b: Final = like.new_zeros(bounds.slots, bounds.max_rank, outputs)
        self.ranks: Final[dict[int, int]] = {}
        """Of the slots that have something."""

    def put(self, slot: int, pair: LowRank) -> None:
        """Into a slot that is empty."""
        rank = int(pair.a.shape[1])
        self.a[slot - 1, :, :rank].copy_(pair.a)
        self.b[slot - 1, :rank].copy_(pair.b)
        self.ranks[slot] = rank

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        if self.ranks.pop(slot, None) is not None:
            self.a[slot - 1].zero_()
            self.b[slot - 1].zero_()


def in_place(stack: Stack, runs: tuple[Run, ...], given: Any, output: Any) -> None:
    """Add to the runs' rows of `output`. Both are tokens x the module's sizes."""
    for slot, begin, end in runs:
        rank = stack.ranks.get(slot)
        if rank is not None:
            inner = given[begin:end] @ stack.a[slot - 1, :, :rank]
            output[begin:end].addmm_(inner, stack.b[slot - 1, :rank])


def gathered(
    stack: Stack, index: Any, slots: Slots, places: Any, real: Any, given: Any, output: Any
) -> None:
    """Add to the groups' rows of `output`.

    `real`: which of the flat `places` fill nothing up; None where all are such. They are numbers
    and no mask, as how many a mask has is known to a GPU only, and the host would wait for it.
    """
    rank = max((stack.ranks.get(slot, 0) for slot in slots.tolist()), default=0)
    if not rank:
        return
    a, b = stack.a[:, :, :rank].index_select(0, index), stack.b[:, :rank].index_select(0, index)
    flat = places.view(-1)
    tokens = given.index_select(0, flat).view(*places.shape, -1)
    delta = ((tokens @ a) @ b).view(-1, output.shape[-1])
    if real is not None:
        flat, delta = flat.index_select(0, real), delta.index_select(0, real)
    output.index_add_(0, flat, delta)
