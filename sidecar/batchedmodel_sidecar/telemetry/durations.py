"""What is measured of every request and batch, in histograms. Compiled; `metrics` shows them."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

SECONDS: Final[Sequence[float]] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
_LAGS: Final[Sequence[float]] = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_ROWS: Final[Sequence[float]] = (
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0,
)  # fmt: skip


class Histogram:
    """A histogram that one thread writes and shows.

    It has no locks and no labels: `observe` of the client library's own histogram takes longer than
    everything else that is counted of a row.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper bound of each bucket but the last, which has none."""
        self.bounds: Final = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, amount: float) -> None:
        """Count a measurement in."""
        self._counts[bisect_left(self.bounds, amount)] += 1
        self.sum += amount

    def cumulative(self) -> list[int]:
        """How many were at most each bound, and last how many there were."""
        return list(accumulate(self._counts))


class Durations:
    """The histograms, which the batcher feeds as things happen."""

    def __init__(self) -> None:
        self.queue: Final = Histogram(SECONDS)
        """From a row's arrival to its release."""
        self.model: Final = Histogram(SECONDS)
        """Forward passes, as the server measured them."""
        self.request: Final = Histogram(SECONDS)
        """From a call's acceptance to its end."""
        self.loop_lag: Final = Histogram(_LAGS)
        """By how much the loop woke late."""
        self.batch_size: Final = Histogram(_ROWS)
        """Rows in a released batch."""
