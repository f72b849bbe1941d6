"""Rows of a batch that lie in shared memory: named, not sent; what is named wrongly is refused."""

import json
import struct
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.batch_wire import (
    AnswerRoom,
    RegionGone,
    SharedRows,
    answer_room,
    read_reply,
    to_request,
    write_reply,
    write_request,
)
from batchedmodel_contract.inference.ragged import Ragged, ragged
from batchedmodel_contract.inference.tensors import Buffer, Datatype, Tensor
from batchedmodel_contract.inference.v2 import read_body, write_body
from batchedmodel_contract.invalid_input import InvalidInput
from support.examples import examples
from support.strategies import ragged_batches

SIZE: Final = 1 << 16


def placing(parts: dict[int, int]) -> Callable[[Buffer], int | None]:
    """Finds the parts that are told by their identity."""
    return lambda part: parts.get(id(part))


def sent_and_read(inputs: tuple[Ragged, ...], kept: list[bool]) -> tuple[bytes, BatchRequest]:
    """The body of a batch some of whose items lie in shared memory, and what is read of it."""
    memory, places, chosen, end = bytearray(SIZE), {}, iter(kept), 0
    placed = []
    for tensor in inputs:
        # Copies, which have identities of their own.
        parts = tuple(memoryview(bytes(part)) for part in tensor.parts)
        for part in parts:
            if next(chosen, False):
                places[id(part)] = end
                memory[end : end + len(part)] = part
                end += len(part) + 3
        placed.append(tensor._replace(parts=parts))
    shared = SharedRows("one", placing(places))
    length, written = write_request(BatchRequest(inputs=tuple(placed)), shared=shared)
    body = b"".join(written)
    head, tensors = read_body(body, str(length), "inputs", json.loads)
    return body, to_request(head, tensors, {"one": memory, "other": b""})


@settings(max_examples=examples(100))
@given(
    st.integers(1, 5).flatmap(lambda count: ragged_batches(count, at_least=1)),
    st.lists(st.booleans(), max_size=20),
)
def test_a_batch_is_the_same_wherever_its_rows_lie(
    inputs: tuple[Ragged, ...], kept: list[bool]
) -> None:
    _, received = sent_and_read(inputs, kept)
    for there, here in zip(received.inputs, inputs, strict=True):
        assert (there.name, there.datatype, there.shapes) == (
            here.name,
            here.datatype,
            here.shapes,
        )
        assert [bytes(item) for item in there.items()] == [bytes(item) for item in here.items()]
        assert bytes(there.data) == bytes(here.data)


LARGE: Final = ragged("x", Datatype.UINT8, [((1000,), b"a" * 1000), ((2000,), b"b" * 2000)])


def test_what_lies_in_shared_memory_is_not_sent() -> None:
    body, received = sent_and_read((LARGE,), [True, False])
    assert b"aaaa" not in body
    assert body.count(b"b") >= 2000
    assert [bytes(item) for item in received.inputs[0].items()] == [b"a" * 1000, b"b" * 2000]


def test_what_was_read_does_not_change_with_the_memory() -> None:
    memory = bytearray(b"a" * 100)
    head, tensors = {"parameters": {"region": "m"}}, batch([(10, 50)], (50,))
    one = to_request(head, tensors, {"m": memory}).inputs[0]
    data = one.data
    memory[:] = b"b" * 100
    assert bytes(data) == b"a" * 50


def test_a_batch_without_such_rows_names_no_memory() -> None:
    body, _ = sent_and_read((LARGE,), [False, False])
    assert b"region" not in body
    assert b":shared" not in body


def batch(
    places: list[tuple[int, int]], *shapes: tuple[int, ...], data: bytes = b""
) -> list[Tensor]:
    numbers = [number for place in places for number in place]
    sizes = [size for shape in shapes for size in shape]
    return [
        Tensor("x", Datatype.UINT8, (len(data),), data),
        Tensor("x:shapes", Datatype.INT64, (len(shapes), 1), struct.pack(f"{len(sizes)}q", *sizes)),
        Tensor(
            "x:shared", Datatype.INT64, (len(places), 2), struct.pack(f"{len(numbers)}q", *numbers)
        ),
    ]


WRONG: Final = {
    "behind the end": (batch([(90, 20)], (20,)), "leads out of the shared memory's 100 bytes"),
    "before the beginning": (batch([(-2, 20)], (20,)), "leads out of the shared memory"),
    "far away": (batch([(2**62, 20)], (20,)), "leads out of the shared memory"),
    "a negative size": (batch([(0, -20)], (20,)), "another size than its shape"),
    "another size": (batch([(0, 19)], (20,)), "another size than its shape"),
    "more than was sent": (batch([(-1, 20)], (20,), data=b"a" * 19), "leads past the data"),
    "less than was sent": (batch([(-1, 20)], (20,), data=b"a" * 21), "leaves 1 bytes"),
    "too few items": (batch([(0, 20)], (20,), (20,)), "is not INT64 of items x 2"),
    "too many items": (batch([(0, 20), (0, 20)], (20,)), "is not INT64 of items x 2"),
}


