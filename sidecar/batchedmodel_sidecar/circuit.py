"""Whether the server behind gets work at present: it rests when it asks for it, or keeps failing.

Pure; owned by the batcher, which tells it how batches end. After several whole batches in a row
that the server could not answer the circuit opens: nothing is sent for a pause that doubles, then
one batch tries (half open), and its success closes the circuit. The idea is Nygard's (Release It!,
2007). What was under way beside a batch that failed says nothing new: a server that dies takes all
its batches with it, and has died once; all workers of one that fails for a moment fail in it.

A foreign server that refuses all calls of a batch may be broken, or the calls may be bad. A small
batch of these weighs little, so that one bad call that is sent again and again hurts nobody.
"""

import math
from typing import Final

from batchedmodel_contract.batch_wire import BatchReply
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.replies import RawReply

_FAILURES: Final = 5
_SEVERAL: Final = 4
"""Refused calls that weigh as much as a batch that failed as a whole."""
_FIRST_PAUSE: Final = 1.0  # seconds
_LONGEST_PAUSE: Final = 30.0
_AFTER_A_LOSS: Final = 0.2  # seconds
_REST_BOUNDS: Final = (0.05, 5.0)  # seconds, whatever the server asks for


class Circuit:
    """One server's; times are monotonic seconds."""

    def __init__(self) -> None:
        self._failures = 0.0
        """Batches since one was answered, each by its weight."""
        self._failed_at = -math.inf
        """When the last of them ended."""
        self._pauses_until = -math.inf
        """By the circuit or by a death: a trial is still to come, or a server."""
        self._rests_until = -math.inf
        """By request: the server is sound, and what it has is as good as any."""
        self._gone = False
        """Whether the process that had batches has died, as far as is known."""

    @property
    def _open(self) -> bool:
        return self._failures >= _FAILURES

    def closed_to_callers(self, now: float) -> str | None:
        """Why nobody should come now; None when somebody may, if only as a trial.

        Behind the pause callers are let in again: without one there would be nothing to try.
        """
        if not self._open or now >= self._resumes_at:
            return None
        return "the model answered none of the last batches; it is tried again soon"

    def back(self) -> None:
        """The server is there again: one that had gone has started anew, and is tried at once."""
        if self._gone:
            self._gone = False
            self._pauses_until = self._rests_until = -math.inf

    def replied(self, reply: BatchReply, now: float, *, since: float) -> None:
        """A batch has a reply, in which a foreign server may have answered no row at all.

        The server had it `since` then.
        """
        if not isinstance(reply, RawReply) or reply.answered:
            self.succeeded(now)
        elif reply.refused:
            self._fail(min(1.0, reply.refused / _SEVERAL), now, since)

    def succeeded(self, now: float) -> None:
        """A batch was answered."""
        if now < self._pauses_until:
            return  # it was under way before, and spares nobody the trial
        self._failures = 0.0
        self._gone = False

    def unserved(self, error: Unserved, now: float, *, since: float) -> None:
        """A batch that the server had `since` then has no answer, or not for all of its rows."""
        if isinstance(error, Busy):
            self.rest(now, error.seconds)
        elif error.status >= 500:
            # A whole batch, and none of its members is to blame.
            self._fail(1.0, now, since)
        if isinstance(error, Lost):
            # The link will hear of it as well; a batch sent before that would seem lost again.
            self._pauses_until = max(self._pauses_until, now + _AFTER_A_LOSS)
            self._gone = True

    def rest(self, now: float, seconds: float) -> None:
        """The server asked not to be asked for so long."""
        shortest, longest = _REST_BOUNDS
        self._rests_until = max(self._rests_until, now + min(longest, max(shortest, seconds)))

    def depth(self, depth: int, now: float, *, slow: int = 0) -> int:
        """How many batches the server may hold, of `depth` that it can.

        So many of those that it has are overdue: a trial does not wait for them.
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

    def _fail(self, weight: float, now: float, since: float) -> None:
        if now < self._pauses_until or since < self._failed_at:
            return  # it was under way when the last one failed, and says nothing more of the server
        self._failed_at = now
        self._failures += weight
        self._gone = False  # whatever went before, this one was there
        if self._open:
            pause = _FIRST_PAUSE * 2 ** min(int(self._failures) - _FAILURES, 10)
            self._pauses_until = now + min(_LONGEST_PAUSE, pause)
