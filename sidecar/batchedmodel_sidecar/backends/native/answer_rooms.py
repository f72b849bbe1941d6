"""Room for the answers to batches in memory that the model server sees as well.

Used by the link. A batch gets room for as much as the rows of the answer before it took. What does
not fit there comes in the answer's body, as everything does where no memory is shared.
"""

from typing import Final

from batchedmodel_contract.inference.batch_wire import AnswerRoom, BatchReply
from batchedmodel_contract.inference.tensors import Buffer, Datatype
from batchedmodel_contract.processes.shared_region import LEAST
from batchedmodel_sidecar.body.shared_slots import SharedSlots

_BATCHES: Final = 3
"""Whose answers have room at the same time, whatever their size: two at the server, one unread."""
_FORGOTTEN: Final = 8
_SPARE: Final = 64
"""Bytes for each row beside its own: items begin at multiples of eight."""


class AnswerRooms:
    """How large answers were lately, and the room for the next."""

    def __init__(self, slots: SharedSlots) -> None:
        self._slots: Final = slots
        self._row_bytes = 0
        """Of the largest row lately, its small items left out."""

    def room(self, rows: int) -> tuple[AnswerRoom | None, memoryview | None]:
        """What the server is told, and the memory; None where answers come in their bodies."""
        if not self._row_bytes:
            return None, None
        size = min(rows * (self._row_bytes + _SPARE), self._slots.answers_size // _BATCHES)
        return self._slots.answer_room(size) or (None, None)

    def answered(self, reply: BatchReply, body: Buffer, room: memoryview | None) -> None:
        """Learn from a reply."""
        sizes = [0] * len(reply.statuses)
        if room is not None or len(body) >= LEAST:
            for output in reply.outputs:
                if output.datatype is not Datatype.BYTES:
                    for row, item in enumerate(output.items()):
                        sizes[row] += len(item) if len(item) >= LEAST else 0
        # Where answers differ in size, one of small ones says little of the next.
        known = max(max(sizes, default=0), self._row_bytes - self._row_bytes // _FORGOTTEN)
        self._row_bytes = known if known >= LEAST else 0

    def lost(self, room: memoryview | None) -> bool:
        """The batch has no reply, and the server may still write one.

        Returns whether so much room is lost that other memory should be shared.
        """
        return room is not None and self._slots.lose(room)
