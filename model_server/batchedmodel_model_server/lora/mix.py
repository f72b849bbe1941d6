"""Which tokens of a pass use which adapter, and the cheaper of two ways to compute them. Pure.

In place, each run of neighbours with one adapter is two small products. Gathered, the tokens of
each adapter are brought together, filled up to equal counts, and computed by two batched products.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]
Shape = tuple[int, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WayCost:
    """Seconds that one way takes on this device."""

    base: float
    piece: float
    """Of each run or group."""
    token: float

    def seconds(self, pieces: int, tokens: int) -> float:
        """For so many pieces and tokens in all."""
        return self.base + self.piece * pieces + self.token * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What both ways cost, as measured."""

    in_place: WayCost
    gathered: WayCost


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


def chosen(slots: Slots, costs: Costs) -> tuple[Run, ...] | Groups:
    """The cheaper way for tokens of which at least one has an adapter."""
    runs = runs_of(slots)
    counts = np.bincount(slots)[1:]
    filled = int(np.count_nonzero(counts) * counts.max())
    in_place = costs.in_place.seconds(len(runs), sum(run.end - run.begin for run in runs))
    gathered = costs.gathered.seconds(int(np.count_nonzero(counts)), filled)
    return runs if in_place <= gathered else groups_of(slots)


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