@pytest.mark.parametrize(("tensors", "rule"), WRONG.values(), ids=WRONG.keys())
def test_what_is_named_wrongly_is_refused(tensors: list[Tensor], rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        to_request({"parameters": {"region": "m"}}, tensors, {"m": bytes(100)})


@pytest.mark.parametrize("region", ["other", "", 1, None, ["m"]])
def test_memory_that_is_not_known_is_refused(region: object) -> None:
    with pytest.raises(RegionGone, match=r"parameters\.region"):
        to_request({"parameters": {"region": region}}, batch([(0, 5)], (5,)), {"m": bytes(9)})


def test_rows_without_their_memory_are_refused() -> None:
    with pytest.raises(InvalidInput, match="x:shared: names places in memory that is not shared"):
        to_request({}, batch([(0, 5)], (5,)))


def test_a_reply_names_no_places_however_many_rows_it_claims() -> None:
    named = [
        Tensor("y", Datatype.FP32, (0,), b""),
        Tensor("y:shapes", Datatype.INT64, (10**12, 0), b""),
        Tensor("y:shared", Datatype.INT64, (0, 2), b""),
        Tensor(":status", Datatype.INT32, (0,), b""),
        Tensor(":error", Datatype.BYTES, (0,), b""),
    ]
    length, parts = write_body({}, named, "outputs", lambda head: json.dumps(head).encode())
    with pytest.raises(InvalidInput, match="y:shared: names places in memory that is not shared"):
        read_reply(b"".join(parts), str(length))


def test_rows_that_name_the_same_bytes_may_not_be_more_than_the_memory() -> None:
    head, memory = {"parameters": {"region": "m"}}, {"m": bytes(100)}
    places, shapes = [(0, 10)] * 11, [(10,)] * 11
    assert to_request(head, batch(places[1:], *shapes[1:]), memory).inputs[0].size == 100
    with pytest.raises(InvalidInput, match="names more bytes than the memory's 100"):
        to_request(head, batch(places, *shapes), memory)


def test_places_of_a_tensor_that_is_not_there_are_refused() -> None:
    tensors = [one._replace(name=one.name.replace("x:shared", "y:shared")) for one in batch([])]
    with pytest.raises(InvalidInput, match="y:shared"):
        to_request({"parameters": {"region": "m"}}, tensors, {"m": b""})


class Room:
    """Room for an answer, and what puts items there."""

    def __init__(self, size: int, kept: list[bool]) -> None:
        self.memory = bytearray(size)
        self._chosen = iter(kept)
        self._filled = 0

    def place(self, item: Buffer) -> int | None:
        start, end = self._filled, self._filled + len(item)
        if not next(self._chosen, False) or end > len(self.memory):
            return None
        self.memory[start:end] = item
        self._filled = end + 3
        return start


@settings(max_examples=examples(100))
@given(
    st.integers(1, 5).flatmap(lambda count: ragged_batches(count, at_least=1)),
    st.lists(st.booleans(), max_size=20),
)
def test_an_answer_is_the_same_wherever_its_items_lie(
    outputs: tuple[Ragged, ...], kept: list[bool]
) -> None:
    count = len(outputs[0].shapes)
    sent = BatchReply(
        outputs=outputs,
        statuses=(200,) * count,
        errors=("",) * count,
        compute_seconds=0.25,
        queue_seconds=0.0,
        tokens=count,
        padded_tokens=count,
    )
    room = Room(SIZE, kept)
    length, parts = write_reply(sent, place=room.place)
    received = read_reply(b"".join(parts), str(length), room=room.memory)
    for there, here in zip(received.outputs, outputs, strict=True):
        assert (there.name, there.datatype, there.shapes) == (
            here.name,
            here.datatype,
            here.shapes,
        )
        assert [bytes(item) for item in there.items()] == [bytes(item) for item in here.items()]


def test_items_of_an_answer_that_lie_in_its_room_are_not_copied() -> None:
    room = Room(SIZE, [True, True])
    answer = BatchReply(
        outputs=(LARGE,),
        statuses=(200, 200),
        errors=("", ""),
        compute_seconds=0.0,
        queue_seconds=0.0,
        tokens=2,
        padded_tokens=2,
    )
    length, parts = write_reply(answer, place=room.place)
    body = b"".join(parts)
    assert b"aaaa" not in body
    first, _ = read_reply(body, str(length), room=room.memory).outputs[0].items()
    room.memory[0:4] = b"seen"
    assert bytes(first[:5]) == b"seena"


def test_an_answer_that_names_more_than_its_room_is_refused() -> None:
    room = Room(SIZE, [True, True])
    answer = BatchReply(
        outputs=(LARGE,),
        statuses=(200, 200),
        errors=("", ""),
        compute_seconds=0.0,
        queue_seconds=0.0,
        tokens=2,
        padded_tokens=2,
    )
    length, parts = write_reply(answer, place=room.place)
    body = b"".join(parts)
    for wrong in (room.memory[:2500], None):
        with pytest.raises(InvalidInput, match="memory"):
            read_reply(body, str(length), room=wrong)


@pytest.mark.parametrize(
    "parameters",
    [
        {"answer_region": "r", "answer_number": 1, "answer_start": -1, "answer_size": 5},
        {"answer_region": "r", "answer_number": 1, "answer_start": 1e300, "answer_size": 5},
        {"answer_region": "r", "answer_number": 1, "answer_start": "1", "answer_size": 5},
        {"answer_region": "r", "answer_number": 1, "answer_start": 1},
        {"answer_region": "r", "answer_number": -1, "answer_start": 1, "answer_size": 5},
        {"answer_region": "r", "answer_start": 1, "answer_size": 5},
    ],
)
def test_room_that_is_named_wrongly_is_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"parameters\.answer_"):
        answer_room({"parameters": parameters})


def test_a_request_says_where_its_answer_may_lie() -> None:
    room = AnswerRoom("one", 7, 4096, 70_000)
    length, written = write_request(BatchRequest(inputs=(LARGE,)), room=room)
    head, _ = read_body(b"".join(written), str(length), "inputs", json.loads)
    assert answer_room(head) == room
    assert answer_room({}) is None
    assert answer_room({"parameters": {"answer_region": 5}}) is None
