"""Notices a forward pass that does not end.

The compute thread says when a pass begins and ends. The event loop, which goes on while the pass
hangs, looks at the present one when it is overdue. A pass that begins meanwhile cannot be overdue
before `LEAST_SECONDS`, so it is found in time without a word from its thread.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from batchedmodel_contract.inference.profile import Profile

HUNG_LOOK_SECONDS: Final = 0.5  # how late the end of a hang may be told
LEAST_SECONDS: Final = 10.0
"""No pass is called hung before: busy neighbours slow a short one down tenfold for seconds."""
_TIMES: Final = 10.0  # the predicted time


class _Pass(NamedTuple):
    began: float
    allowed: float


class Watchdog:
    """Watches one compute thread. That calls `pass_begins` and `pass_ends`, the loop all else."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[str | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` is called on the loop: with a sentence when a pass is overdue, and with None when
        it has ended after all. The loop's own clock may stand still between two of its turns.
        """
        self._loop = loop
        self._tell = tell
        self._clock = clock
        self._pass: _Pass | None = None
        self._is_hung = False
        self._timer = loop.call_later(LEAST_SECONDS, self._look)

    def pass_begins(self, allowed: float) -> None:
        """A pass begins that should take so many seconds at most, `LEAST_SECONDS` or more."""
        self._pass = _Pass(self._clock(), allowed)

    def pass_ends(self) -> None:
        """It has ended."""
        self._pass = None

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        present = self._pass
        took = 0.0 if present is None else self._clock() - present.began
        is_hung = present is not None and took >= present.allowed
        if is_hung:
            delay = HUNG_LOOK_SECONDS
        else:
            delay = LEAST_SECONDS if present is None else present.allowed - took
        self._timer = self._loop.call_later(min(delay, LEAST_SECONDS), self._look)
        if present is not None and is_hung and not self._is_hung:
            self._tell(
                f"a forward pass has run for {took:.0f} s, and {present.allowed:.0f} s are the "
                "most that it should take"
            )
        elif self._is_hung and not is_hung:
            self._tell(None)
        self._is_hung = is_hung


def allowed_seconds(profile: Profile, rows: int, longest: int) -> float:
    """How long a pass over so many items may take before it counts as hung."""
    return longest_seconds(predicted_seconds(profile, rows, longest))


def longest_seconds(predicted: float) -> float:
    """How long a pass may take that should take so long, before it counts as hung."""
    return max(LEAST_SECONDS, _TIMES * predicted)


def predicted_seconds(profile: Profile, rows: int, longest: int) -> float:
    """A time that such a pass hardly exceeds; 0 when nothing was measured.

    Each measured pass bounds it: a larger one by its own time, a smaller one by a time that grows
    with the rows, and with the square of the length as attention does.
    """
    bounds = (
        point.seconds * max(1.0, rows / point.rows) * max(1.0, longest / max(1, point.length)) ** 2
        for point in profile.points
    )
    return min(bounds, default=0.0)
