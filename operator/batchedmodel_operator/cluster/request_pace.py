"""How often Kopf may ask for one thing, pure.

It watches anew as soon as a watch has ended, and lists a tenth of a second after a version was too
old. Where a server ends each watch at once, that makes thousands of requests a second.
"""

from typing import Final

_APART_SECONDS: Final = 1.0
_AT_ONCE: Final = 4
"""Requests that need not wait, so that a connection which is lost now and then costs no delay."""


class RequestPace:
    """A few requests for one thing at once, and then one a second."""

    def __init__(self) -> None:
        self._paid_until: dict[str, float] = {}
        """When the requests so far would end at the steady rate, by what they ask for."""

    def seconds_to_wait(self, what: str, now: float) -> float:
        """For a request that is made now, monotonic seconds; it counts as made."""
        paid_until = max(now, self._paid_until.get(what, now)) + _APART_SECONDS
        self._paid_until[what] = paid_until
        return max(0.0, paid_until - now - _AT_ONCE * _APART_SECONDS)
