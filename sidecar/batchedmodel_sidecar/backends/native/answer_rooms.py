"""Room for the answers to batches in memory that the model server sees as well.

Used by the link. A batch gets room for rows as large as the largest of lately. What does not fit
there comes in the answer's body, as everything does where no memory is shared. Room of a batch
without a reply is used again when the server cannot write there any more; see `shared_region`.
"""

from typing import Final, NamedTuple

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_contract.inference.batch_wire import (
    AnswerRoom,
)
from batchedmodel_contract.inference.tensors import Buffer, Datatype
from batchedmodel_contract.manifest.tenants import NOBODY
from batchedmodel_contract.processes.shared_region import LARGEST, LEAST, lock
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_slots import Region

_PART: Final = 4
"""Of the budget of bodies. A row that nobody reads keeps its batch's whole room."""
_BATCHES: Final = 3
"""Whose answers have room at the same time, whatever their size: two at the server, one unread."""
_FORGOTTEN: Final = 8
_SPARE: Final = 64
"""Bytes for each row beside its own: items begin at multiples of eight."""


class Room(NamedTuple):
    """Where the server may put the answer to one batch."""

    told: AnswerRoom
    """As the batch names it."""
    memory: memoryview
    region: Region


class AnswerRooms:
    """The region for answers that is shared at present, if any, and who has room there."""

    def __init__(self, budget: ByteBudget) -> None:
        """`budget`: where room counts until the server is done with it."""
        self._budget = budget
        self.size: Final = max(LEAST, min(budget.limit // _PART, LARGEST))
        """Of a region; only what was written takes memory."""
        self._region: Region | None = None
        self._next = 0
        """The number of the next room."""
        self._at_server: dict[int, Room] = {}
        """Those in which the server may write, by their numbers."""
        self._lost: list[Room] = []
        """Those of them for which nobody waits any more."""
        self._row_bytes = 0
        """Of the largest row lately, its small items left out."""

    def use(self, region: Region) -> None:
        """Let answers lie in a region, which the server has taken."""
        self._region, self._next = region, 0

    def retire(self) -> None:
        """Use nothing of the present region again: it is the server's no more."""
        if self._region is not None:
            self._region.retire()
        self._region = None
        for room in list(self._at_server.values()):
            self._free(room)
        self._lost.clear()

    def room(self, rows: int) -> Room | None:
        """Room for the answer to a batch; None where it comes in its body."""
        region = self._region
        if region is None or not self._row_bytes:
            return None
        self._find_lost(region)
        size = min(rows * (self._row_bytes + _SPARE), self.size // _BATCHES)
        if size < LEAST or not self._budget.hold_room(size):
            return None
        memory = region.slot(size, NOBODY)
        if memory is None:
            self._budget.give_room_back(size)
            return None
        start = region.place(memory)
        assert start is not None, "a slot lies outside its region: our bug"
        room = Room(AnswerRoom(region.name, self._next, start, size), memory, region)
        self._at_server[self._next] = room
        self._next += 1
        return room

    def over(self, room: Room | None, *, answered: bool) -> None:
        """A batch has ended; unless it was answered, the server may still write an answer."""
        if room is None or room.region is not self._region:
            return
        if answered:
            self._free(room)
        else:
            self._lost.append(room)
            self._find_lost(room.region)

    def learn(self, reply: BatchReply, body: Buffer, room: Room | None) -> None:
        """See how large an answer was."""
        sizes = [0] * len(reply.statuses)
        if room is not None or len(body) >= LEAST:
            for output in reply.outputs:
                if output.datatype is not Datatype.BYTES:
                    for row, item in enumerate(output.items()):
                        sizes[row] += len(item) if len(item) >= LEAST else 0
        # Where answers differ in size, one of small ones says little of the next.
        known = max(max(sizes, default=0), self._row_bytes - self._row_bytes // _FORGOTTEN)
        self._row_bytes = known if known >= LEAST else 0

    def _find_lost(self, region: Region) -> None:
        """Free those of the lost rooms in which the server cannot write any more."""
        if not self._lost:
            return
        for room in [one for one in self._lost if lock(region.descriptor, one.told.number)]:
            self._lost.remove(room)
            self._free(room)
        # Locks that lie side by side are one for the system, which looks through them all.
        if ended := min(self._at_server, default=self._next):
            lock(region.descriptor, 0, ended)

    def _free(self, room: Room) -> None:
        del self._at_server[room.told.number]
        self._budget.give_room_back(room.told.size)
