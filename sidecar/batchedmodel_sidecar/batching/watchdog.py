"""Whether the dispatcher still decides: what the liveness probe asks.

Pure; owned by the batcher. A decision that fails is tried again after a moment; a sidecar whose
decisions go on failing, or do not come at all, must be restarted, or its callers would wait for
ever behind a green light. So must one whose policy does not know that a batch has ended: to it the
server is busy for ever.
"""

import math
from typing import Final

_PAUSE: Final = 1.0  # seconds until the next decision after one that failed
_MOST_FAILURES: Final = 3
_MOST_LATE: Final = 5.0  # seconds


class DecisionWatchdog:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._failures = 0
        self._next = math.inf
        self._astray = False

    def decided(self, next_at: float) -> None:
        """A decision was made; the next one is due then."""
        self._failures = 0
        self._next = next_at

    def stumbled(self, now: float) -> float:
        """A decision failed; returns when to try again."""
        self._failures += 1
        self._next = now + _PAUSE
        return self._next

    def lost_track(self) -> None:
        """The policy goes on following a batch that has ended."""
        self._astray = True

    def ailment(self, now: float) -> str | None:
        """What is wrong; None while nothing is."""
        if self._failures >= _MOST_FAILURES:
            return f"the last {self._failures} decisions failed"
        if self._astray:
            return "the policy does not know that a batch has ended"
        late = now - self._next
        return f"a decision is {late:.0f} s late" if late > _MOST_LATE else None
