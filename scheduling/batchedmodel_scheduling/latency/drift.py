"""How far a device is from the times that were measured of it: one factor, for batches and steps.

Pure; `BatchTimes` has one for a device's batches, `StepTimes` two for an engine's steps.
"""

import bisect
import math
from collections import deque
from typing import Final

_STEP: Final = 0.05
_CLIP: Final = 2.5  # spreads; further out nothing counts more
_RECENT: Final = 12
_ONE_SIDED: Final = 0.75
_SUDDEN: Final = 2.0  # spreads
_LEAST_SPREAD: Final = 0.004
_FIRST_SPREAD: Final = 0.05
_REMEMBERED: Final = 200
_QUANTILE: Final = 0.9
_LEAST_MARGIN: Final = 1.0
_MOST_MARGIN: Final = 1.3
_FIRST_MARGIN: Final = 1.03
_ENOUGH: Final = 20  # batches until their quantile says more than the first guess


class Drift:
    """How far a device is from its curve today: a scale, its spread, and a margin.

    The scale follows the ratio of observed to expected times in small steps on a logarithmic
    scale, so that stragglers move it little. When most of the recent batches lie on one side, the
    device has changed (clocks, neighbours, a new driver) and the scale jumps. The margin is a
    quantile of what is left over: under-estimating costs far more than over-estimating.
    """

    def __init__(self) -> None:
        self._log_scale = 0.0
        self.spread = _FIRST_SPREAD
        """Standard deviation of the logarithm of a time."""
        self._seen = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._residuals: deque[float] = deque(maxlen=_REMEMBERED)
        self._sorted: list[float] = []
        self.scale = 1.0
        """Middle of the present times, as a factor on the expected ones."""
        self.margin = _FIRST_MARGIN
        """From the middle to the time that nine of ten batches keep, as a factor."""

    def observe(self, ratio: float) -> bool:
        """Learn from one batch; `ratio` is observed over expected seconds, without the scale.

        Returns whether the last batches show that the device has changed.
        """
        residual = math.log(ratio) - self._log_scale
        self._seen += 1
        clipped = max(-_CLIP * self.spread, min(_CLIP * self.spread, residual))
        self._recent.append(residual)
        jumped = self._jumped()
        if not jumped:
            step = max(_STEP, 1 / (self._seen + 1))
            self._log_scale += step * clipped
            # The mean deviation of a normal distribution is 0.8 of its standard deviation.
            self.spread += step * (1.25 * abs(clipped) - self.spread)
            self.spread = max(_LEAST_SPREAD, self.spread)
            self._remember(residual)
        self.scale = math.exp(self._log_scale)
        return jumped

    def believe(self, ratio: float) -> None:
        """Take one batch for the present, against all that was learnt."""
        self._log_scale = math.log(ratio)
        self.scale = ratio
        self._recent.clear()

    def start_over(self) -> None:
        """The expected times are new and fit the present; how unsure they are is as before."""
        self._log_scale = 0.0
        self.scale = 1.0
        self._recent.clear()

    def _jumped(self) -> bool:
        recent = sorted(self._recent)
        if len(recent) < _RECENT // 2:
            return False
        middle = recent[len(recent) // 2]
        above = sum(residual > 0 for residual in recent)
        one_sided = max(above, len(recent) - above) >= _ONE_SIDED * len(recent)
        if not one_sided or abs(middle) <= _SUDDEN * self.spread:
            return False
        self._log_scale += middle
        self._recent.clear()
        return True

    def _remember(self, residual: float) -> None:
        if len(self._residuals) == _REMEMBERED:
            del self._sorted[bisect.bisect_left(self._sorted, self._residuals[0])]
        self._residuals.append(residual)
        bisect.insort(self._sorted, residual)
        if len(self._sorted) >= _ENOUGH:
            upper = self._sorted[int(_QUANTILE * (len(self._sorted) - 1))]
            self.margin = max(_LEAST_MARGIN, min(_MOST_MARGIN, math.exp(upper)))
