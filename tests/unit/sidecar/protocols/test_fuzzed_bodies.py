"""Whatever callers send to any protocol: rows, or a refusal of the family that is answered 4xx."""

import time
from collections.abc import Mapping
from typing import Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.tensors import Tensor
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.errors import CallError, Rejected
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.headers import declines_batching, options_of_headers, request_id
from batchedmodel_sidecar.protocols.protocol import PublicProtocol
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.table import public_protocols
from batchedmodel_sidecar.protocols.v2 import V2Protocol
from support.echo_server import EVERY_DATATYPE
from support.examples import examples
from support.right_bodies import EVERYTHING, RIGHT, TEXTS, Right, damaged
from support.sidecar_world import MODEL
from support.strategies import json_values
from support.v2_bodies import binary_body as written

LONGEST_SECONDS: Final = 5.0

ADAPTERS: Final = public_protocols()
TARGETS: Final = [
    (adapter, model) for adapter in ADAPTERS.values() for model in (TEXTS, EVERYTHING, MODEL)
]


async def rows_or_refusal(
    adapter: PublicProtocol, model: ReadyModel, body: bytes, length: str | None = None
) -> bool:
    """Whether there are rows; anything but rows and refusals of the family is raised."""
    started = time.perf_counter()
    try:
        parsed = await adapter.parse(body, length, model, 4096)
    except InvalidInput as refused:
        told: CallError = CallError(str(refused), status=400, field=refused.mistake.field)
    except Rejected as refused:
        told = refused
    else:
        assert parsed.call.rows
        names = [spec.name for spec in model.description.inputs]
        assert all(len(row.values) == len(names) for row in parsed.call.rows)
        return True
    finally:
        assert time.perf_counter() - started < LONGEST_SECONDS
    assert 400 <= told.status < 500
    # The refusal itself can be sent.
    orjson.loads(adapter.error(told).data)
    return False


@pytest.mark.parametrize("index", range(len(RIGHT)))
async def test_the_bodies_that_are_damaged_here_are_right_in_themselves(index: int) -> None:
    endpoint, model, document = RIGHT[index]
    assert await rows_or_refusal(ADAPTERS[endpoint], model, orjson.dumps(document))


@settings(max_examples=examples(400))
@given(
    st.sampled_from(TARGETS),
    st.binary(max_size=100),
    st.none() | st.text(max_size=4) | st.integers(0, 110).map(str),
)
async def test_any_bytes(
    target: tuple[PublicProtocol, ReadyModel], body: bytes, length: str | None
) -> None:
    await rows_or_refusal(*target, body, length)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(st.sampled_from(TARGETS), json_values())
async def test_any_json(target: tuple[PublicProtocol, ReadyModel], document: object) -> None:
    try:
        body = orjson.dumps(document)
    except TypeError:
        return  # half a surrogate pair, or an integer that this writer does not write
    await rows_or_refusal(*target, body)


@pytest.mark.slow
@settings(max_examples=examples(1500))
@given(damaged())
async def test_a_right_body_with_a_value_changed(
    damage: tuple[Endpoint, ReadyModel, bytes],
) -> None:
    endpoint, model, body = damage
    await rows_or_refusal(ADAPTERS[endpoint], model, body)


@settings(max_examples=examples(500))
@given(st.sampled_from(RIGHT), st.integers(0, 400), st.binary(max_size=4), st.integers(0, 3))
async def test_a_right_body_with_bytes_changed(
    right: Right, at: int, damage: bytes, lost: int
) -> None:
    endpoint, model, document = right
    body = orjson.dumps(document)
    await rows_or_refusal(ADAPTERS[endpoint], model, body[:at] + damage + body[at + lost :])


def binary_body() -> tuple[bytes, int]:
    """Every datatype in binary, two rows of one element."""
    tensors = [
        Tensor(
            name=spec.name,
            datatype=spec.datatype,
            shape=(2, 1),
            data=bytes(2 * (spec.datatype.size or 4)),
        )
        for spec in EVERY_DATATYPE.inputs
    ]
    length, body = written(tensors)
    return body, length


BINARY, HEAD = binary_body()


async def test_the_binary_body_is_right_in_itself() -> None:
    assert await rows_or_refusal(V2Protocol(), EVERYTHING, BINARY, str(HEAD))


@settings(max_examples=examples(500))
@given(
    st.integers(0, len(BINARY)),
    st.binary(max_size=4),
    st.integers(0, 4),
    st.integers(-3, 3) | st.integers(-HEAD, len(BINARY)),
)
async def test_a_binary_body_with_bytes_and_lengths_changed(
    at: int, damage: bytes, lost: int, off: int
) -> None:
    body = BINARY[:at] + damage + BINARY[at + lost :]
    await rows_or_refusal(V2Protocol(), EVERYTHING, body, str(HEAD + off))


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b'{"inputs":[' + b"[" * 500_000,
        b'{"instances":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"instances":[' + b"1," * 300_000 + b"1]}",
        b'{"input":[' + b'"a",' * 300_000 + b'"a"],"model":"m"}',
        b'{"inputs":[' + b"{}," * 300_000 + b"{}]}",
        b'{"query":"a","texts":[' + b'"b",' * 300_000 + b'"b"]}',
        b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[9223372036854775807,1],"data":[1]}]}',
        b'{"model":"m","input":"' + b"a" * 1_000_000 + b'"}',
        b'{"model":"m","input":"' + b"a " * 500_000 + b'"}',
        b"1" * 1_000_000,
        b'"' + b"\\u0000" * 100_000 + b'"',
    ],
    ids=range(13),
)
async def test_a_long_or_deep_body_takes_bounded_time(body: bytes) -> None:
    for adapter, model in TARGETS:
        await rows_or_refusal(adapter, model, body)


headers = st.dictionaries(
    st.sampled_from(
        (
            "x-request-timeout-ms x-request-priority x-request-group x-batch traceparent "
            "x-request-id"
        ).split()
    ),
    st.text(max_size=80) | st.from_regex(r"[a-z0-9]{1,9};n=\d{1,5}") | st.integers().map(str),
)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(headers)
def test_any_headers_are_understood_or_refused(given_headers: Mapping[str, str]) -> None:
    named = request_id(given_headers)
    assert named is None or named.isprintable()
    try:
        declines_batching(given_headers)
        options_of_headers(given_headers, traced=True)
    except InvalidInput as refused:
        orjson.dumps(str(refused))
