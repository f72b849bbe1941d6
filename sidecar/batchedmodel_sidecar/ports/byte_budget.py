"""How many bytes of request bodies are held at once, all callers together.

What counts is what has arrived: a caller that declares much and sends nothing holds nothing.
"""

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

    def hold(self) -> "Hold":
        """A share that grows with what is received and is given back behind a `with` block."""
        return Hold(self)


class Hold:
    """One caller's share of the budget."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._size = 0

    def grow(self, size: int) -> bool:
        """Take so many bytes more; False when they do not fit, and nothing is taken."""
        if not self._budget.has_room_for(size):
            return False
        self._budget.held += size
        self._size += size
        return True

    def shrink(self, size: int) -> None:
        """Give so many bytes back early."""
        self._budget.held -= size
        self._size -= size

    def __enter__(self) -> "Hold":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._budget.held -= self._size
