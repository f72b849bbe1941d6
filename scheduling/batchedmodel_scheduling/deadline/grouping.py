"""Which neighbouring length classes share batches: least total time of the device.

Merging classes pads more and launches less; dynamic programming over the contiguous merges finds
the least sum. The idea is TurboTransformers' (PPoPP 2021), applied to classes instead of items.
Pure; called by the planner for each compatibility key.
"""

from collections.abc import Sequence
from typing import NamedTuple


class LengthClass(NamedTuple):
    """What is known of the items of one lane."""

    items: int
    cap: int
    """How many share a batch if the longest of this class is among them."""
    table: list[float]
    """Seconds by number of items of which the longest is of this class, at least to `cap`."""


def merged(classes: Sequence[LengthClass]) -> list[slice]:
    """Runs of classes, shortest items first, that share batches; together they hold all."""
    least = [0.0]
    cut_at = [0]
    for end, (_, cap, table) in enumerate(classes, 1):
        whole = table[cap]
        items = 0
        best = float("inf")
        best_cut = end - 1
        for begin in range(end - 1, -1, -1):
            items += classes[begin].items
            full, rest = divmod(items, cap)
            together = full * whole + table[rest]
            if together >= best:
                break  # with more classes it only takes longer
            seconds = least[begin] + together
            if seconds < best:
                best, best_cut = seconds, begin
        least.append(best)
        cut_at.append(best_cut)
    runs: list[slice] = []
    end = len(classes)
    while end:
        runs.append(slice(cut_at[end], end))
        end = cut_at[end]
    return runs[::-1]
