"""Long works, a few at a time, in fair turns of tenants: of any kind, or in threads.

As much may wait as the room holds, which tenants share. Work that has begun goes on when its caller
leaves, so it counts until it is done.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.queue.fair_queue import FairQueue
from batchedmodel_scheduling.queue.shared_room import SharedRoom

Result = TypeVar("Result")


class WorkFailed(Exception):
    """Work raised what no future takes, or what would end the loop; the message names it."""


class FairTurns:
    """The line in front of what does the works; used by one loop."""

    def __init__(self, *, at_once: Callable[[], int], room: int) -> None:
        """`at_once`: works that are done at a time; `room`: work that may wait or be done."""
        self._at_once = at_once
        self._running = 0
        self._line: FairQueue[asyncio.Future[None]] = FairQueue()
        self.room: Final = SharedRoom(room)

    def refusal(self, share: Share, size: int) -> Rejection | None:
        """Why so much work may not come; None if it may."""
        return self.room.refusal(share, size)

    async def take_turn(
        self,
        share: Share,
        size: int,
        begin: Callable[[], asyncio.Future[Result]],
    ) -> Result:
        """What a work of this size gives, which is begun once it is its tenant's turn.

        Tenants take turns by size. There must be as much room.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.room.take(share, size)
        self._line.push(share, turn, work=size)
        self._begin()
        try:
            await turn
            doing = begin()
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._done(share, size)  # its turn had come, and it did not begin
            else:
                turn.cancel()
                self._line.cancel(turn)
                self.room.give_back(share.tenant, size)
            raise

        def done(work: asyncio.Future[Result]) -> None:
            if not work.cancelled():
                work.exception()  # looked at, or asyncio logs it where the caller has left
            self._done(share, size)

        doing.add_done_callback(done)
        try:
            return await asyncio.shield(doing)
        finally:
            # What it raised has this frame in its traceback: together they would keep what the work
            # had in its hands until somebody looks for garbage.
            del doing

    def _begin(self) -> None:
        while self._running < self._at_once() and (turn := self._line.first()) is not None:
            self._line.leave(turn)
            if not turn.cancelled():
                self._running += 1
                turn.set_result(None)

    def _done(self, share: Share, size: int) -> None:
        self._running -= 1
        self.room.give_back(share.tenant, size)
        self._begin()


class FairThreads(FairTurns):
    """Threads for work that lets go of the interpreter's lock."""

    def __init__(self, executor: Executor, *, at_once: int, room: int) -> None:
        """`at_once`: how many threads the executor has; `room`: work that may wait or be done."""
        super().__init__(at_once=lambda: at_once, room=room)
        self._executor = executor

    async def do(self, share: Share, size: int, work: Callable[[], Result]) -> Result:
        """What `work` returns or raises, which there is room for, once it is its tenant's turn.

        Raises `WorkFailed` in the place of what is no `Exception`, and of `StopIteration`.
        """
        loop = asyncio.get_running_loop()
        begin = partial(loop.run_in_executor, self._executor, partial(_done, work))
        return await self.take_turn(share, size, begin)

    def close(self) -> None:
        """What has begun goes on to its end."""
        self._executor.shutdown(wait=False)


def _done(work: Callable[[], Result]) -> Result:
    try:
        return work()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise WorkFailed(f"{type(error).__name__}: {error}") from error
