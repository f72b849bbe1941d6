"""Whether the server behind gets work at present: it rests when it asks for it, or keeps failing.

Pure; owned by the batcher, which tells it how batches end. After several whole batches in a row
that the server could not answer the circuit opens: nothing is sent for a pause that doubles, then
one batch tries (half open), and its success closes the circuit. The idea is Nygard's (Release It!,
2007). What was under way beside a batch that ended the trust says nothing new: a server that dies
takes all its batches with it, and has died once.

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
_OTHERS: Final = 16
"""Batches that may come between those of the rows that a death sends again, each by itself."""
_AFTER_A_LOSS: Final = 0.2  # seconds
_REST_BOUNDS: Final = (0.05, 5.0)  # seconds, whatever the server asks for


class Circuit:
    """One server's; times are monotonic seconds."""

    def __init__(self) -> None:
        self._failures = 0.0
        """Batches since one was answered, each by its weight."""
        self._until = -math.inf
        self._gone = False
        """Whether the process that had batches has died, as far as is known."""
        self._lost = 0
        """Rows in the batches that the last death took."""
        self._lost_until = -math.inf
        """A batch that is lost before was sent before, and died the same death."""
        self._careful = 0
        """Batches that run one at a time: over whose company the server dies must be plain."""

    @property
    def _open(self) -> bool:
        return self._failures >= _FAILURES

    def closed_to_callers(self, now: float) -> str | None:
        """Why nobody should come now; None when somebody may, if only as a trial.

        Behind the pause callers are let in again: without one there would be nothing to try.
        """
        if not self._open or now >= self._until:
            return None
        return "the model answered none of the last batches; it is tried again soon"

    def back(self) -> None:
        """The server is there again: one that had gone has started anew, and is tried at once."""
        if self._gone:
            self._gone = False
            self._until = -math.inf

    def replied(self, reply: BatchReply, now: float) -> None:
        """A batch has a reply, in which a foreign server may have answered no row at all."""
        if not isinstance(reply, RawReply) or reply.answered:
            self.succeeded(now)
        elif reply.refused:
            self._fail(min(1.0, reply.refused / _SEVERAL), now)

    def succeeded(self, now: float) -> None:
        """A batch was answered."""
        if now < self._until:
            return  # as in `_fail`: a trial is still to come, and so are the rows of a death
        self._failures = 0.0
        self._gone = False
        self._careful = max(0, self._careful - 1)

    def unserved(self, error: Unserved, now: float, *, rows: int) -> None:
        """So many rows of a batch have no answer."""
        if isinstance(error, Busy):
            self.rest(now, error.seconds)
        elif error.status >= 500:
            # A whole batch, and none of its members is to blame.
            self._fail(1.0, now)
        if isinstance(error, Lost):
            self._lost = rows + (self._lost if now < self._lost_until else 0)
            self._lost_until = now + _AFTER_A_LOSS
            # The link will hear of it as well; a batch sent before that would seem lost again.
            self.rest(now, _AFTER_A_LOSS)
            self._careful = self._lost + _OTHERS
            self._gone = True

    def rest(self, now: float, seconds: float) -> None:
        """The server asked not to be asked for so long."""
        shortest, longest = _REST_BOUNDS
        self._until = max(self._until, now + min(longest, max(shortest, seconds)))

    def depth(self, depth: int, now: float) -> int:
        """How many batches the server may hold, of `depth` that it can."""
        if now < self._until:
            return 0
        return min(depth, 1) if self._open or self._careful else depth

    def changes_at(self, now: float) -> float:
        """When to look again; infinity when only an event can change anything."""
        return self._until if now < self._until else math.inf

    def _fail(self, weight: float, now: float) -> None:
        if now < self._until:
            return  # nothing leaves now: it was under way before, and says nothing of the server
        self._failures += weight
        if self._open:
            pause = _FIRST_PAUSE * 2 ** min(int(self._failures) - _FAILURES, 10)
            self._until = now + min(_LONGEST_PAUSE, pause)
