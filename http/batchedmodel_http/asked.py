"""What the head of a request says.

Made by the headings. Clients send the same head again and again, so it is kept and used for many
requests: nothing here belongs to one of them.
"""

from collections.abc import Mapping
from typing import Final, TypeVar


class Asked:
    """The head of one request, or of many that have the same; a process adds what follows."""

    __slots__ = ("declared", "headers", "method", "path")

    def __init__(
        self, *, method: str, path: str, headers: Mapping[str, str], declared: int
    ) -> None:
        """`declared`: how long the body is, 0 when nothing says so."""
        self.method: Final = method
        self.path: Final = path
        self.headers: Final = headers
        self.declared: Final = declared


AnyAsked = TypeVar("AnyAsked", bound=Asked)
