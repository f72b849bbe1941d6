"""What the head of a request says.

Clients send the same head again and again, so it is kept and used for many
requests: nothing here belongs to one of them.
"""

import re
from collections.abc import Mapping
from typing import Final, TypeVar

from batchedmodel_contract.invalid_input import InvalidInput

_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_TARGET: Final = re.compile(r"[!\"$-~]+")


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


def only(headers: Mapping[str, str], name: str) -> str | None:
    """The one value of a header, None if it was not sent.

    Raises `InvalidInput` if it was sent with several: a proxy on the way may have read another.
    """
    given = headers.get(name)
    if given is not None:
        lowered = name.lower()
        if any(value != given for other, value in headers.items() if other.lower() == lowered):
            raise InvalidInput(name, "is sent more than once, with different values")
    return given


AnyRequestHead = TypeVar("AnyRequestHead", bound=RequestHead)
