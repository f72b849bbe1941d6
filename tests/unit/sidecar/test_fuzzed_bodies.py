"""Whatever callers send to any protocol: rows, or a refusal of the family that is answered 4xx."""

import copy
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.description import RAGGED, TensorSpec
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.tensors import Datatype, Tensor
from batchedmodel_contract.v2 import write_body
from batchedmodel_sidecar.errors import CallError, Rejected
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Adapter
from batchedmodel_sidecar.protocols.classify import ClassifyAdapter
from batchedmodel_sidecar.protocols.openai import EmbeddingsAdapter
from batchedmodel_sidecar.protocols.rerank import RerankAdapter
from batchedmodel_sidecar.protocols.v1 import PredictAdapter
from batchedmodel_sidecar.protocols.v2 import V2Adapter
from batchedmodel_sidecar.terms import declines_batching, request_id, wishes_of_headers
from batchedmodel_sidecar.tokens import Tokens
from support.echo_server import EVERY_DATATYPE, echoing
from support.sidecar_world import MODEL
from support.strategies import json_values
from support.text_handlers import Classifier, Embedder, Ranker, tokenizer_json

LONGEST_SECONDS: Final = 5.0

TEXTS: Final = replace(
    MODEL,
    description=replace(
        MODEL.description,
        inputs=tuple(
            TensorSpec(name=name, datatype=Datatype.INT64, shape=(RAGGED,), max_length=16)
            for name in ("ids", "segments")
        ),
        outputs=(
            TensorSpec(name="vector", datatype=Datatype.FP32, shape=(4,)),
            TensorSpec(name="scores", datatype=Datatype.FP32, shape=(3,)),
            TensorSpec(name="score", datatype=Datatype.FP32, shape=()),
        ),
        text=Ranker.text,
        embedding=Embedder.embedding,
        shortest_embedding=2,
        classification=Classifier.classification,
        ranking=Ranker.ranking,
    ),
    tokens=Tokens(tokenizer_json(), Ranker.text, ThreadPoolExecutor(1)),
)
EVERYTHING: Final = replace(MODEL, description=EVERY_DATATYPE)
PAIR: Final = replace(
    MODEL, description=echoing(a=(Datatype.FP32, (2,)), b=(Datatype.BYTES, (RAGGED,)))
)

