"""How long a batch will take: the shape from the server's profile, the scale from what is observed.

Without a profile nothing is predicted until enough batches of the traffic itself have been seen;
then a line through them takes the profile's place. Owned by the pipeline; policies read from it.
"""

import bisect
import math
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfileExtent, ProfilePoint, extent_of
from batchedmodel_scheduling.latency.curve import Curve, smoothed
from batchedmodel_scheduling.latency.learnt import LearntSizes

_COLD_BATCHES: Final = 3  # the first ones after a start pay for allocation and compilation
_LEARNT_FROM: Final = 16  # batches until traffic stands in for a profile, and until it does anew
_MUCH_LESS: Final = 0.7  # of what was expected
_SAMPLES: Final = 128
_TABLES: Final = 1024

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


class BatchTimes:
    """Predicts the forward pass of a batch, in seconds."""

    def __init__(self, profile: Profile | None) -> None:
        self.rule: Final = profile.cost_rule if profile else CostRule.PADDED
        self._curve = _curve(profile)
        self._learnt: Final = LearntSizes(_measured(profile))
        self.profiled: Final = self._curve is not None
        """Whether predictions rest on the server's own measurements."""
        self.extent: Final = extent_of(profile if self.profiled else None)
        """A partial profile foretells batches. Work is counted in seconds by a whole one only."""
        self.drift: Final = Drift()
        self._cold = _COLD_BATCHES
        self._tables: dict[int, list[float]] = {}
        self._upper_tables: dict[int, list[float]] = {}
        self._samples: deque[ProfilePoint] = deque(maxlen=_SAMPLES)
        self._since_fit = 0

    @property
    def upper(self) -> float:
        """Present over tabled times, what nine of ten batches keep."""
        return self.drift.scale * self.drift.margin

    @property
    def counts_seconds(self) -> bool:
        """Whether work is in seconds of the device; otherwise in full batches."""
        return self.extent is ProfileExtent.WHOLE

    def predict(self, lengths: Sequence[int]) -> float | None:
        """Seconds for a batch of items of these lengths; None while nothing is known."""
        if self._curve is None:
            return None
        return self._expected(lengths) * self.drift.scale

    def table(self, longest: int, rows: int) -> list[float]:
        """Seconds by number of items of which the longest has this length, at least to `rows`.

        Without drift: multiply by `drift.scale` or `upper`. All zero while nothing is known.
        """
        if self._curve is None:
            return [0.0] * (rows + 1)
        table = self._tables.get(longest)
        if table is None or len(table) <= rows:
            table = self._curve.rows_table(longest, rows)
            each = 1 if self.rule is CostRule.ROWS else max(1, longest)
            if self.profiled:
                paid = range(each, each * len(table), each)
                table = [0.0, *self._learnt.corrected(table[1:], paid)]
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            self._tables[longest] = table
        return table

    def upper_table(self, longest: int, rows: int) -> list[float]:
        """What nine of ten batches keep, by number of items of which the longest has this length.

        At least to `rows`; all zero while nothing is known.
        """
        table = self._upper_tables.get(longest)
        if table is None or len(table) <= rows:
            factor = self.upper
            table = [seconds * factor for seconds in self.table(longest, rows)]
            self._upper_tables[longest] = table
        return table

    def packed_table(self, lengths: Sequence[int]) -> list[float]:
        """Seconds for the first 0, 1, ... of these items when packed, without drift."""
        if self._curve is None:
            return [0.0] * (len(lengths) + 1)
        table = self._curve.packed_table(lengths)
        if not self.profiled:
            return table
        return self._learnt.corrected(table, list(accumulate(lengths, initial=0)))

    def _expected(self, lengths: Sequence[int]) -> float:
        """Seconds of a batch without drift."""
        if self.rule is CostRule.PACKED:
            return self.packed_table(lengths)[-1]
        return self.table(max(lengths), len(lengths))[len(lengths)]

    def sure_of(self, longest: int, rows: int) -> bool:
        """Whether so many rows of which the longest has this length were timed, not inferred."""
        return self._learnt.sure_of(self._paid([longest] * rows))

    def _paid(self, lengths: Sequence[int]) -> int:
        """What such a batch pays for; where it is padded, at least a token for each item."""
        longest = max(1, *lengths)
        return self.rule.paid(rows=len(lengths), longest=longest, total=sum(lengths))

    def share(self, length: int, rows: int) -> float | None:
        """Seconds of the device for one item's part in a batch of `rows` items of this length.

        By the profile alone, and None without a whole one: what traffic taught may change, and
        sums of work must not.
        """
        if self._curve is None or not self.counts_seconds:
            return None
        return self._curve.rows_table(length, rows)[rows] / rows * self.drift.scale

    def paid(self, lengths: Sequence[int]) -> float | None:
        """Seconds that a batch of such items counts for, as `share` counts each of them."""
        return None if self._curve is None else self._curve.seconds(lengths) * self.drift.scale

    def observe(self, lengths: Sequence[int], seconds: float, *, trial: bool = False) -> None:
        """Learn from one forward pass.

        `trial`: it ran although it was predicted to be late. If it took much less time, that is
        believed at once: while items are refused there is nothing else to learn from.
        """
        if seconds <= 0:
            return
        if not self.profiled:
            self._learn(lengths, seconds)
        if self._curve is None:
            return
        expected = self._expected(lengths)
        if trial and seconds < _MUCH_LESS * expected * self.drift.scale:
            self.drift.believe(seconds / expected)
            self._upper_tables.clear()
            return
        if self._cold:
            self._cold -= 1
            return
        if self.profiled and self._learn_size(lengths, seconds / self.drift.scale):
            # What this size is off by does not count as drift of the device as well.
            self._tables.clear()
            expected = self._expected(lengths)
        if self.drift.observe(seconds / expected):
            self._learnt.forget()
            self._tables.clear()
        self._upper_tables.clear()

    def _learn_size(self, lengths: Sequence[int], seconds: float) -> bool:
        """Let the device's own time of a size stand beside the curve's; whether that changes it."""
        assert self._curve is not None, "a profiled device has a curve"
        deviation = math.log(seconds / self._curve.seconds(lengths))
        return self._learnt.observe(self._paid(lengths), deviation, self.drift.spread)

    def _learn(self, lengths: Sequence[int], seconds: float) -> None:
        """Let the traffic stand in for the profile that the server has not."""
        point = ProfilePoint(rows=len(lengths), length=max(lengths), seconds=seconds)
        self._samples.append(point)
        self._since_fit += 1
        if self._since_fit < _LEARNT_FROM:
            return
        self._since_fit = 0
        self._curve = _curve(smoothed(self.rule, self._samples))
        self._tables.clear()
        self._upper_tables.clear()
        self.drift.start_over()


def _measured(profile: Profile | None) -> list[int]:
    """What batches pay for that the profile has timed."""
    if profile is None:
        return []
    return [
        profile.cost_rule.paid(
            rows=point.rows, longest=max(1, point.length), total=point.rows * max(1, point.length)
        )
        for point in profile.points
    ]


def _curve(profile: Profile | None) -> Curve | None:
    try:
        return None if profile is None else Curve(profile)
    except ValueError:
        return None
