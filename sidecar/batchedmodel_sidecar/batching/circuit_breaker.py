"""Whether the server behind gets work at present: it rests when it asks for it, or keeps failing.

Pure; owned by the batcher, which tells it how batches end. After several whole batches in a row
that the server could not answer the circuit opens: nothing is sent for a pause that doubles, then
one batch tries (half open), and its success closes the circuit. The idea is Nygard's (Release It!,
2007). A batch that ran while another one failed is no new evidence, whatever becomes of it: a
server that dies takes all its batches with it, and has died once.

The evidence comes from several callers: what one of them meets again and again may be its own
doing, and counts for half of what is needed at most. Where all that fails is one caller's, a probe
tells whether the server is ill: a request that it answered before.

An upstream server that refuses all calls of a batch may be broken, or the calls may be bad. A small
batch of these weighs little, so that one bad call that is sent again and again hurts nobody.
"""

import math
from collections.abc import Iterable
from typing import Final

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_sidecar.batching.batch_reply import RawReply
from batchedmodel_sidecar.errors import Busy, Lost, Unserved

_FAILURES: Final = 5
_SEVERAL: Final = 4
"""Refused calls that weigh as much as a batch that failed as a whole."""
_OF_ONE_CALLER: Final = _FAILURES / 2
_MOST_CALLERS: Final = 64
_ROUNDING: Final = 1e-6
_PROBES_APART: Final = 1.0  # seconds
_FIRST_PAUSE: Final = 1.0  # seconds
_LONGEST_PAUSE: Final = 30.0
_AFTER_A_LOSS: Final = 0.2  # seconds
# Seconds, whatever the server asks for. Not a pair: see docs/adr/0019.
_SHORTEST_REST: Final = 0.05
_LONGEST_REST: Final = 5.0


