"""Which requests need a version of the model that another one has replaced.

A request is answered by the version for which it was read, so that version must not end before its
last request has. The data handler counts; the link hears of the end and tells the server.
"""

from collections.abc import Callable


class VersionUsers:
    """The requests of one version."""

    __slots__ = ("_count", "_unneeded")

    def __init__(self) -> None:
        self._count = 0
        self._unneeded: Callable[[], None] | None = None

    @property
    def any(self) -> bool:
        """Whether a request needs the version."""
        return self._count > 0

    def come(self) -> None:
        """One more request needs it."""
        self._count += 1

    def leave(self) -> None:
        """One request has ended."""
        self._count -= 1
        self._end_if_unneeded()

    def replaced(self, unneeded: Callable[[], None]) -> None:
        """No more will come; `unneeded` is called once, when the last has left."""
        self._unneeded = unneeded
        self._end_if_unneeded()

    def _end_if_unneeded(self) -> None:
        if self._unneeded is not None and not self._count:
            unneeded, self._unneeded = self._unneeded, None
            unneeded()


class VersionLease:
    """What one request needs until it is closed."""

    __slots__ = ("_users",)

    def __init__(self) -> None:
        self._users: VersionUsers | None = None

    def turn_to(self, users: VersionUsers) -> None:
        """The request is read for that version; said once."""
        users.come()
        self._users = users

    def close(self) -> None:
        """The request needs none any more."""
        users, self._users = self._users, None
        if users is not None:
            users.leave()
