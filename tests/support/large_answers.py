"""Answers with outputs of given sizes, and rooms that have learned from one."""

from collections.abc import Sequence

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_contract.inference.ragged import ragged
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_sidecar.backends.native.answer_rooms import AnswerRooms
from batchedmodel_sidecar.body.byte_budget import ByteBudget


def answer_of(*rows: Sequence[int]) -> BatchReply:
    """An answer to each row, with outputs of so many bytes."""
    count = len(rows)
    return BatchReply(
        outputs=tuple(
            ragged(f"y{number}", Datatype.UINT8, [((size,), bytes(size)) for size in column])
            for number, column in enumerate(zip(*rows, strict=True))
        ),
        statuses=(200,) * count,
        errors=("",) * count,
        compute_seconds=0.0,
        queue_seconds=0.0,
        tokens=count,
        padded_tokens=count,
    )


def learned(rooms: AnswerRooms, *rows: Sequence[int]) -> AnswerRooms:
    """The same rooms, after an answer to such rows came in its body."""
    answer = answer_of(*rows)
    body = b"".join(part for one in answer.outputs for part in one.parts)
    rooms.learn(answer, body, None)
    return rooms


def rooms_of(budget: ByteBudget, row: int) -> AnswerRooms:
    """Of a server that answered a row with so many bytes lately."""
    return learned(AnswerRooms(budget), [row])