class CircuitBreaker:
    """One server's; times are monotonic seconds."""

    def __init__(self) -> None:
        self._evidence: dict[str, float] = {}
        """By caller the weight of the batches that failed since one was answered; a batch's callers
        share its weight. Of callers beyond `_MOST_CALLERS` nothing is noted."""
        self._found = 0.0
        """The weight of all these batches."""
        self.wants_probe = False
        """Whether the last batch gave reason for one."""
        self._probed_at = -math.inf
        self._open = False
        self._pauses = 0
        """Since it opened."""
        self._failed_at = -math.inf
        """When the last batch failed."""
        self._pauses_until = -math.inf
        """Because the circuit is open or the server died: then a batch tries, or a server comes."""
        self._rests_until = -math.inf
        """Because the server asked for it: it is sound, and what its batches say counts."""
        self._gone = False
        """Whether the server seems to have died."""

    def closed_to_callers(self, now: float) -> str | None:
        """Why nobody should come now; None when somebody may, if only as a trial.

        After the pause callers are let in again: without them there would be nothing to try.
        """
        if not self._open or now >= self._resumes_at:
            return None
        return "the model answered none of the last batches; it is tried again soon"

    def back(self) -> None:
        """The server is there again: one that had gone has started anew, and is tried at once."""
        if self._gone:
            self._gone = False
            self._pauses_until = self._rests_until = -math.inf

    def replied(
        self, reply: BatchReply, now: float, *, since: float, callers: Iterable[str]
    ) -> None:
        """A batch has a reply, in which an upstream server may have answered no row at all.

        The server had it `since` then; `callers` are those whose rows it had.
        """
        if not isinstance(reply, RawReply) or reply.answered:
            self.succeeded(now)
        elif reply.refused:
            self._fail(min(1.0, reply.refused / _SEVERAL), now, since, callers)

    def succeeded(self, now: float) -> None:
        """A batch was answered."""
        if now >= self._pauses_until:  # a batch that left before the pause does not end it
            self._heal()

    def probe_due(self, now: float) -> bool:
        """Whether to ask the server something that it answered before; if so that is noted.

        There are three reasons: enough has failed, but it was all one caller's; a trial failed,
        and its rows may have been bad; the server asked that one key rests.
        """
        wanted, self.wants_probe = self.wants_probe, False
        if not wanted or now < self._probed_at + _PROBES_APART or now < self._rests_until:
            return False
        self._probed_at = now
        return True

    def probe_answered(self) -> None:
        """The server is well: what failed were the requests."""
        self._pauses_until = -math.inf
        self._heal()

    def probe_failed(self, error: Unserved, now: float) -> None:
        """What the server answered before it does not answer now."""
        if isinstance(error, Busy):
            self.rest(now, error.seconds)
        elif error.status >= 500 and self._found >= _FAILURES - _ROUNDING and not self._open:
            self._open = True
            self._pause(now)

    def unserved(
        self,
        error: Unserved,
        now: float,
        *,
        since: float,
        callers: Iterable[str],
        pauses: bool = True,
    ) -> None:
        """A batch that the server had `since` then has no answer, or not for all of its rows.

        `pauses`: whether a connection that broke says that the server may have gone.
        """
        if isinstance(error, Busy):
            self.rest(now, error.seconds)
        elif error.status >= 500:
            # A whole batch, and none of its members is to blame.
            self._fail(1.0, now, since, callers)
        if isinstance(error, Lost) and pauses:
            # The link hears of it a little later; a batch sent before that would be lost as well.
            self._pauses_until = max(self._pauses_until, now + _AFTER_A_LOSS)
            self._gone = True

    def rest(self, now: float, seconds: float) -> None:
        """The server asked not to be asked for so long."""
        self._rests_until = max(self._rests_until, self._rest_ends(now, seconds))

    def rest_of_key(self, now: float, seconds: float) -> float:
        """The server asked for a rest from one kind of request; returns the rest's end."""
        self.wants_probe = True
        return self._rest_ends(now, seconds)

    @staticmethod
    def _rest_ends(now: float, seconds: float) -> float:
        """The end of a rest that the server asked for; it may ask for nonsense."""
        return now + min(_LONGEST_REST, max(_SHORTEST_REST, seconds))

    def depth(self, depth: int, now: float, *, slow: int = 0) -> int:
        """How many batches the server may hold, of `depth` that it can.

        `slow`: how many of those that it has are overdue. A trial does not wait for them.
        """
        if now < self._resumes_at:
            return 0
        return min(depth, slow + 1) if self._open else depth

    def changes_at(self, now: float) -> float:
        """When to look again; infinity when only an event can change anything."""
        return self._resumes_at if now < self._resumes_at else math.inf

    @property
    def _resumes_at(self) -> float:
        return max(self._pauses_until, self._rests_until)

    def _fail(self, weight: float, now: float, since: float, callers: Iterable[str]) -> None:
        if now < self._pauses_until or since < self._failed_at:
            return  # it ran while the last one failed, so it is no new evidence
        self._failed_at = now
        self._gone = False  # this batch was sent to a server that was there
        several = set(callers)
        for caller in several:
            if caller in self._evidence or len(self._evidence) < _MOST_CALLERS:
                found = self._evidence.get(caller, 0.0) + weight / len(several)
                self._evidence[caller] = min(_OF_ONE_CALLER, found)
        self._found += weight
        self.wants_probe = self._open or self._found >= _FAILURES - _ROUNDING
        if not self._open and sum(self._evidence.values()) >= _FAILURES - _ROUNDING:
            self._open, self.wants_probe = True, False
        if self._open:
            self._pause(now)

    def _heal(self) -> None:
        self._evidence.clear()
        self._found = 0.0
        self._open, self._pauses = False, 0
        self._gone = self.wants_probe = False

    def _pause(self, now: float) -> None:
        pause = _FIRST_PAUSE * 2 ** min(self._pauses, 10)
        self._pauses += 1
        self._pauses_until = now + min(_LONGEST_PAUSE, pause)
