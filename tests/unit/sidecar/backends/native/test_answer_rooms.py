"""Room for answers: as much as answers took lately, and none where nothing could lie there."""

import os
from collections.abc import Iterator, Sequence

import pytest

from batchedmodel_contract.inference.batch_wire import BatchReply
from batchedmodel_contract.inference.ragged import ragged
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_sidecar.backends.native.answer_rooms import AnswerRooms
from batchedmodel_sidecar.body.shared_slots import Region, SharedSlots

SIZE = 64 << 20
ANSWERS = SIZE // 4
LARGE = 600_000


@pytest.fixture
def slots() -> Iterator[SharedSlots]:
    made = SharedSlots(SIZE)
    rows = Region.of(SIZE)
    answers = Region.of(made.answers_size, rows.name)
    made.use(rows, answers)
    yield made
    for region in (rows, answers):
        os.close(region.descriptor)


def reply(*rows: Sequence[int], datatype: Datatype = Datatype.UINT8) -> BatchReply:
    """An answer to each row, with outputs of so many bytes."""
    count = len(rows)
    return BatchReply(
        outputs=tuple(
            ragged(f"y{number}", datatype, [((size,), bytes(size)) for size in column])
            for number, column in enumerate(zip(*rows, strict=True))
        ),
        statuses=(200,) * count,
        errors=("",) * count,
        compute_seconds=0.0,
        queue_seconds=0.0,
        tokens=count,
        padded_tokens=count,
    )


def answered(rooms: AnswerRooms, answer: BatchReply) -> None:
    rooms.answered(answer, b"".join(part for one in answer.outputs for part in one.parts), None)


def asked(rooms: AnswerRooms, rows: int) -> int:
    told, _ = rooms.room(rows)
    return 0 if told is None else told.size


def test_before_a_large_answer_there_is_no_room(slots: SharedSlots) -> None:
    rooms = AnswerRooms(slots)
    assert rooms.room(4) == (None, None)
    answered(rooms, reply([1000], [2000]))
    assert rooms.room(4) == (None, None)


def test_a_batch_has_room_for_rows_as_large_as_the_largest_of_lately(slots: SharedSlots) -> None:
    rooms = AnswerRooms(slots)
    answered(rooms, reply([LARGE, 10], [1000, 10]))
    assert 4 * LARGE <= asked(rooms, 4) <= 4 * LARGE + 1000
    answered(rooms, reply([100, 10]))
    assert asked(rooms, 1) >= LARGE * 7 // 8, "one batch of small answers says little of the next"
    for _ in range(30):
        answered(rooms, reply([100, 10]))
    assert rooms.room(4) == (None, None)


def test_what_is_sent_anyway_has_no_room(slots: SharedSlots) -> None:
    rooms = AnswerRooms(slots)
    answered(rooms, reply([20_000] * 8))
    assert rooms.room(1) == (None, None)


def test_one_very_large_row_leaves_room_for_the_next_batch(slots: SharedSlots) -> None:
    rooms = AnswerRooms(slots)
    answered(rooms, reply([8 << 20], [100]))
    assert asked(rooms, 64) == ANSWERS // 3


def test_where_much_is_lost_other_memory_is_wanted_and_rooms_of_before_do_not_count(
    slots: SharedSlots,
) -> None:
    rooms = AnswerRooms(slots)
    answered(rooms, reply([1 << 20]))
    _, memory = rooms.room(1)
    assert not rooms.lost(None)
    lost = [rooms.lost(rooms.room(1)[1]) for _ in range(4)]
    assert lost == [False, False, False, True], "a quarter of sixteen megabytes"
    others = Region.of(slots.answers_size, "other")
    slots.use(Region.of(SIZE, "other"), others)
    assert not rooms.lost(memory)
    assert [rooms.lost(rooms.room(1)[1]) for _ in range(3)] == [False] * 3
