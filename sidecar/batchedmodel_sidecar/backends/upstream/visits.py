"""How long a server had what goes alone, where batches may have had it meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Visit:
    """One request that goes alone, while it is at the server."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.began = clock()
        self._since = self.began

    def batch_ended(self, began: float) -> None:
        """A batch ended. One that was there before may have had the server until now."""
        if began <= self.began:
            self._since = self._clock()

    def seconds(self) -> float:
        """For which it may have had the server."""
        return self._clock() - self._since


class Visits:
    """Those that are at the server now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._there: set[Visit] = set()

    def __len__(self) -> int:
        return len(self._there)

    @contextmanager
    def one(self) -> Iterator[Visit]:
        """One more, while the block runs."""
        visit = Visit(self._clock)
        self._there.add(visit)
        try:
            yield visit
        finally:
            self._there.discard(visit)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """A batch is at the server while the block runs."""
        began = self._clock()
        try:
            yield
        finally:
            for visit in self._there:
                visit.batch_ended(began)
