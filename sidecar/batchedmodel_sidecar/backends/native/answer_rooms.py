"""Room for the answers to batches in memory that the model server sees as well.

Used by the link. A batch gets room for as much as the rows of the answer before it took. What does
not fit there comes in the answer's body, as everything does where no memory is shared.
"""

from typing import Final

from batchedmodel_contract.inference.batch_wire import AnswerRoom, BatchReply
from batchedmodel_contract.inference.tensors import Buffer, Datatype
from batchedmodel_contract.processes.shared_region import LEAST
from batchedmodel_sidecar.body.shared_slots import SharedSlots

_SPARE: Final = 64
"""Bytes for each row beside its own: items begin at multiples of eight."""


class AnswerRooms:
    """How large answers were lately, and the room for the next."""

    def __init__(self, slots: SharedSlots) -> None:
        self._slots: Final = slots
        self._row_bytes = 0
        """Of the largest row of the last answer, where a row is large."""

    def room(self, rows: int) -> tuple[AnswerRoom | None, memoryview | None]:
        """What the server is told, and the memory; None where answers come in their bodies."""
        if not self._row_bytes:
            return None, None
        return self._slots.answer_room(rows * (self._row_bytes + _SPARE)) or (None, None)

    def answered(self, reply: BatchReply, body: Buffer, room: memoryview | None) -> None:
        """Learn from a reply."""
        if room is None and len(body) < LEAST:
            self._row_bytes = 0
            return
        sizes = [0] * len(reply.statuses)
        for output in reply.outputs:
            if output.datatype is not Datatype.BYTES:
                for row, item in enumerate(output.items()):
                    sizes[row] += len(item)
        largest = max(sizes, default=0)
        self._row_bytes = largest if largest >= LEAST else 0

    def lost(self, room: memoryview | None) -> None:
        """The batch has no reply, and the server may still write one."""
        if room is not None:
            self._slots.lose(room)
