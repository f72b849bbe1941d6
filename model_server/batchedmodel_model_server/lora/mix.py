"""Which tokens of a pass use which adapter, and the cheaper of two ways to compute them. Pure.

In place, each run of neighbours with one adapter is two small products. Gathered, the tokens of
each adapter are brought together, filled up to equal counts, and computed by two batched products.
Neither serves alone: on two cores 64 texts of 16 adapters take three times as long in place, long
rows of unequal lengths up to eight times as long gathered, and a lone text twice as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]
Shape = tuple[int, ...]
PADDING_PER_RUN: Final = 16
PADDING_PER_RUN_IN_HALVES: Final = 64
"""A small product of halves costs a CPU three times as much as one of float32, tokens no more."""
_MIN_GATHERED_RUNS: Final = 4
"""As few are computed in place in the time that gathering takes."""


class Run(NamedTuple):
    """Neighbouring tokens with one adapter."""

    slot: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Tokens by adapter, filled up to equal counts."""

    slots: Slots
    """groups."""
    places: Slots
    """groups x longest: a token of the group; what fills up repeats its first."""
    real: NDArray[np.bool_]
    """groups x longest: False for what fills up."""


def runs_of(slots: Slots) -> tuple[Run, ...]:
    """The runs of tokens that have an adapter. `slots`: of each token, 0 for none."""
    cuts = np.flatnonzero(np.diff(slots)) + 1
    begins = np.concatenate([[0], cuts]).astype(np.int64)
    ends = np.concatenate([cuts, [len(slots)]]).astype(np.int64)
    of_run = slots[begins]
    return tuple(
        Run(slot, begin, end)
        for slot, begin, end in zip(of_run.tolist(), begins.tolist(), ends.tolist(), strict=True)
        if slot
    )


def groups_of(slots: Slots) -> Groups:
    """The same tokens, by adapter."""
    tokens = np.flatnonzero(slots)
    order = tokens[np.argsort(slots[tokens], kind="stable")]
    found, begins, counts = np.unique(slots[order], return_index=True, return_counts=True)
    nth = np.arange(counts.max())
    real = nth < counts[:, None]
    places = order[begins[:, None] + np.where(real, nth, 0)]
    return Groups(slots=found, places=places, real=real)


def chosen(slots: Slots, padding_per_run: int) -> tuple[Run, ...] | Groups:
    """The cheaper way for tokens of which at least one has an adapter.

    `padding_per_run`: how many tokens that fill up cost no more than a run's two products.
    """
    runs, counts = runs_of(slots), np.bincount(slots)[1:]
    padding = int(np.count_nonzero(counts) * counts.max() - counts.sum())
    if len(runs) < _MIN_GATHERED_RUNS or padding > padding_per_run * len(runs):
        return runs
    return groups_of(slots)


def of_rows(rows: Slots, lengths: Slots, *, packed: bool) -> Mapping[Shape, Slots]:
    """Slots by the leading sizes of what modules are given in a batch of rows.

    Padded: rows x longest; packed, where the batch can be: 1 x all tokens; heads: rows.
    """
    longest = int(lengths.max())
    found = {(len(rows), longest): np.repeat(rows, longest), (len(rows),): rows}
    if not packed:
        # What has these sizes is something else, such as a table that all rows share.
        return found
    return {(1, int(lengths.sum())): np.repeat(rows, lengths)} | found


def of_step(parts: Slots, ends: Slots, wanted: Slots) -> Mapping[Shape, Slots]:
    """The same in a step of generation: 1 x tokens, and 1 x tokens whose scores are wanted.

    `ends`: the place of each part's last token; `wanted`: places of tokens.
    """
    tokens = np.repeat(parts, np.diff(ends, prepend=-1))
    return {(1, len(wanted)): tokens[wanted], (1, len(tokens)): tokens}