GOOD: Final[list[tuple[Adapter, ReadyModel, dict[str, Any]]]] = [
    (EmbeddingsAdapter(), TEXTS, {"model": "m", "input": ["a", "b c"], "dimensions": 2}),
    (EmbeddingsAdapter(), TEXTS, {"model": "m", "input": [[1, 2], [3]], "user": "u"}),
    (ClassifyAdapter(), TEXTS, {"inputs": [["a"], ["b", "c"]], "truncate": True}),
    (ClassifyAdapter(), TEXTS, {"model": "m", "input": ["a"], "raw_scores": False}),
    (RerankAdapter(), TEXTS, {"query": "a", "texts": ["b", "c"], "return_text": True}),
    (RerankAdapter(), TEXTS, {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
    (PredictAdapter(), TEXTS, {"instances": ["a", {"text": "b"}]}),
    (PredictAdapter(), PAIR, {"instances": [{"a": [1, 2.5], "b": ["c", {"b64": "ZA=="}]}]}),
    (PredictAdapter(), MODEL, {"instances": [[1, 2], {"x": [3]}]}),
    (
        V2Adapter(),
        PAIR,
        {
            "id": "7",
            "inputs": [
                {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [[1, 2.5]]},
                {"name": "b", "datatype": "BYTES", "shape": [1, 1], "data": ["c"]},
            ],
            "outputs": [{"name": "echo_a", "parameters": {"binary_data": True}}],
            "parameters": {"binary_data_output": False, "timeout": 5, "priority": 1},
        },
    ),
    (
        V2Adapter(),
        TEXTS,
        {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b"]}]},
    ),
]
ADAPTERS: Final = [
    (adapter, model)
    for adapter in (
        V2Adapter(),
        PredictAdapter(),
        EmbeddingsAdapter(),
        ClassifyAdapter(),
        RerankAdapter(),
    )
    for model in (TEXTS, EVERYTHING, MODEL)
]


async def rows_or_refusal(
    adapter: Adapter, model: ReadyModel, body: bytes, length: str | None = None
) -> bool:
    """Whether there are rows; anything but rows and refusals of the family is raised."""
    started = time.perf_counter()
    try:
        parsed = await adapter.parse(body, length, model)
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


@pytest.mark.parametrize("index", range(len(GOOD)))
async def test_the_bodies_that_are_damaged_here_are_right_in_themselves(index: int) -> None:
    adapter, model, document = GOOD[index]
    assert await rows_or_refusal(adapter, model, orjson.dumps(document))


@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from(ADAPTERS),
    st.binary(max_size=100),
    st.none() | st.text(max_size=4) | st.integers(0, 110).map(str),
)
async def test_any_bytes(
    target: tuple[Adapter, ReadyModel], body: bytes, length: str | None
) -> None:
    await rows_or_refusal(*target, body, length)


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(ADAPTERS), json_values())
async def test_any_json(target: tuple[Adapter, ReadyModel], document: object) -> None:
    try:
        body = orjson.dumps(document)
    except TypeError:
        return  # half a surrogate pair, or an integer that this writer does not write
    await rows_or_refusal(*target, body)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value within a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        steps: list[tuple[Any, Any]] = list(value.items())
    else:
        steps = list(enumerate(value)) if isinstance(value, list) else []
    for key, inner in steps:
        found += places(inner, (*path, key))
    return found


odd_values = (
    json_values(max_leaves=5)
    | st.sampled_from([0, -1, 2**63, 2**64, -(2**63) - 1, 1e308, "", "\x00", [], {}, [[]], [{}]])
    | st.lists(st.sampled_from([0, "a", [], None]), max_size=40)
)


@settings(deadline=None, max_examples=1500)
@given(st.data(), st.sampled_from(GOOD), st.integers(1, 2))
async def test_a_right_body_with_a_value_changed(
    data: st.DataObject, good: tuple[Adapter, ReadyModel, dict[str, Any]], changes: int
) -> None:
    adapter, model, document = good
    changed = copy.deepcopy(document)
    for _ in range(changes):
        listed = places(changed)
        if not listed:
            break
        *way, last = data.draw(st.sampled_from(listed))
        holder: Any = changed
        for key in way:
            holder = holder[key]
        if data.draw(st.booleans()):
            # A copy: the next change may be made within it.
            holder[last] = copy.deepcopy(data.draw(odd_values))
        elif isinstance(holder, dict):
            holder[data.draw(st.text(max_size=5))] = holder.pop(last)
        else:
            del holder[last]
    try:
        body = orjson.dumps(changed)
    except TypeError:
        return
    await rows_or_refusal(adapter, model, body)


@settings(deadline=None, max_examples=500)
@given(st.sampled_from(GOOD), st.integers(0, 400), st.binary(max_size=4), st.integers(0, 3))
async def test_a_right_body_with_bytes_changed(
    good: tuple[Adapter, ReadyModel, dict[str, Any]], at: int, damage: bytes, lost: int
) -> None:
    adapter, model, document = good
    body = orjson.dumps(document)
    await rows_or_refusal(adapter, model, body[:at] + damage + body[at + lost :])


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
    length, parts = write_body({}, tensors, "inputs", orjson.dumps)
    return b"".join(parts), length


BINARY, HEAD = binary_body()


async def test_the_binary_body_is_right_in_itself() -> None:
    assert await rows_or_refusal(V2Adapter(), EVERYTHING, BINARY, str(HEAD))


@settings(deadline=None, max_examples=500)
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
    await rows_or_refusal(V2Adapter(), EVERYTHING, body, str(HEAD + off))


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
    for adapter, model in ADAPTERS:
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


@settings(deadline=None, max_examples=400)
@given(headers)
def test_any_headers_are_understood_or_refused(given_headers: Mapping[str, str]) -> None:
    named = request_id(given_headers)
    assert named is None or named.isprintable()
    try:
        declines_batching(given_headers)
        wishes_of_headers(given_headers, traced=True)
    except InvalidInput as refused:
        orjson.dumps(str(refused))
