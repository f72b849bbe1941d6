"""The batch extension: round trips, contradictions, and nonsense of every kind."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.batch_wire import (
    ERROR,
    STATUS,
    read_reply,
    to_request,
    write_reply,
    write_request,
)
from batchedmodel_contract.inference.ragged import Ragged, ragged
from batchedmodel_contract.inference.tensors import Buffer, Datatype, Tensor, join_byte_elements
from batchedmodel_contract.inference.v2 import read_body, write_body
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.spec import MAX_BATCH_SIZE
from support.examples import examples
from support.strategies import batch_replies, ragged_batches

TOKENS = ragged(
    "input_ids",
    Datatype.INT64,
    [((2,), struct.pack("<2q", 1, 2)), ((0,), b""), ((1,), struct.pack("<q", 3))],
)
TEXTS = ragged(
    "text",
    Datatype.BYTES,
    [((1,), join_byte_elements(iter([text]))) for text in (b"one", b"", b"three")],
)
REPLY = BatchReply(
    outputs=(TOKENS, TEXTS),
    statuses=(200, 400, 200),
    errors=("", "holds no token", ""),
    compute_seconds=0.005,
    queue_seconds=0.001,
    tokens=3,
    padded_tokens=6,
)


def alike(reply: BatchReply) -> BatchReply:
    """The same with each output in one buffer, as whoever receives it has it."""
    outputs = tuple(output._replace(parts=(bytes(output.data),)) for output in reply.outputs)
    return replace(reply, outputs=outputs)


def joined(written: tuple[int, list[Buffer]]) -> tuple[bytes, str]:
    length, parts = written
    return b"".join(parts), str(length)


def edited(edit: Callable[[dict[str, Any]], object], body: bytes, length: str) -> tuple[bytes, str]:
    """The body with its JSON head changed."""
    head = json.loads(body[: int(length)])
    edit(head)
    text = json.dumps(head).encode()
    return text + body[int(length) :], str(len(text))


def received_request(body: bytes, length: str) -> BatchRequest:
    """The batch, read as the model server reads it."""
    head, tensors = read_body(body, length, "inputs", json.loads)
    return to_request(head, tensors)


def read_with_items(body: bytes, length: str | None) -> BatchReply:
    """The reply, once the items of every output were seen to add up."""
    reply = read_reply(body, length)
    for output in reply.outputs:
        assert len(output.items()) == len(reply.statuses)
    return reply


def reply_refusal(body: bytes, length: str | None) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_with_items(body, length)
    return str(caught.value)


def tensor(name: str, datatype: Datatype, shape: tuple[int, ...], data: bytes) -> Tensor:
    return Tensor(name=name, datatype=datatype, shape=shape, data=data)


def reply_of(*outputs: Tensor, **parameters: Any) -> tuple[bytes, str]:
    """A reply written tensor by tensor, so that it can be wrong."""
    head = {
        "parameters": {
            "compute_us": 1,
            "queue_us": 1,
            "tokens": 1,
            "padded_tokens": 1,
            "passes": 1,
        }
        | parameters
    }
    return joined(write_body(head, outputs, "outputs", lambda value: json.dumps(value).encode()))


ONE_STATUS = tensor(STATUS, Datatype.INT32, (1,), struct.pack("<i", 200))
TWO_STATUSES = tensor(STATUS, Datatype.INT32, (2,), struct.pack("<2i", 200, 400))
ONE_ERROR = tensor(ERROR, Datatype.BYTES, (1,), bytes(4))
ONE_OUTPUT = tensor("y", Datatype.FP32, (2,), bytes(8))
ONE_SHAPE = tensor("y:shapes", Datatype.INT64, (1, 1), struct.pack("<q", 2))


def test_items_keep_their_order_and_their_sizes() -> None:
    assert [bytes(item) for item in TOKENS.items()] == [
        struct.pack("<2q", 1, 2),
        b"",
        struct.pack("<q", 3),
    ]
    assert [bytes(item)[4:] for item in TEXTS.items()] == [b"one", b"", b"three"]


def test_a_batch_travels_without_padding() -> None:
    body, length = joined(write_request(BatchRequest(inputs=(TOKENS,))))
    head = json.loads(body[: int(length)])
    assert [(t["name"], t["datatype"], t["shape"]) for t in head["inputs"]] == [
        ("input_ids", "INT64", [3]),
        ("input_ids:shapes", "INT64", [3, 1]),
    ]
    assert len(body) - int(length) == 8 * 3 + 8 * 3


def test_a_failed_item_stays_inside_its_batch() -> None:
    received = read_reply(*joined(write_reply(REPLY)))
    assert alike(received) == alike(REPLY)
    assert len(received.outputs[0].items()[1]) == 0


def test_a_message_that_no_text_can_hold_does_not_spoil_the_batch() -> None:
    # A file name in an error message may hold such halves (PEP 383).
    sent = replace(REPLY, errors=("", "no file \udce4.bin", ""))
    assert read_reply(*joined(write_reply(sent))).errors[1] == "no file ?.bin"


@settings(max_examples=examples(100))
@given(st.integers(0, 5).flatmap(lambda count: ragged_batches(count, at_least=1)))
def test_a_request_survives_the_wire(inputs: tuple[Ragged, ...]) -> None:
    received = received_request(*joined(write_request(BatchRequest(inputs=inputs))))
    for there, here in zip(received.inputs, inputs, strict=True):
        assert (there.name, there.datatype) == (here.name, here.datatype)
        assert there.shapes == here.shapes
        assert b"".join(there.items()) == here.data


@settings(max_examples=examples(100))
@given(batch_replies())
def test_a_reply_survives_the_wire(sent: BatchReply) -> None:
    assert read_with_items(*joined(write_reply(sent))) == sent


CONTRADICTIONS: dict[str, tuple[tuple[bytes, str], str]] = {
    "no status": (reply_of(ONE_ERROR), "outputs: lacks :status or :error"),
    "no error": (reply_of(ONE_STATUS), "outputs: lacks :status or :error"),
    "status of another datatype": (
        reply_of(tensor(STATUS, Datatype.INT8, (3,), bytes(3)), ONE_ERROR),
        ':status: "INT8" is not INT32',
    ),
    "error of another datatype": (
        reply_of(ONE_STATUS, tensor(ERROR, Datatype.UINT8, (4,), bytes(4))),
        ':error: "UINT8" is not BYTES',
    ),
    "a status that no caller could be answered": (
        reply_of(tensor(STATUS, Datatype.INT32, (1,), struct.pack("<i", 7)), ONE_ERROR),
        ":status: 7 is neither 200 nor the status of an error",
    ),
    "more statuses than items": (
        reply_of(ONE_OUTPUT, ONE_SHAPE, TWO_STATUSES, ONE_ERROR),
        "outputs: disagree about the number of items: [1, 2]",
    ),
    "more errors than items": (
        reply_of(ONE_STATUS, tensor(ERROR, Datatype.BYTES, (2,), bytes(8))),
        "outputs: disagree about the number of items: [1, 2]",
    ),
    "data without shapes": (
        reply_of(ONE_OUTPUT, ONE_STATUS, ONE_ERROR),
        "y: travels without y:shapes",
    ),
    "shapes without data": (
        reply_of(ONE_SHAPE, ONE_STATUS, ONE_ERROR),
        "y:shapes: describes a tensor that is not there",
    ),
    "shapes of another datatype": (
        reply_of(
            ONE_OUTPUT,
            tensor("y:shapes", Datatype.INT32, (1, 1), struct.pack("<i", 2)),
            ONE_STATUS,
            ONE_ERROR,
        ),
        "y:shapes: is not INT64 of items x rank",
    ),
    "shapes of one dimension": (
        reply_of(
            ONE_OUTPUT,
            tensor("y:shapes", Datatype.INT64, (1,), struct.pack("<q", 2)),
            ONE_STATUS,
            ONE_ERROR,
        ),
        "y:shapes: is not INT64 of items x rank",
    ),
    "a negative size": (
        reply_of(
            ONE_OUTPUT,
            tensor("y:shapes", Datatype.INT64, (1, 2), struct.pack("<2q", -1, -2)),
            ONE_STATUS,
            ONE_ERROR,
        ),
        "y:shapes: has a negative size",
    ),
    "sizes beyond the data": (
        reply_of(
            ONE_OUTPUT,
            tensor("y:shapes", Datatype.INT64, (1, 1), struct.pack("<q", 2**62)),
            ONE_STATUS,
            ONE_ERROR,
        ),
        f"y: is 8 bytes long; its shapes need {2**64}",
    ),
    "elements beyond the shapes": (
        reply_of(
            tensor("y", Datatype.BYTES, (2,), bytes(8)),
            tensor("y:shapes", Datatype.INT64, (1, 1), struct.pack("<q", 1)),
            ONE_STATUS,
            ONE_ERROR,
        ),
        "y: has 2 elements; its shapes need 1",
    ),
    "items that no size vouches for": (
        reply_of(
            ONE_OUTPUT,
            tensor("y:shapes", Datatype.INT64, (10**12, 0), b""),
            ONE_STATUS,
            ONE_ERROR,
        ),
        "y:shapes: [1000000000000, 0] does not fit 2 elements in items of rank 0 to 16",
    ),
    "a rank beyond all tensors": (
        reply_of(
            ONE_OUTPUT,
            tensor("y:shapes", Datatype.INT64, (1, 17), struct.pack("<17q", *[2] * 17)),
            ONE_STATUS,
            ONE_ERROR,
        ),
        "y:shapes: [1, 17] does not fit 2 elements in items of rank 0 to 16",
    ),
    "outputs of different batches": (
        reply_of(
            ONE_OUTPUT,
            ONE_SHAPE,
            tensor("z", Datatype.FP32, (2,), bytes(8)),
            tensor("z:shapes", Datatype.INT64, (2, 1), struct.pack("<2q", 1, 1)),
            ONE_STATUS,
            ONE_ERROR,
        ),
        "tensors: disagree about the number of items",
    ),
}


@pytest.mark.parametrize(("wire", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_a_reply_that_contradicts_itself_is_refused(wire: tuple[bytes, str], message: str) -> None:
    assert reply_refusal(*wire) == message


@pytest.mark.parametrize(
    "name", ["compute_us", "queue_us", "tokens", "padded_tokens", "passes", "max_cost"]
)
@pytest.mark.parametrize(
    "value",
    [None, -1, True, "1", [], float("inf"), float("nan"), 10**400],
    ids=["null", "negative", "true", "text", "list", "infinity", "nan", "10^400"],
)
def test_a_figure_that_is_no_number_is_refused(name: str, value: object) -> None:
    message = reply_refusal(*reply_of(ONE_STATUS, ONE_ERROR, **{name: value}))
    assert message.startswith(f"parameters.{name}: ")


def test_a_reply_without_figures_is_refused() -> None:
    body, length = joined(write_reply(REPLY))
    assert reply_refusal(*edited(lambda head: head.pop("parameters"), body, length)).startswith(
        "parameters.compute_us: null"
    )


@pytest.mark.parametrize(("sent", "received"), [(None, None), (1.5, 1.5), (0.0, 0.0), (-1.0, 0.0)])
def test_a_request_tells_for_how_long_it_is_wanted(
    sent: float | None, received: float | None
) -> None:
    wire = joined(write_request(BatchRequest(inputs=(TOKENS,), wanted_seconds=sent)))
    assert received_request(*wire).wanted_seconds == received


def test_a_time_that_is_no_number_is_refused() -> None:
    wire = joined(write_request(BatchRequest(inputs=(TOKENS,), wanted_seconds=1.0)))
    spoilt = edited(lambda head: head["parameters"].update(wanted_us="soon"), *wire)
    with pytest.raises(InvalidInput, match='^parameters.wanted_us: "soon" is not a number'):
        received_request(*spoilt)


def test_a_request_whose_inputs_disagree_is_refused() -> None:
    short = ragged("mask", Datatype.INT64, [((1,), bytes(8))])
    wire = joined(write_request(BatchRequest(inputs=(TOKENS, short))))
    with pytest.raises(InvalidInput, match="tensors: disagree about the number of items"):
        received_request(*wire)


VALID, VALID_LENGTH = joined(write_reply(REPLY))


def reads_or_refuses(body: bytes, length: str | None) -> None:
    """Anything but a reply or an `InvalidInput` is a failure of the test that calls."""
    try:
        read_with_items(body, length)
    except InvalidInput as refused:
        str(refused).encode(errors="backslashreplace")


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_a_reply_with_changed_bytes_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    body = bytearray(VALID)
    for position, value in changes:
        body[position] = value
    reads_or_refuses(bytes(body), VALID_LENGTH)


@settings(max_examples=examples(300))
@given(st.integers(0, int(VALID_LENGTH) - 1), st.sampled_from([*b'0123456789-.e"[]{},: ']))
def test_a_reply_with_a_changed_head_is_read_or_refused(position: int, value: int) -> None:
    body = bytearray(VALID)
    body[position] = value
    reads_or_refuses(bytes(body), VALID_LENGTH)


@settings(max_examples=examples(200))
@given(
    st.integers(0, len(VALID) - 1), st.binary(max_size=6), st.none() | st.integers(0, len(VALID))
)
def test_a_reply_that_is_cut_or_stretched_is_read_or_refused(
    position: int, inserted: bytes, length: int | None
) -> None:
    reads_or_refuses(VALID[:position] + inserted, None if length is None else str(length))
    stretched = VALID[:position] + inserted + VALID[position:]
    reads_or_refuses(stretched, VALID_LENGTH if length is None else str(length))


@settings(max_examples=examples(200))
@given(st.data())
def test_a_reply_with_any_sizes_is_read_or_refused(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 3) | st.integers(-(2**63), 2**63 - 1), max_size=4))
    rank = data.draw(st.integers(0, 2))
    count = len(sizes) // rank if rank else data.draw(st.integers(0, 2**62))
    kept = sizes[: count * rank]
    described = tensor(
        "y:shapes", Datatype.INT64, (count, rank), struct.pack(f"<{len(kept)}q", *kept)
    )
    reads_or_refuses(*reply_of(ONE_OUTPUT, described, ONE_STATUS, ONE_ERROR))


@pytest.mark.parametrize("count", [MAX_BATCH_SIZE + 1, 100_000, 2**62])
def test_more_items_than_a_batch_may_have_are_refused_before_anything_is_made_of_them(
    count: int,
) -> None:
    # What holds nothing costs no bytes: not even its shapes are read.
    given = (
        tensor("ids", Datatype.INT64, (0,), b""),
        tensor("ids:shapes", Datatype.INT64, (count, 1), b"never read"),
    )
    with pytest.raises(InvalidInput, match=f"ids:shapes: holds {count} items; a batch has at most"):
        to_request({}, given)


def test_largest_batch_is_taken() -> None:
    given = (
        tensor("ids", Datatype.INT64, (0,), b""),
        tensor("ids:shapes", Datatype.INT64, (MAX_BATCH_SIZE, 1), bytes(8 * MAX_BATCH_SIZE)),
    )
    assert len(to_request({}, given).inputs[0].shapes) == MAX_BATCH_SIZE
