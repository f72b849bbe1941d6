"""What the helper makes of bodies and answers is what the sidecar's own process makes of them."""

import contextlib
import gc
import pickle
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import RAGGED, ModelDescription
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.backends.upstream.protocol import ParsedRequest
from batchedmodel_sidecar.calls import Answer, Call, Output, Row, Value
from batchedmodel_sidecar.codec.jobs import (
    Kept,
    parse,
    parsed_request,
    pickled_answer,
    pickled_model,
    render,
)
from batchedmodel_sidecar.errors import ModelNotFound, Rejected, Unserved
from batchedmodel_sidecar.helper.messages import Job, Kind, content_of, refusal
from batchedmodel_sidecar.helper.process import FREE_MEMORY, Worker
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.protocol import Body, Parsed
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.table import public_protocols
from batchedmodel_sidecar.tokenizer import Tokens, text_threads
from support.examples import examples
from support.helper_jobs import answered, done, inform, informed, received
from support.hostile_tokenizers import PANICS_OVER_TEXT, PANICS_WHEN_READ
from support.right_bodies import EVERYTHING, PAIR, RIGHT, TEXTS, Right, damaged
from support.sidecar_world import MODEL
from support.strategies import element_data, json_values
from support.text_handlers import Ranker, tokenizer_json

MODELS: Final = (TEXTS, EVERYTHING, PAIR, MODEL)
ADAPTERS: Final = public_protocols()


Refusal = InvalidInput | Rejected | Unserved


def parsing(endpoint: Endpoint, head: str | None = None) -> Job:
    return partial(parse, endpoint, head, 100)


def rendering(
    endpoint: Endpoint,
    lengths: list[int],
    answer: Answer,
    memo: object,
    named: str | None = None,
    labels: tuple[str, ...] | None = None,
) -> Job:
    return partial(render, endpoint, lengths, pickled_answer(answer), memo, named, labels)


def behind_the_wire(error: Refusal) -> Refusal:
    with pytest.raises((InvalidInput, Rejected, Unserved)) as refused:
        received(Kind.REFUSAL, refusal(error)).load()
    assert isinstance(refused.value, InvalidInput | Rejected | Unserved)
    return refused.value


def told(error: Refusal) -> tuple[object, ...]:
    """All that a caller could learn of an error."""
    if isinstance(error, InvalidInput):
        return type(error), str(error), error.mistake
    if isinstance(error, Unserved):
        return type(error), error.message, error.status, error.retry_after
    return (
        type(error),
        *(error.reason, error.message, error.status, error.retry_after, error.field),
    )


def seen(parsed: Parsed) -> tuple[object, ...]:
    """All that the rest of the sidecar could see of a call."""
    memo = pickle.loads(parsed.memo.data) if isinstance(parsed.memo, Kept) else parsed.memo
    rows = [
        (row.length, [(value.shape, bytes(value.data)) for value in row.values])
        for row in parsed.call.rows
    ]
    call = parsed.call
    return rows, call.key, call.description, call.params, parsed.options, memo


async def here(endpoint: Endpoint, model: ReadyModel, body: bytes, head: str | None) -> object:
    try:
        return seen(await ADAPTERS[endpoint].parse(body, head, model, 4096))
    except (InvalidInput, Rejected) as error:
        return told(error)


async def there(endpoint: Endpoint, model: ReadyModel, body: bytes, head: str | None) -> object:
    try:
        draft = await done(informed(pickled_model(model)), parsing(endpoint, head), body)
    except (InvalidInput, Rejected) as error:
        return told(error)
    call = model.call_of(draft.rows, draft.params)
    return seen(Parsed(call=call, memo=draft.memo, options=draft.options))


async def assert_equal_both_ways(
    endpoint: Endpoint, model: ReadyModel, body: bytes, head: str | None = None
) -> None:
    assert await there(endpoint, model, body, head) == await here(endpoint, model, body, head)


@pytest.mark.parametrize("index", range(len(RIGHT)))
async def test_a_right_body_gives_the_same_call(index: int) -> None:
    endpoint, model, document = RIGHT[index]
    assert isinstance(
        await ADAPTERS[endpoint].parse(orjson.dumps(document), None, model, 4096), Parsed
    )
    await assert_equal_both_ways(endpoint, model, orjson.dumps(document))


endpoints = st.sampled_from(sorted(ADAPTERS, key=lambda endpoint: endpoint.name))


