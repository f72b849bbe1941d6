"""What became of each tenant's rows. Compiled in the image, as the ledger is not."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from batchedmodel_scheduling.core.shared_room import SharedRoom

OTHER: Final = "other"
_NAMED: Final = 10
_CALLS: Final = 10_000
"""Calls after which the tenants that sent most lately are named."""
_MOST: Final = 1_000
"""Tenants that are counted to find those that send most."""


class TenantCount(NamedTuple):
    """Of one tenant, or of all that are not named."""

    tenant: str
    served: int
    refused: int
    waiting: int


@dataclass(slots=True)
class _Line:
    served: int = 0
    refused: int = 0


class TenantCounts:
    """What became of each tenant's rows: the largest ten tenants by name, all others as one.

    A row counts where its tenant stands when it counts, so no number ever falls. A tenant that is
    named anew begins at nothing. Who is named is decided anew after some thousand calls.
    """

    def __init__(self) -> None:
        self.room: Final = SharedRoom(0)
        """Of the queue; its size is that of the settings in force."""
        self._named: dict[str, _Line] = {}
        self._other = _Line()
        self._lately: Counter[str] = Counter()
        self._calls = 0

    def served(self, tenant: str, rows: int) -> None:
        """So many rows of a call were answered."""
        self._line(tenant, rows).served += rows

    def refused(self, tenant: str, rows: int) -> None:
        """So many rows of a call were not let in; one of a call that was not read."""
        self._line(tenant, rows).refused += rows

    def rows(self) -> Iterator[TenantCount]:
        """The named tenants, then all others together."""
        unnamed = self.room.taken
        for tenant, line in self._named.items():
            waiting = self.room.of(tenant)
            unnamed -= waiting
            yield TenantCount(tenant, line.served, line.refused, waiting)
        yield TenantCount(OTHER, self._other.served, self._other.refused, unnamed)

    def _line(self, tenant: str, rows: int) -> _Line:
        self._calls += 1
        if self._calls >= _CALLS:
            self._name_anew()
        if tenant in self._lately or len(self._lately) < _MOST:
            self._lately[tenant] += rows
        line = self._named.get(tenant)
        if line is None and len(self._named) < _NAMED and tenant != OTHER:
            line = self._named[tenant] = _Line()
        return line or self._other

    def _name_anew(self) -> None:
        """Name the tenants that sent most lately; older rows count for less."""
        self._calls = 0
        largest = [tenant for tenant, _ in self._lately.most_common(_NAMED) if tenant != OTHER]
        self._named = {tenant: self._named.get(tenant, _Line()) for tenant in largest}
        self._lately = Counter({name: rows // 2 for name, rows in self._lately.items() if rows > 1})
