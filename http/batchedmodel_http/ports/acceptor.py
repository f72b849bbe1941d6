"""Accepts connections on a port that is open to everybody, and sends crowds away at little cost."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from batchedmodel_contract.manifest.tenants import address_group

_log: Final = logging.getLogger(__name__)
BACKLOG: Final = 1_024
"""Connections that may wait to be accepted. The kernel drops whoever comes beyond them."""
_AT_ONCE: Final = 128
_A_SECOND: Final = 50.0
_SENT_AWAY_AT_ONCE: Final = 64
_AGAIN_SECONDS: Final = 1.0
_FORGETS_BEYOND: Final = 1_024
"""Addresses. Those that have been calm are forgotten then."""


class Newcomers:
    """Lets an address connect a number of times at once, and then so many times a second. Pure."""

    def __init__(self, *, at_once: int = _AT_ONCE, a_second: float = _A_SECOND) -> None:
        self._apart = 1 / a_second
        self._ahead = (at_once + 0.5) / a_second
        self._paid_until: dict[str, float] = {}
        """When an address's connections so far would end at the steady rate, monotonic seconds."""

    def let_in(self, address: str, now: float) -> bool:
        """Whether one that connects now is let in. Only one that is counts."""
        paid_until = max(now, self._paid_until.get(address, now)) + self._apart
        if paid_until > now + self._ahead:
            return False
        if len(self._paid_until) >= _FORGETS_BEYOND:
            known = self._paid_until.items()
            self._paid_until = {one: until for one, until in known if until > now}
        self._paid_until[address] = paid_until
        return True


class Acceptor:
    """Watches a listening socket, and gives each connection that is let in to whoever serves it.

    A full connection costs ten times what it costs to send one away. So a crowd of one address
    neither fills the kernel's queue, in which others would be dropped, nor takes the loop's time.
    """

    def __init__(
        self, listening: socket.socket, enter: Callable[[socket.socket, str], None]
    ) -> None:
        """Needs a running loop. `enter`: is given the socket and the group of its address."""
        self._loop = asyncio.get_running_loop()
        self._socket = listening
        self._enter = enter
        self._newcomers = Newcomers()
        self._again: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Accept no more, and close the socket."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _watch(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        # One that is let in at a time: callers who connect very often leave time for all else.
        for _ in range(_SENT_AWAY_AT_ONCE):
            try:
                accepted, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._socket)
                self._again = self._loop.call_later(_AGAIN_SECONDS, self._watch)
                return
            address = address_group(str(peer[0]))
            if self._newcomers.let_in(address, self._loop.time()):
                accepted.setblocking(False)
                self._enter(accepted, address)
                return
            accepted.close()
