"""What the helper makes of bodies and answers is what the sidecar's own process makes of them."""

import contextlib
import gc
import pickle
import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import RAGGED, ModelDescription
from batchedmodel_contract.inference.tensors import Buffer, Datatype
from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.answers import Answer, Output
from batchedmodel_sidecar.backends.foreign.protocol import ParsedRequest
from batchedmodel_sidecar.calls import Call, Row, Value
from batchedmodel_sidecar.codec.process import wire
from batchedmodel_sidecar.codec.process.shared_memory import SharedMemory
from batchedmodel_sidecar.codec.process.wire import Kept, News, ParseJob, RenderJob
from batchedmodel_sidecar.codec.process.worker import FREE_MEMORY, Worker
from batchedmodel_sidecar.codec.tokenizer import Tokens, text_threads
from batchedmodel_sidecar.errors import ModelNotFound, Rejected, Unserved
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Body, Parsed
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.table import adapters
from support.examples import examples
from support.hostile_tokenizers import PANICS_OVER_TEXT, PANICS_WHEN_READ
from support.right_bodies import EVERYTHING, PAIR, RIGHT, TEXTS, Right, damaged
from support.sidecar_world import MODEL
from support.strategies import element_data, json_values
from support.text_handlers import Ranker, tokenizer_json

MODELS: Final = (TEXTS, EVERYTHING, PAIR, MODEL)
ADAPTERS: Final = adapters()


async def informed(model: ReadyModel) -> Worker:
    worker = Worker()
    head, parts = wire.write_model(model)
    assert await worker.work(News(head), filled(parts)) is None
    return worker


def filled(parts: Sequence[Any]) -> SharedMemory:
    memory = SharedMemory()
    for part in parts:
        memory.write(part)
    return memory


def behind_the_wire(error: wire.Refusal) -> wire.Refusal:
    head, parts = wire.write_refusal(error)
    return refusal(b"".join(parts), head)


def refusal(memory: Buffer, head: int) -> wire.Refusal:
    with pytest.raises((InvalidInput, Rejected, Unserved)) as refused:
        wire.read_parsed(memory, head)
    assert isinstance(refused.value, InvalidInput | Rejected | Unserved)
    return refused.value


def told(error: wire.Refusal) -> tuple[object, ...]:
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
    worker = await informed(model)
    answered = await worker.work(ParseJob(endpoint, head, most_rows=100), filled([body]))
    assert answered is not None
    reply, memory = answered
    try:
        draft = wire.read_parsed(memory.view(), reply.head)
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
    head, parts = wire.write_refusal(Rejected(Rejection.INVALID, "odd"))
    memory = np.frombuffer(b"".join(parts), np.uint8)
    kept = weakref.ref(memory)
    gc.disable()
    try:
        with contextlib.suppress(Rejected):
            wire.read_parsed(memory.data, head)
        del memory
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
        head, parts = wire.write_question(lengths, answer, memo)
        worker = await informed(model)
        answered = await worker.work(RenderJob(endpoint, head), filled(parts))
        assert answered is not None
        reply, memory = answered
        try:
            rendered: object = everything(wire.read_rendered(memory.view(), reply.head))
        except InvalidInput as error:
            rendered = told(error)
        assert rendered == expected


async def test_an_answer_of_an_adapter_is_told_by_its_labels() -> None:
    parsed = await ADAPTERS[Endpoint.CLASSIFY].parse(b'{"inputs":"a"}', None, TEXTS, 10)
    scores = Value((3,), np.array([1, 3, 2], "<f4").tobytes())
    empty = Value((4,), bytes(16)), Value((), bytes(4))
    outputs = tuple(Output(name, Datatype.FP32) for name in ("vector", "scores", "score"))
    answer = Answer(outputs=outputs, rows=((empty[0], scores, empty[1]),))
    head, parts = wire.write_question([3], answer, parsed.memo)
    job = RenderJob(Endpoint.CLASSIFY, head, "spam", ("ham", "spam", "eggs"))
    answered = await (await informed(TEXTS)).work(job, filled(parts))
    assert answered is not None
    told = orjson.loads(bytes(wire.read_rendered(answered[1].view(), answered[0].head).data))
    assert [one["label"] for one in told] == ["spam", "eggs", "ham"]


async def test_a_large_memory_of_the_question_is_carried_unread() -> None:
    documents = ["b" * 50_000, "c" * 50_000]
    asked = {"query": "a", "documents": documents, "return_documents": True}
    worker = await informed(TEXTS)
    memory = filled([orjson.dumps(asked)])
    answered = await worker.work(ParseJob(Endpoint.RERANK, None, most_rows=100), memory)
    assert answered is not None
    reply, filled_with = answered
    assert isinstance(wire.read_parsed(filled_with.view(), reply.head).memo, Kept)


