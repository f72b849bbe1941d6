"""Which job the helper does next, how many may wait, and what follows when it ends in the midst.

Pure; the client acts on it. Answers go before questions: they are for callers who were accepted.
Both come in fair turns of tenants, by their bytes, and tenants share the places of questions.
"""

from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.core.fair_queue import FairQueue
from batchedmodel_scheduling.core.shared_room import SharedRoom

_SECONDS: Final = 10.0
_BYTES_PER_SECOND: Final = 1 << 20  # a tenth of what a slow core parses
_MOST_LOSSES: Final = 2
_LEAST_DELAY: Final = 1.0
_WEIGHT: Final = 0.2


class Waiting(Protocol):
    """What the line must know of a job."""

    urgent: bool
    losses: int
    share: Share

    @property
    def size(self) -> int:
        """In bytes."""
        ...

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for its outcome."""
        ...


Entry = TypeVar("Entry", bound=Waiting)


def patience(size: int) -> float:
    """Seconds after which a helper that has so many bytes to work on is taken for stuck."""
    return _SECONDS + size / _BYTES_PER_SECOND


class JobQueue(Generic[Entry]):
    """The jobs that wait, and how long one takes."""

    def __init__(self, most: int) -> None:
        """`most`: jobs that may wait or be done at once, urgent ones not counted."""
        self._room = SharedRoom(most)
        self._again: Entry | None = None
        """The job during which the helper ended."""
        self._waiting: dict[int, Entry] = {}
        self._urgent: FairQueue[int] = FairQueue()
        self._others: FairQueue[int] = FairQueue()
        self._numbers = count()
        self._doing: Entry | None = None
        self._seconds = 0.0

    def refusal(self, share: Share) -> Rejection | None:
        """Why a tenant's next job that is not urgent is refused; None if it is not."""
        return self._room.refusal(share, 1)

    @property
    def delay(self) -> float:
        """Seconds after which asking again makes sense: when half of what waits is done."""
        return max(_LEAST_DELAY, self._seconds * self._others.unseen / 2)

    def join(self, job: Entry) -> None:
        """A job comes."""
        number, share = next(self._numbers), job.share
        self._waiting[number] = job
        queue = self._urgent if job.urgent else self._others
        queue.add(share.tenant, number, work=job.size, rank=number, weight=share.weight)
        if not job.urgent:
            self._room.take(share, 1)

    def leave(self, job: Entry) -> None:
        """Nobody wants a job's outcome any more; one that is being done is done to its end."""
        if job is self._again:
            self._again = None
            self._leaves(job)
            return
        for number in [number for number, one in self._waiting.items() if one is job]:
            del self._waiting[number]
            (self._urgent if job.urgent else self._others).discard(number)
            self._leaves(job)

    def next(self) -> Entry | None:
        """The job to do now; those that nobody wants any more are dropped."""
        while (job := self._first()) is not None:
            if job.wanted:
                break
            self._leaves(job)
        self._doing = job
        return job

    def done(self, seconds: float) -> None:
        """The present job has an outcome, after so long."""
        self._seconds += _WEIGHT * (seconds - self._seconds) if self._seconds else seconds
        self._end()

    def lost(self) -> bool:
        """The helper ended during the present job: whether a fresh one should try it again.

        Once may be an accident. Twice is likely the job's own doing, and others wait.
        """
        job = self._doing
        assert job is not None, "a job was lost that nobody did: our bug"
        job.losses += 1
        if job.losses >= _MOST_LOSSES or not job.wanted:
            self._end()
            return False
        self._doing, self._again = None, job
        return True

    def _first(self) -> Entry | None:
        self._end()
        if self._again is not None:
            job, self._again = self._again, None
            return job
        for queue in (self._urgent, self._others):
            for number in queue.show(0.0):
                queue.left(number)
                return self._waiting.pop(number)
        return None

    def _end(self) -> None:
        if self._doing is not None:
            self._leaves(self._doing)
            self._doing = None

    def _leaves(self, job: Entry) -> None:
        if not job.urgent:
            self._room.give_back(job.share.tenant, 1)
