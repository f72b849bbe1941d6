"""Packed batches and replies: round trips, what is not packed, contradictions and nonsense."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference import packed
from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.batch_wire import (
    SharedRows,
)
from batchedmodel_contract.inference.ragged import Ragged, ragged
from batchedmodel_contract.inference.tensors import Buffer, Datatype, Tensor
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.spec import MAX_BATCH_SIZE
from support.examples import examples
from support.strategies import batch_replies, ragged_batches

IDS = ragged("x", Datatype.INT64, [((2,), struct.pack("<2q", 1, 2)), ((0,), b"")])
BATCH = BatchRequest(inputs=(IDS,), wanted_seconds=1.5)
REPLY = BatchReply(
    outputs=(IDS,),
    statuses=(200, 200),
    errors=("", ""),
    compute_seconds=0.005,
    queue_seconds=0.001,
    tokens=2,
    padded_tokens=4,
    max_cost=7,
)
Read = Callable[[Buffer], object]


def one_buffer(tensors: tuple[Ragged, ...]) -> tuple[Ragged, ...]:
    """The same with the data of each in one buffer, as whoever receives it has it."""
    return tuple(one._replace(parts=(bytes(one.data),)) for one in tensors)


def body_of(parts: list[Buffer]) -> bytes:
    return b"".join(parts)


@given(ragged_batches(3, at_least=1), st.none() | st.integers(0, 10**9))
@settings(max_examples=examples(200))
def test_a_batch_is_read_as_it_was_written(
    inputs: tuple[Ragged, ...], microseconds: int | None
) -> None:
    wanted = None if microseconds is None else microseconds / 1e6
    read = packed.read_batch(
        body_of(packed.write_batch(BatchRequest(inputs=inputs, wanted_seconds=wanted)))
    )
    assert one_buffer(read.inputs) == one_buffer(inputs)
    assert read.wanted_seconds == wanted


@given(batch_replies())
@settings(max_examples=examples(200))
def test_a_reply_is_read_as_it_was_written(reply: BatchReply) -> None:
    count = len(reply.statuses)
    reply = replace(reply, statuses=(200,) * count, errors=("",) * count, long_rows=0)
    if not reply.outputs:
        return
    read = packed.read_reply(body_of(packed.write_reply(reply)))
    assert replace(read, outputs=one_buffer(read.outputs)) == replace(
        reply, outputs=one_buffer(reply.outputs)
    )


def test_items_with_parameters_and_items_in_shared_memory_are_not_packed() -> None:
    param = Tensor("k", Datatype.INT64, (2,), bytes(16))
    nowhere, somewhere = SharedRows("r", lambda _: None), SharedRows("r", lambda _: 0)
    assert packed.can_pack_batch(BATCH, None)
    assert packed.can_pack_batch(BATCH, nowhere)
    assert not packed.can_pack_batch(BATCH, somewhere)
    assert not packed.can_pack_batch(replace(BATCH, params=(param,)), None)


def test_a_reply_with_a_failed_item_is_not_packed() -> None:
    assert packed.can_pack_reply(REPLY)
    assert not packed.can_pack_reply(replace(REPLY, statuses=(200, 400)))


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (packed.read_batch, body_of(packed.write_batch(BATCH))),
        (packed.read_reply, body_of(packed.write_reply(REPLY))),
    ],
    ids=["batch", "reply"],
)
def test_a_body_that_is_cut_or_too_long_is_refused(read: Read, body: bytes) -> None:
    read(body)
    for end in range(len(body)):
        with pytest.raises(InvalidInput):
            read(body[:end])
    with pytest.raises(InvalidInput, match="1 bytes that no tensor claims"):
        read(body + b"\0")


def tensor(code: int, rank: int, size: int, name: bytes = b"x") -> bytes:
    return struct.pack("<BBHIQ", code, rank, len(name), 0, size) + name


INT64 = list(Datatype).index(Datatype.INT64)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (struct.pack("<IIQ", MAX_BATCH_SIZE + 1, 1, 0), "holds 4097 items"),
        (struct.pack("<IIQ", 1, 0, 0), "must have 1 to 1024 tensors"),
        (struct.pack("<IIQ", 1, 10**6, 0), "must have 1 to 1024 tensors"),
        (struct.pack("<IIQ", 1, 1, 0) + tensor(99, 0, 0), "is no packed batch"),
        (struct.pack("<IIQ", 1, 1, 0) + tensor(INT64, 0, 8, b"\xff") + bytes(8), "is no packed"),
        (struct.pack("<IIQ", 1, 1, 0) + tensor(INT64, 17, 0) + bytes(200), "no room for the sizes"),
        (struct.pack("<IIQ", 1, 1, 0) + tensor(INT64, 1, 8), "no room for the sizes"),
        (
            struct.pack("<IIQ", 1, 1, 0) + tensor(INT64, 1, 8) + struct.pack("<q", -1) + bytes(8),
            "negative size",
        ),
        (
            struct.pack("<IIQ", 1, 1, 0) + tensor(INT64, 1, 8) + struct.pack("<q", 2) + bytes(8),
            "another size than its shapes",
        ),
        (
            struct.pack("<IIQ", 1, 1, 0) + tensor(INT64, 0, 2**63) + bytes(8),
            "leads past the end",
        ),
        (
            struct.pack("<IIQ", 1, 2, 0) + 2 * tensor(INT64, 0, 8) + bytes(16),
            "names a tensor twice",
        ),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        packed.read_batch(body)


def test_a_number_beyond_63_bits_is_refused() -> None:
    body = bytearray(body_of(packed.write_reply(REPLY)))
    struct.pack_into("<Q", body, 24, 2**63)
    with pytest.raises(InvalidInput, match="above 2\\^63"):
        packed.read_reply(body)


@given(st.data())
@settings(max_examples=examples(300))
def test_nonsense_is_refused_or_read_as_a_batch_whose_items_add_up(data: st.DataObject) -> None:
    for read, written in (
        (packed.read_batch, packed.write_batch(BATCH)),
        (packed.read_reply, packed.write_reply(REPLY)),
    ):
        body = bytearray(body_of(written))
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        try:
            found = read(body)
        except InvalidInput:
            continue
        tensors = found.inputs if isinstance(found, BatchRequest) else found.outputs
        assert len({len(one.shapes) for one in tensors}) == 1
