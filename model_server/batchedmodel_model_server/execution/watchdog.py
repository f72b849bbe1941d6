"""Notices a forward pass that does not end.

The compute thread says when a pass begins and ends. The event loop, which goes on while the pass
hangs, looks at it once it should be over: one timer stands at the earliest moment at which the
present pass, or one that began since, can be overdue.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from batchedmodel_contract.inference.profile import Profile

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
        self._awaited = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_hung = False

    def pass_begins(self, allowed: float) -> None:
        """A pass begins that should not take longer than so many seconds."""
        self._pass = _Pass(self._clock(), allowed)

    def pass_ends(self) -> None:
        """It has ended."""
        self._pass = None
        if self._is_hung:
            self._loop.call_soon_threadsafe(self._look)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Around the wait for a pass, begun or not."""
        self._awaited += 1
        if self._timer is None:
            self._look_in(LEAST_SECONDS)
        try:
            yield
        finally:
            self._awaited -= 1

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.close()  # the end of a pass calls beside the timer
        present = self._pass
        if present is None:
            self._say(None)
            if self._awaited:
                self._look_in(LEAST_SECONDS)
            return
        took = self._clock() - present.began
        if took < present.allowed:
            self._say(None)
            self._look_in(present.allowed - took)
            return
        self._say(
            f"a forward pass has run for {took:.0f} s, and {present.allowed:.0f} s are the most "
            "that it should take"
        )
        # `pass_ends` calls again once a pass is known to be hung; this one may just have ended.
        if self._pass is not present:
            self._loop.call_soon(self._look)

    def _say(self, hung: str | None) -> None:
        if self._is_hung != (hung is not None):
            self._is_hung = hung is not None
            self._tell(hung)

    def _look_in(self, seconds: float) -> None:
        self.close()
        self._timer = self._loop.call_later(seconds, self._look)


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
