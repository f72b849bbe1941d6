"""Which job the helper does next, how many may wait, and what follows when it ends in the midst.

Pure; the client acts on it. Answers go before questions: they are for callers who were accepted.
"""

from collections import deque
from typing import Final, Generic, Protocol, TypeVar

_SECONDS: Final = 10.0
_BYTES_PER_SECOND: Final = 1 << 20  # a tenth of what a slow core parses
_MOST_LOSSES: Final = 2
_LEAST_DELAY: Final = 1.0
_WEIGHT: Final = 0.2


class Waiting(Protocol):
    """What the line must know of a job."""

    urgent: bool
    losses: int

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for its outcome."""
        ...


Entry = TypeVar("Entry", bound=Waiting)


def patience(size: int) -> float:
    """Seconds after which a helper that has so many bytes to work on is taken for stuck."""
    return _SECONDS + size / _BYTES_PER_SECOND


class Line(Generic[Entry]):
    """The jobs that wait, and how long one takes."""

    def __init__(self, most: int) -> None:
        """`most`: jobs that may wait or be done at once, urgent ones not counted."""
        self._most = most
        self._urgent: deque[Entry] = deque()
        self._others: deque[Entry] = deque()
        self._doing: Entry | None = None
        self._seconds = 0.0

    @property
    def full(self) -> bool:
        """Whether a job that is not urgent is to be refused."""
        doing = self._doing is not None and not self._doing.urgent
        return len(self._others) + doing >= self._most

    @property
    def delay(self) -> float:
        """Seconds after which asking again makes sense: when half of what waits is done."""
        return max(_LEAST_DELAY, self._seconds * len(self._others) / 2)

    def join(self, job: Entry) -> None:
        """A job comes."""
        (self._urgent if job.urgent else self._others).append(job)

    def leave(self, job: Entry) -> None:
        """Nobody wants a job's outcome any more; one that is being done is done to its end."""
        waiting = self._urgent if job.urgent else self._others
        if job in waiting:
            waiting.remove(job)

    def next(self) -> Entry | None:
        """The job to do now; those that nobody wants any more are dropped."""
        self._doing = None
        while self._doing is None and (waiting := self._urgent or self._others):
            job = waiting.popleft()
            self._doing = job if job.wanted else None
        return self._doing

    def done(self, seconds: float) -> None:
        """The present job has an outcome, after so long."""
        self._seconds += _WEIGHT * (seconds - self._seconds) if self._seconds else seconds
        self._doing = None

    def lost(self) -> bool:
        """The helper ended during the present job: whether a fresh one should try it again.

        Once may be an accident. Twice is likely the job's own doing, and others wait.
        """
        job, self._doing = self._doing, None
        assert job is not None, "a job was lost that nobody did: our bug"
        job.losses += 1
        if job.losses >= _MOST_LOSSES or not job.wanted:
            return False
        (self._urgent if job.urgent else self._others).appendleft(job)
        return True