@settings(max_examples=examples(150))
@given(
    endpoints,
    st.sampled_from(MODELS),
    st.binary(max_size=60) | json_values().map(lambda value: repr(value).encode(errors="replace")),
    st.none() | st.integers(0, 70).map(str) | st.text(max_size=3),
)
async def test_any_bytes_are_refused_in_the_same_words(
    endpoint: Endpoint, model: ReadyModel, body: bytes, head: str | None
) -> None:
    await assert_equal_both_ways(endpoint, model, body, head)


@pytest.mark.slow
@settings(max_examples=examples(800))
@given(damaged())
async def test_a_damaged_body_has_the_same_outcome(
    damage: tuple[Endpoint, ReadyModel, bytes],
) -> None:
    await assert_equal_both_ways(*damage)


@pytest.mark.slow
@given(st.sampled_from([InvalidInput, Unbatchable]), st.text(), st.text(), json_values())
def test_a_complaint_is_the_same_behind_the_wire(
    kind: type[InvalidInput], field: str, rule: str, value: object
) -> None:
    for error in (kind(field, rule), kind(field, rule, value)):
        assert told(behind_the_wire(error)) == told(error)


@pytest.mark.parametrize(
    "error",
    [
        ModelNotFound("no such model"),
        Rejected(Rejection.QUEUE_FULL, "full", retry_after=2.0),
        Rejected(Rejection.INVALID, "odd", status=500, field="inputs"),
        Unserved("odd", status=502),
    ],
)
def test_a_refusal_is_the_same_behind_the_wire(error: Rejected | Unserved) -> None:
    assert told(behind_the_wire(error)) == told(error)


def everything(body: Body) -> tuple[bytes, str, object]:
    return bytes(body.data) + b"".join(body.tail), body.content_type, body.headers


def test_a_refusal_lets_go_of_the_memory_that_brought_it() -> None:
    message = received(Kind.REFUSAL, refusal(Rejected(Rejection.INVALID, "odd")))
    memory = np.frombuffer(bytes(message.content), np.uint8)
    kept = weakref.ref(memory)
    message = message._replace(content=memory.data)
    gc.disable()
    try:
        with contextlib.suppress(Rejected):
            message.load()
        del memory, message
        assert kept() is None
    finally:
        gc.enable()


def answer_of(description: ModelDescription, data: st.DataObject, count: int) -> Answer:
    rows = []
    for _ in range(count):
        values = []
        for spec in description.outputs:
            shape = tuple(data.draw(st.integers(1, 3)) if s == RAGGED else s for s in spec.shape)
            elements = 1
            for size in shape:
                elements *= size
            values.append(Value(shape, data.draw(element_data(spec.datatype, elements))))
        rows.append(tuple(values))
    outputs = tuple(Output(spec.name, spec.datatype) for spec in description.outputs)
    return Answer(outputs=outputs, rows=tuple(rows))


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.sampled_from(RIGHT), st.data())
async def test_an_answer_has_the_same_body(right: Right, data: st.DataObject) -> None:
    endpoint, model, document = right
    adapter = ADAPTERS[endpoint]
    parsed = await adapter.parse(orjson.dumps(document), None, model, 4096)
    answer = answer_of(model.description, data, len(parsed.call.rows))
    try:
        expected: object = everything(adapter.render(parsed, answer, model))
    except InvalidInput as error:
        expected = told(error)
    for memo in (parsed.memo, Kept(pickle.dumps(parsed.memo))):
        lengths = [row.length for row in parsed.call.rows]
        job = rendering(endpoint, lengths, answer, memo)
        try:
            rendered: object = everything(await done(informed(pickled_model(model)), job))
        except InvalidInput as error:
            rendered = told(error)
        assert rendered == expected


async def test_an_answer_of_an_adapter_is_told_by_its_labels() -> None:
    parsed = await ADAPTERS[Endpoint.CLASSIFY].parse(b'{"inputs":"a"}', None, TEXTS, 10)
    scores = Value((3,), np.array([1, 3, 2], "<f4").tobytes())
    empty = Value((4,), bytes(16)), Value((), bytes(4))
    outputs = tuple(Output(name, Datatype.FP32) for name in ("vector", "scores", "score"))
    answer = Answer(outputs=outputs, rows=((empty[0], scores, empty[1]),))
    labels = ("ham", "spam", "eggs")
    job = rendering(Endpoint.CLASSIFY, [3], answer, parsed.memo, named="spam", labels=labels)
    told = orjson.loads(bytes((await done(informed(pickled_model(TEXTS)), job)).data))
    assert [one["label"] for one in told] == ["spam", "eggs", "ham"]


