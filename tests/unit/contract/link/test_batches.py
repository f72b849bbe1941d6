"""Batches and replies as frames: what was written is read, and what contradicts itself is not."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.inference.batch import (
    BatchReply,
    BatchRequest,
    Ragged,
)
from batchedmodel_contract.inference.tensors import Datatype, Tensor, join_byte_elements
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.batches import read_batch, read_reply, write_batch, write_reply

_REPLY = BatchReply(
    outputs=(Ragged("out", Datatype.FP32, ((1,), (2,)), (bytes(4), bytes(8))),),
    statuses=(200, 200),
    errors=("", ""),
    compute_seconds=0.25,
    queue_seconds=0.5,
    tokens=3,
    padded_tokens=4,
    passes=2,
    max_cost=7,
    long_rows=1,
)


def _whole(parts: list[bytes | bytearray | memoryview]) -> memoryview:
    return memoryview(b"".join(parts))


@st.composite
def _batches(draw: st.DrawFn) -> BatchRequest:
    items = draw(st.integers(1, 5))
    inputs = []
    for name in draw(st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=3)):
        rank = draw(st.integers(0, 3))
        shapes = tuple(
            tuple(draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank)))
            for _ in range(items)
        )
        sizes = [4 * math.prod(shape) for shape in shapes]
        parts = tuple(draw(st.binary(min_size=size, max_size=size)) for size in sizes)
        inputs.append(Ragged(name, Datatype.INT32, shapes, parts))
    words = join_byte_elements(iter([b"word"] * items))
    return BatchRequest(
        inputs=tuple(inputs),
        params=draw(st.sampled_from([(), (Tensor("p", Datatype.BYTES, (items,), words),)])),
        wanted_seconds=draw(st.sampled_from([None, 0.0, 2.5])),
        version=draw(st.sampled_from([None, "3"])),
        adapters=draw(st.sampled_from([(), (1,) * items])),
    )


@given(_batches())
def test_a_batch_is_read_as_it_was_written(batch: BatchRequest) -> None:
    arrived = read_batch(_whole(write_batch(batch)))
    assert replace(arrived, inputs=(), params=()) == replace(batch, inputs=(), params=())
    for mine, theirs in zip(batch.inputs, arrived.inputs, strict=True):
        assert mine[:3] == theirs[:3]
        assert [*map(bytes, mine.items())] == [*map(bytes, theirs.items())]
    assert [(one.name, bytes(one.data)) for one in arrived.params] == [
        (one.name, bytes(one.data)) for one in batch.params
    ]


@given(_batches(), st.data())
def test_no_byte_that_is_changed_or_missing_raises_anything_else(
    batch: BatchRequest, data: st.DataObject
) -> None:
    """Would have caught a length that leads out of the content, or memory taken for a count."""
    wire = bytearray(_whole(write_batch(batch)))
    at = data.draw(st.integers(0, len(wire) - 1))
    wire[at] = data.draw(st.integers(0, 255))
    for content in (wire, wire[:at]):
        try:
            read_batch(memoryview(bytes(content)))
        except InvalidInput:
            continue


def test_items_in_shared_memory_are_not_sent() -> None:
    memory = memoryview(bytes(range(256)) * 2)
    item = memory[8:264]
    batch = BatchRequest(inputs=(Ragged("x", Datatype.UINT8, ((256,), (1,)), (item, b"z")),))
    parts = write_batch(batch, lambda part: 8 if part is item else None)
    assert sum(map(len, parts)) < 256
    arrived = read_batch(_whole(parts), memory)
    assert [*map(bytes, arrived.inputs[0].items())] == [bytes(item), b"z"]
    with pytest.raises(InvalidInput, match="not shared here"):
        read_batch(_whole(parts))
    with pytest.raises(InvalidInput, match="leads out"):
        read_batch(_whole(parts), memory[:263])


def test_a_reply_is_read_as_it_was_written() -> None:
    arrived = read_reply(_whole(write_reply(_REPLY)))
    assert [*map(bytes, arrived.outputs[0].items())] == [bytes(4), bytes(8)]
    assert replace(arrived, outputs=()) == replace(_REPLY, outputs=())


def test_a_reply_tells_the_status_and_error_of_an_item_that_failed() -> None:
    failed = replace(_REPLY, statuses=(200, 400), errors=("", "no é"))
    assert read_reply(_whole(write_reply(failed))).errors == ("", "no é")
    odd = replace(_REPLY, statuses=(200, 200_000))
    with pytest.raises(InvalidInput, match="status of an error"):
        read_reply(_whole(write_reply(odd)))
