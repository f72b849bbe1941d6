"""The time for people, by the API server's clock: this node's own may be hours off, and jump."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_FIRST_YEAR: Final = 2000
_LAST_YEAR: Final = 9000
"""Behind it calendars end, and what would be computed from such a date."""


class ServerCalendar:
    """Goes on from the date of the last answer by a clock that nobody sets."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ahead: float | None = None
        """Seconds from the clock's zero, as seconds of the epoch."""

    def heard(self, date: str) -> None:
        """An answer has come now that is dated so, in the form of HTTP."""
        try:
            at = parsedate_to_datetime(date)
        except (ValueError, OverflowError):
            return
        if at.tzinfo is not None and _FIRST_YEAR <= at.year < _LAST_YEAR:
            self._ahead = at.timestamp() - self._clock()

    def now(self) -> datetime:
        """With its zone; by this node's clock until an answer was heard."""
        if self._ahead is None:
            return datetime.now(UTC)
        return datetime.fromtimestamp(self._ahead + self._clock(), UTC)