async def test_an_error_of_ours_is_told_and_the_helper_works_on() -> None:
    worker = await informed(MODEL)
    answer = Answer(outputs=(), rows=((),))
    head, parts = wire.write_question([1], answer, "what no adapter remembers")
    answered = await worker.work(RenderJob(Endpoint.V2_INFER, head), filled(parts))
    assert answered is not None
    error = refusal(answered[1].view(), answered[0].head)
    assert isinstance(error, Rejected)
    assert error.status == 500
    # The second is how compiled modules find the same.
    assert "AttributeError" in error.message or "TypeError" in error.message


def test_rows_lie_in_memory_that_outlives_its_owner() -> None:
    row = Row(values=(Value((2,), b"\x01\x02"), Value((), b"abc")), length=2)
    head, parts = wire.write_parsed(ParsedRequest(rows=(row, row), frame=None))
    memory = filled(parts)
    rows = wire.read_parsed(memory.view(), head).rows
    memory.close()
    del memory
    assert [bytes(value.data) for value in rows[1].values] == [b"\x01\x02", b"abc"]
    assert Call(rows=rows, description=MODEL.description, key=None).size == 10


async def asked(worker: Worker, endpoint: Endpoint, document: object) -> object:
    job = ParseJob(endpoint, None, most_rows=100)
    answered = await worker.work(job, filled([orjson.dumps(document)]))
    assert answered is not None
    reply, memory = answered
    return refusal(memory.view(), reply.head)


async def test_tokenizer_that_panics_fails_its_jobs_and_not_the_helper() -> None:
    tokens = Tokens(PANICS_OVER_TEXT, Ranker.text, text_threads(1))
    worker = await informed(replace(TEXTS, tokens=tokens))
    for text in ("a", "a" * 10_000):
        error = await asked(worker, Endpoint.EMBEDDINGS, {"model": "m", "input": text})
        assert isinstance(error, Rejected)
        assert (error.status, error.reason) == (500, Rejection.INVALID)
        assert "tokenizer failed on the text" in error.message


async def test_model_that_cannot_be_read_is_what_its_jobs_are_told_until_there_is_another() -> None:
    worker = Worker()
    for tokenizer, status in ((PANICS_WHEN_READ, 500), (tokenizer_json(), 400)):
        tokens = cast("Any", SimpleNamespace(tokenizer_json=tokenizer))
        head, parts = wire.write_model(replace(TEXTS, tokens=tokens))
        assert await worker.work(News(head), filled(parts)) is None
        error = await asked(worker, Endpoint.EMBEDDINGS, {"model": "m", "input": 7})
        assert (getattr(error, "status", 400)) == status


async def replied(worker: Worker, job: Any, parts: Sequence[Any]) -> wire.Reply:
    answered = await worker.work(job, filled(parts))
    assert answered is not None
    return answered[0]


@pytest.mark.parametrize(("numbers", "asks"), [(100_000, False), (1_000_000, True)])
async def test_a_body_whose_values_take_much_is_asked_for_before_it_is_read(
    numbers: int, asks: bool
) -> None:
    body = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1,%d],"data":[%s]}]}' % (
        numbers,
        b"300," * (numbers - 1) + b"300",
    )
    worker, job = await informed(MODEL), ParseJob(Endpoint.V2_INFER, None, most_rows=100)
    reply = await replied(worker, job, [body])
    assert (reply.needs > FREE_MEMORY, reply.needs > 50 * numbers) == (asks, asks)
    granted = await replied(worker, job._replace(granted=True), [body])
    assert granted.needs == 0


@pytest.mark.parametrize(("size", "asks"), [(1_000_000, False), (8_000_000, True)])
async def test_an_answer_whose_numbers_take_much_is_asked_for_before_it_is_written(
    size: int, asks: bool
) -> None:
    value = Value((size // 8,), bytes(size))
    answer = Answer(outputs=(Output("y", Datatype.INT64),), rows=((value,),))
    parsed = await ADAPTERS[Endpoint.V2_INFER].parse(
        b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,2],"data":[1,2]}]}', None, MODEL, 10
    )
    head, parts = wire.write_question([2], answer, parsed.memo)
    reply = await replied(await informed(MODEL), RenderJob(Endpoint.V2_INFER, head), parts)
    assert (reply.needs > 0) == asks
