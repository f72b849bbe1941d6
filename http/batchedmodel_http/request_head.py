"""What the head of a request says.

Made by the head cache. Clients send the same head again and again, so it is kept and used for many
requests: nothing here belongs to one of them.
"""

import re
from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_TARGET: Final = re.compile(r"[!\"$-~]+")


class Head(Protocol):
    """What a connection asks of a head. A process adds what it concludes from it."""

    @property
    def declared(self) -> int:
        """How long the body is, 0 when nothing says so."""
        ...


class RequestHead:
    """The head of one request, or of many that have the same."""

    __slots__ = ("declared", "headers", "method", "path", "query")

    def __init__(
        self, *, method: str, target: str, headers: Mapping[str, str], declared: int
    ) -> None:
        """`target` as it was sent; `declared`: how long the body is, 0 when nothing says so."""
        path, query = path_and_query(target)
        self.method: Final = method
        self.path: Final = path
        """As it was sent: nothing is decoded, so what is compared is what would go on."""
        self.query: Final = query
        """As it was sent, with its question mark; empty when there is none."""
        self.headers: Final = headers
        self.declared: Final = declared


def path_and_query(target: str) -> tuple[str, str]:
    """Both as they were sent, without the server's name, which a target may begin with."""
    # Only where it begins with one: a query may hold another URL.
    named = _AUTHORITY.match(target)
    rest = target if named is None else target[named.end() :]
    path, mark, query = rest.partition("?")
    return path or "/", mark + query


def is_target(text: str) -> bool:
    """Whether this can go on as it came: printable ASCII, and no fragment, which no request has."""
    return _TARGET.fullmatch(text) is not None


AnyRequestHead = TypeVar("AnyRequestHead", bound=Head)
