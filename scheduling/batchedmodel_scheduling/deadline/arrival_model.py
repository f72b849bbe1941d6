"""Whether company is about to arrive: the gaps between arrivals, and what waiting would gain.

Holding b items for one more delays b items by the gap and saves about one launch. With the gaps
seen lately, the batch goes when for every horizon g

    P(e < gap <= e + g | gap > e) * theta * saved  <=  b * E[min(gap - e, g) | gap > e],

where e is the time since the last arrival. Under smooth traffic this is a threshold on b that light
load never reaches. Within a clump of arrivals the batch waits for the rest of the clump.
"""

import bisect
import math
from collections import deque
from collections.abc import Hashable
from itertools import accumulate
from typing import Final

_REMEMBERED: Final = 256
_ENOUGH: Final = 16
_KEYS_REMEMBERED: Final = 256
_RENEWED_AFTER: Final = 8  # gaps
_HORIZONS: Final = (0.00025, 0.0005, 0.001, 0.002, 0.004)  # seconds
_LEAST_THETA: Final = 0.5
_RATE_SECONDS: Final = 0.2


class Gaps:
    """The gaps between arrivals that could share a batch."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=_REMEMBERED)
        self._last: float | None = None
        self._sorted: list[float] = []
        self._sums: list[float] = [0.0]
        self._new = 0

    def observe(self, now: float) -> None:
        """Something arrived."""
        if self._last is not None:
            self._gaps.append(now - self._last)
            self._new += 1
        self._last = now

    def worth_waiting(
        self, now: float, items: int, *, saved: float, load: float, until: float
    ) -> float | None:
        """Until when to hold `items` for one more, at most `until`; None when it does not pay.

        `saved`: seconds that one more member of this batch costs less than a batch of its own.
        `load`: what arrives, as a part of what the device can do.
        """
        if self._last is None or len(self._gaps) < _ENOUGH or until <= now:
            return None
        if self._new >= _RENEWED_AFTER or not self._sorted:
            self._new = 0
            self._sorted = sorted(self._gaps)
            self._sums = [0.0, *accumulate(self._sorted)]
        gaps, sums = self._sorted, self._sums
        since = now - self._last
        begin = bisect.bisect_right(gaps, since)
        longer = len(gaps) - begin
        if longer == 0:
            return None
        gain = saved * max(_LEAST_THETA, min(1.0, load))
        for horizon in _HORIZONS:
            wait = min(horizon, until - now)
            end = bisect.bisect_right(gaps, since + wait)
            come = end - begin
            delay = (sums[end] - sums[begin] - come * since) + (longer - come) * wait
            if come * gain > items * delay:
                return now + wait
            if wait < horizon:
                break
        return None


class GapsByKey:
    """The gaps of each compatibility key. Of many keys it forgets those met longest ago."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Gaps] = {}

    def of(self, key: Hashable) -> Gaps:
        """Those of one key."""
        gaps = self._by_key.pop(key, None)
        if gaps is None:
            if len(self._by_key) >= _KEYS_REMEMBERED:
                del self._by_key[next(iter(self._by_key))]
            gaps = Gaps()
        self._by_key[key] = gaps
        return gaps


class ArrivalRate:
    """Arrivals per second over the last moments, by an exponential average."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._at = 0.0

    def observe(self, now: float) -> None:
        """Something arrived."""
        self._rate = self.at(now) + 1 / _RATE_SECONDS
        self._at = now

    def at(self, now: float) -> float:
        """The rate at this time."""
        return self._rate * math.exp(-max(0.0, now - self._at) / _RATE_SECONDS)
