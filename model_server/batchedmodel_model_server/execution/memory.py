"""How much the device's memory is believed to hold at once, learnt from what did not fit.

Falls at once and grows slowly (additive increase, multiplicative decrease: Chiu and Jain, 1989).
Pure; the warm-up teaches it first, then the runner, which tells it how each batch went. In what
the device pays for: rows x longest when padded, the sum of lengths when packed, or rows.
"""

import math
from collections.abc import Iterable
from typing import Final

_FALLS_TO: Final = 0.75  # of what did not fit
_GROWS_BY: Final = 0.05  # of what did not fit
_CLEAN_BATCHES: Final = 50
_NEARLY_FULL: Final = 0.5  # of the cap: a smaller batch proves nothing about it


def lowered(cap: int | None, cost: int) -> int:
    """The cap after something of this cost did not fit."""
    falls_to = max(1, int(_FALLS_TO * cost))
    return falls_to if cap is None else min(cap, falls_to)


class MemoryCap:
    """Believed of one device."""

    def __init__(self) -> None:
        self.cost: int | None = None
        """None while everything has fitted."""
        self._step = 0
        self._clean = 0
        self._most: float = math.inf

    def begin_with(self, cost: int) -> None:
        """Nothing has failed yet, but no more than this should fit; never grows beyond it.

        Where the memory is the machine's own, what does not fit is no exception to learn from but
        the end of the process.
        """
        self.cost = cost
        self._most = cost
        self._step = max(1, int(_GROWS_BY * cost))

    def outgrown(self, costs: Iterable[int]) -> None:
        """Batches of these costs did not fit."""
        for cost in costs:
            self.cost = lowered(self.cost, cost)
            self._step = max(1, int(_GROWS_BY * cost))
            self._clean = 0

    def fine(self, cost: int) -> None:
        """A batch of this cost did."""
        if self.cost is None or cost < _NEARLY_FULL * self.cost:
            return
        self._clean += 1
        if self._clean == _CLEAN_BATCHES:
            self._clean = 0
            self.cost = int(min(self._most, self.cost + self._step))
