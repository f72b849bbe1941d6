"""Which connection ends when there are too many: pure, times are arguments.

A newcomer always gets in. Whoever holds most pays for it, so that no crowd of connections keeps
out the kubelet or the API server.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the callers of one port may take."""

    connections: int = 64
    of_address: int = 32
    head_seconds: float = 5.0
    """From the first byte of a head to its last; for the first head from the accepted connection,
    TLS included."""
    idle_seconds: float = 75.0
    """From one head to the next. The API server asks anew every 15 s."""
    head_bytes: int = 16_384


class Held(Protocol):
    """A connection, as far as this decision looks at it."""

    @property
    def address(self) -> str:
        """Who holds it."""
        ...

    @property
    def known(self) -> bool:
        """Whether its caller has shown a certificate that we trust."""
        ...

    @property
    def used_at(self) -> float:
        """When its last request came, or itself."""
        ...


_One = TypeVar("_One", bound=Held)


def gives_way(newcomer: str, held: Sequence[_One], bounds: Bounds) -> _One | None:
    """The connection that ends for one of a newcomer's address; None while there is room."""
    of_address = Counter(one.address for one in held)
    if of_address[newcomer] >= bounds.of_address:
        rivals = [one for one in held if one.address == newcomer]
    elif len(held) >= bounds.connections:
        most = max(of_address.values())
        rivals = [one for one in held if of_address[one.address] == most]
    else:
        return None
    return min(rivals, key=lambda one: (one.known, one.used_at))
