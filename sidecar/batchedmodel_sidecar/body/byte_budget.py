"""How many bytes of bodies and answers are held at once, shared between tenants.

Only what has arrived counts: a caller that declares much and sends nothing holds nothing.
"""

from types import TracebackType
from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.queue.shared_room import SharedRoom

_FULL: Final = Rejection.QUEUE_FULL  # an enum finds its members by Python's code
_ANSWERS: Final = Share("(answers)")


class ByteBudget:
    """A bound on memory that callers can make the process hold."""

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self._room = SharedRoom(limit)

    @property
    def in_use(self) -> int:
        """Bytes that are held now."""
        return self._room.in_use

    def refusal(self, share: Share, size: int, *, already: int = 0) -> Rejection | None:
        """Why a tenant may not hold so many bytes more, for a body of which it has some.

        `TOO_LARGE` where it could not even if nobody held anything else.
        """
        return _refusal(self._room, share, size, already)

    def most(self, share: Share) -> int:
        """Bytes that a tenant may hold when nobody holds anything else."""
        return int(self._room.most(share))

    def hold(self, share: Share) -> "Hold":
        """A part that grows with what is received. The end of a `with` block gives it back."""
        return Hold(self._room, share)

    def hold_answers(self, size: int) -> None:
        """Count so many bytes more of unread answers, or less."""
        if size > 0:
            self._room.take(_ANSWERS, size)
        else:
            self._room.give_back(_ANSWERS.tenant, -size)


class Hold:
    """What one call holds of its tenant's part."""

    __slots__ = ("_room", "_size", "kept", "refused", "share")

    def __init__(self, room: SharedRoom, share: Share) -> None:
        self._room = room
        self._size = 0
        self.share: Final = share
        self.kept = 0
        """Bytes of it that are parts of an answer whose rest is awaited."""
        self.refused = _FULL
        """Why it could not grow."""

    def grow(self, size: int) -> bool:
        """Take so many bytes more; False when they do not fit, and nothing is taken."""
        refusal = _refusal(self._room, self.share, size, self._size)
        if refusal is not None:
            self.refused = refusal
            return False
        self._room.take(self.share, size)
        self._size += size
        return True

    def is_alone(self) -> bool:
        """Whether nothing else is held."""
        return self._room.in_use == self._size

    def keep(self, size: int) -> bool:
        """Take so many bytes for a part of an answer; False when they do not fit.

        The answer of who is alone always fits, since to ask again would not help.
        """
        if self.is_alone():
            self.regain(size)
        elif not self.grow(size):
            return False
        self.kept += size
        return True

    def become(self, size: int) -> bool:
        """Take so many bytes in all; False when they do not fit, and nothing changes."""
        if size > self._size:
            return self.grow(size - self._size)
        self.shrink(self._size - size)
        return True

    def lend(self, size: int, *, must: bool = False) -> "Hold | None":
        """So many bytes to a part that may be held longer; None when they do not fit.

        The spare room stays free: others need none of what this part is for. What `must` be lent is
        counted all the same, so that nobody takes more meanwhile.
        """
        room, refusal = self._room, _refusal(self._room, self.share, size, self._size)
        most = room.size - room.spare
        if refusal is None and room.in_use + size > most:
            refusal = Rejection.TOO_LARGE if self._size + size > most else Rejection.QUEUE_FULL
        if refusal is not None and not must:
            self.refused = refusal
            return None
        part = Hold(room, self.share)
        part.regain(size)
        return part

    def regain(self, size: int) -> None:
        """Take so many bytes without asking: they were given back just now, or must fit."""
        self._room.take(self.share, size)
        self._size += size

    def shrink(self, size: int) -> None:
        """Give so many bytes back early."""
        self._room.give_back(self.share.tenant, size)
        self._size -= size

    def release(self) -> None:
        """Give back all that is held."""
        size, self._size, self.kept = self._size, 0, 0
        self._room.give_back(self.share.tenant, size)

    def __enter__(self) -> "Hold":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _refusal(room: SharedRoom, share: Share, size: int, already: int) -> Rejection | None:
    refusal = room.refusal(share, size, already=already)
    never = refusal is not None and already + size > room.most(share)
    return Rejection.TOO_LARGE if never else refusal
