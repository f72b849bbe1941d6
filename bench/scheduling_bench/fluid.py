"""A ceiling for mixed lengths: the rate that a device serves in an endless even cycle.

Traffic is a fluid, and the device serves groups of neighbouring length buckets in turn. An item
that just misses its group waits for a whole cycle and then for its own batch. No random traffic is
that even, so in practice no policy goes beyond. It is no strict bound for every trace.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from typing import Final

from batchedmodel_contract.inference.description import CostRule
from scheduling_bench.affine import Affine

_MOST_BUCKETS: Final = 16  # every grouping is tried: 2 to the number of edges between buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The best cycle found."""

    rate: float
    """Items per second; 0 if no item could be on time."""
    seconds: float
    upper_edges: tuple[int, ...]
    """The longest length of each group, ascending."""


def highest_fluid_rate(
    curve: Affine,
    lengths: Sequence[int],
    edges: Sequence[int],
    target_seconds: float,
    *,
    max_rows: int | None = None,
) -> Cycle:
    """The best cycle over all groupings for items of which `lengths` is a fair sample.

    Edges are the upper bounds of the buckets, ascending; a longer item counts as the last edge.
    Padded groups pay for their upper edge. Packed and fixed-size ones gain nothing from a second
    group, so there is one. Raises ValueError for more than 16 edges.
    """
    if len(edges) > _MOST_BUCKETS:
        raise ValueError(f"at most {_MOST_BUCKETS} buckets, not {len(edges)}")
    if curve.rule is not CostRule.PADDED:
        tokens = 1.0 if curve.rule is CostRule.ROWS else sum(lengths) / len(lengths)
        shares, marginals = [1.0], [curve.per_row + curve.per_token * tokens]
        return _cycle(curve.fixed, shares, marginals, target_seconds, max_rows, (edges[-1],))
    counts = [0] * len(edges)
    for length in lengths:
        counts[min(bisect_left(edges, length), len(edges) - 1)] += 1
    before = [0, *accumulate(counts)]
    best = Cycle(rate=0.0, seconds=0.0, upper_edges=())
    for bounds in _groupings(len(edges)):
        groups = [(a, b) for a, b in pairwise(bounds) if before[b] > before[a]]
        shares = [(before[b] - before[a]) / len(lengths) for a, b in groups]
        uppers = tuple(edges[b - 1] for _, b in groups)
        marginals = [curve.per_row + curve.per_token * upper for upper in uppers]
        found = _cycle(curve.fixed, shares, marginals, target_seconds, max_rows, uppers)
        best = max(best, found, key=lambda cycle: cycle.rate)
    return best


def _groupings(buckets: int) -> Iterator[list[int]]:
    """Every way to cut the buckets into neighbours, as bounds that begin with 0."""
    for cuts in product((False, True), repeat=buckets - 1):
        yield [0, *(n for n, cut in enumerate(cuts, start=1) if cut), buckets]


def _cycle(
    fixed: float,
    shares: Sequence[float],
    marginals: Sequence[float],
    target: float,
    max_rows: int | None,
    upper_edges: tuple[int, ...],
) -> Cycle:
    """The highest rate x of one grouping, in closed form.

    One cycle of C seconds launches every group and serves x C items, C = launches + x C work, and
    for each group C + fixed + x C work_g <= target.
    """
    launches = fixed * len(shares)
    works = [share * marginal for share, marginal in zip(shares, marginals, strict=True)]
    spare = target - fixed
    if spare <= launches:
        return Cycle(rate=0.0, seconds=0.0, upper_edges=upper_edges)
    rate = (spare - launches) / (spare * sum(works) + launches * max(works))
    if max_rows is not None:
        rate = min(rate, max_rows / (launches * max(shares) + max_rows * sum(works)))
    seconds = launches / (1 - rate * sum(works))
    return Cycle(rate=rate, seconds=seconds, upper_edges=upper_edges)