async def test_a_large_memory_of_the_question_is_carried_unread() -> None:
    documents = ["b" * 50_000, "c" * 50_000]
    asked = {"query": "a", "documents": documents, "return_documents": True}
    worker = informed(pickled_model(TEXTS))
    draft = await done(worker, parsing(Endpoint.RERANK), orjson.dumps(asked))
    assert isinstance(draft.memo, Kept)


async def test_an_error_of_ours_is_told_and_the_helper_works_on() -> None:
    answer = Answer(outputs=(), rows=((),))
    job = rendering(Endpoint.V2_INFER, [1], answer, "what no adapter remembers")
    with pytest.raises(Rejected) as refused:
        await done(informed(pickled_model(MODEL)), job)
    error = refused.value
    assert error.status == 500
    # The second is how compiled modules find the same.
    assert "AttributeError" in error.message or "TypeError" in error.message


def test_rows_lie_in_memory_that_outlives_its_owner() -> None:
    row = Row(values=(Value((2,), b"\x01\x02"), Value((), b"abc")), length=2)
    row = Row(values=(*row.values, Value((50_000,), bytes(50_000))), length=2)
    draft = parsed_request(ParsedRequest(rows=(row, row), frame=None))
    rows = received(Kind.RESULT, content_of(draft)).load().rows
    held = [bytes(value.data) for value in rows[1].values]
    assert held == [b"\x01\x02", b"abc", bytes(50_000)]
    assert Call(rows=rows, description=MODEL.description, key=None).size == 100_010


async def asked(worker: Worker, endpoint: Endpoint, document: object) -> object:
    with pytest.raises((InvalidInput, Rejected)) as refused:
        await done(worker, parsing(endpoint), orjson.dumps(document))
    return refused.value


async def test_tokenizer_that_panics_fails_its_jobs_and_not_the_helper() -> None:
    tokens = Tokens(PANICS_OVER_TEXT, Ranker.text, text_threads(1))
    worker = informed(pickled_model(replace(TEXTS, tokens=tokens)))
    for text in ("a", "a" * 10_000):
        error = await asked(worker, Endpoint.EMBEDDINGS, {"model": "m", "input": text})
        assert isinstance(error, Rejected)
        assert (error.status, error.reason) == (500, Rejection.INVALID)
        assert "tokenizer failed on the text" in error.message


async def test_model_that_cannot_be_read_is_what_its_jobs_are_told_until_there_is_another() -> None:
    worker = Worker()
    for tokenizer, status in ((PANICS_WHEN_READ, 500), (tokenizer_json(), 400)):
        tokens = cast("Any", SimpleNamespace(tokenizer_json=tokenizer))
        inform(worker, pickled_model(replace(TEXTS, tokens=tokens)))
        error = await asked(worker, Endpoint.EMBEDDINGS, {"model": "m", "input": 7})
        assert (getattr(error, "status", 400)) == status


@pytest.mark.parametrize(("numbers", "asks"), [(100_000, False), (1_000_000, True)])
async def test_a_body_whose_values_take_much_is_asked_for_before_it_is_read(
    numbers: int, asks: bool
) -> None:
    body = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1,%d],"data":[%s]}]}' % (
        numbers,
        b"300," * (numbers - 1) + b"300",
    )
    worker, job = informed(pickled_model(MODEL)), parsing(Endpoint.V2_INFER)
    answer = await answered(worker, job, body)
    assert (answer.kind is Kind.NEEDS) == asks
    assert not asks or answer.load() > max(FREE_MEMORY, 50 * numbers)
    assert (await answered(worker, job, body, Kind.GRANTED)).kind is not Kind.NEEDS


@pytest.mark.parametrize(("size", "asks"), [(1_000_000, False), (8_000_000, True)])
async def test_an_answer_whose_numbers_take_much_is_asked_for_before_it_is_written(
    size: int, asks: bool
) -> None:
    value = Value((size // 8,), bytes(size))
    answer = Answer(outputs=(Output("y", Datatype.INT64),), rows=((value,),))
    parsed = await ADAPTERS[Endpoint.V2_INFER].parse(
        b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,2],"data":[1,2]}]}', None, MODEL, 10
    )
    job = rendering(Endpoint.V2_INFER, [2], answer, parsed.memo)
    reply = await answered(informed(pickled_model(MODEL)), job)
    assert (reply.kind is Kind.NEEDS) == asks
