"""How many bytes of request bodies are held at once, all callers together."""

from types import TracebackType
from typing import Final


class ByteBudget:
    """A bound on memory that callers can make the process hold."""

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self.held = 0

    def has_room_for(self, size: int) -> bool:
        """Whether so many bytes may be held in addition."""
        return self.held + size <= self._limit

    def hold(self, size: int) -> "Hold":
        """Take a share, to be given back at the end of a `with` block."""
        return Hold(self, size)


class Hold:
    """One caller's share of the budget."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self._budget = budget
        self._size = size

    def resize(self, size: int) -> None:
        """The true size is known now: a chunked body declared none."""
        self._budget.held += size - self._size
        self._size = size

    def __enter__(self) -> "Hold":
        self._budget.held += self._size
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._budget.held -= self._size
