"""Whether more requests at once complete more, where nothing else of the server can be seen."""

from typing import Final

from batchedmodel_scheduling.generation.at_server import Load

_GAINS: Final = 1 / 3
"""Of the growth, that must show in what completes."""
_LEAST: Final = 32
"""Completions that a verdict needs, and four times as many as the limit."""


class Climb:
    """Steps up and down of a limit, each with its verdict."""

    def __init__(self, limit: int) -> None:
        self.before = limit
        """The limit before the last step."""
        self._rate: float | None = None
        """What completed a second before the last step."""
        self._passed = self._completed = 0
        self._seconds = 0.0

    @property
    def measures(self) -> bool:
        """Whether a step waits for its verdict."""
        return self._rate is not None

    def forget(self) -> None:
        """Measure anew from now on."""
        self._rate = None
        self._restart()

    def look(self, load: Load, limit: int) -> bool | None:
        """True to step up, False to step back, None to wait for more completions."""
        if self._passed < limit:
            self._passed += load.completed  # of those that began before the step
            return None
        self._completed += load.completed
        self._seconds += load.seconds
        if self._completed < max(_LEAST, 4 * limit) or self._seconds < 1.0:
            return None
        rate, before = self._completed / self._seconds, self._rate
        if before is not None and rate < before * (1 + _GAINS * (limit / self.before - 1)):
            return False
        self._rate = rate
        self._restart()
        return True

    def _restart(self) -> None:
        self._passed = self._completed = 0
        self._seconds = 0.0
