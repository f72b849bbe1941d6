"""Whose calls came within the last second: callers ask again when they have their answers."""

from collections.abc import Iterator
from typing import Final

from batchedmodel_contract.manifest.tenants import Share

SECONDS: Final = 1.0
_MOST: Final = 1_000


class RecentCallers:
    """The latest thousand at most. Pure."""

    def __init__(self) -> None:
        self._asked: dict[Share, float] = {}
        """When each asked last; the newest last."""

    def asks(self, share: Share, now: float) -> None:
        """One more call of a tenant."""
        self._asked.pop(share, None)
        self._asked[share] = now
        if len(self._asked) > _MOST:
            del self._asked[next(iter(self._asked))]

    def at(self, now: float) -> Iterator[Share]:
        """Those that asked lately."""
        return (share for share, asked in self._asked.items() if now - asked < SECONDS)
