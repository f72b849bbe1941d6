"""Towards which sidecars a connection stays open between two questions: pure, times are arguments.

Bounded in number, so that the process never runs out of descriptors or memory however many pods
there are; the others are asked through a connection of their own each time.
"""

from typing import Final

_OWN_DESCRIPTORS: Final = 512
"""For HPAs, watches, probes, and the questions of which no connection is kept."""
_MOST_KEPT: Final = 10_000
"""What there is memory for beside all else: 9 KB each."""


def most_kept(descriptors: int) -> int:
    """How many connections a process may keep that may have so many descriptors."""
    return max(0, min(_MOST_KEPT, descriptors - _OWN_DESCRIPTORS))


class KeptConnections:
    """Who has a place: whoever asks first for one, until it is not asked for again."""

    def __init__(self, most: int, *, seconds: float) -> None:
        """`seconds` without a question after which a connection is closed for certain."""
        self._most = most
        self._seconds = seconds
        self._asked: dict[str, float] = {}
        """When each address with a place was asked last, in this order."""

    def has_place(self, address: str, now: float) -> bool:
        """Whether the connection for a question now may be kept; if so it has its place."""
        self._forget(now)
        if self._asked.pop(address, None) is None and len(self._asked) >= self._most:
            return False
        self._asked[address] = now
        return True

    def _forget(self, now: float) -> None:
        while self._asked:
            address = next(iter(self._asked))
            if now - self._asked[address] < self._seconds:
                return
            del self._asked[address]
