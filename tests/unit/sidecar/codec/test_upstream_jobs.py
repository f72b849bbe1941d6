"""What the helper makes of an upstream server's bodies is what the sidecar's own process makes."""

import json
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.backends.upstream.protocol import (
    BackendProtocol,
    ParsedRequest,
    Response,
    SplitReply,
    drafted,
)
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.codec.jobs import Kept, deal, parse, pickled_answer, render
from batchedmodel_sidecar.errors import Rejected, Unserved, UpstreamReply
from batchedmodel_sidecar.helper.messages import Job
from batchedmodel_sidecar.helper.process import Worker
from batchedmodel_sidecar.protocols.protocol import Body
from support.examples import examples
from support.helper_jobs import done
from support.strategies import json_values

BINARY: Final = "v2 in binary"
KINDS: Final = [*ServerProtocol, BINARY]
PLAIN: Final = {
    ServerProtocol.V1: b'{"instances": [1, 2.50], "limit": 1e400}',
    ServerProtocol.OPENAI: b'{"input": ["a", "b"], "model": "m"}',
    ServerProtocol.V2: b'{"inputs":[{"name":"x","shape":[2,1],"datatype":"FP32","data":[1,2.50]}],'
    b'"id":"7","parameters":{"timeout":5}}',
}
ANSWERS: Final = {
    ServerProtocol.V1: b'{"predictions": [ 1.10, {"a": [NaN]}], "model": "m"}',
    ServerProtocol.OPENAI: b'{"data": [{"index": 1, "embedding": [2.0]},'
    b' {"embedding": "AAA=", "index": 0}], "usage": {"total_tokens": 9}}',
    ServerProtocol.V2: b'{"model_name":"m","outputs":[{"name":"y","shape":[2,1],"datatype":"FP32",'
    b'"data":[[ 1 ],[2.50]]}]}',
}


async def dialect_of(kind: str) -> BackendProtocol:
    """As it is once the server was asked what it speaks."""
    theirs = Upstream(ServerProtocol.V2 if kind == BINARY else ServerProtocol(kind), "m")
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, -1]}
    about: dict[str, Any] = {"name": "m", "inputs": [tensor], "outputs": [tensor]}
    if kind == BINARY:
        about["extensions"] = ["binary_tensor_data"]

    async def ask(path: str) -> tuple[int, bytes]:
        return 200, json.dumps(about).encode()

    await theirs.protocol.describe(ask)
    return theirs.protocol


async def outcome(done: Callable[[], Awaitable[object]]) -> object:
    """What it gave, or all that a caller could learn of the error."""
    try:
        return await done()
    except InvalidInput as error:
        return type(error), str(error), error.mistake
    except (Rejected, Unserved) as error:
        return type(error), error.message, error.status


def parsing(dialect: BackendProtocol, head: str | None = None, most_rows: int = 100) -> Job:
    return partial(parse, dialect, head, most_rows)


def dealing(
    dialect: BackendProtocol, response: Response, lengths: list[int], *, alone: bool
) -> Job:
    plain = replace(response, body=b"")
    return partial(deal, dialect, plain, lengths, alone)


def rendering(dialect: BackendProtocol, memo: object, answer: Answer) -> Job:
    return partial(render, dialect, [1, 1], pickled_answer(answer), memo, None, None)


def seen_of_draft(draft: ParsedRequest) -> object:
    rows = [(row.length, [(v.shape, bytes(v.data)) for v in row.values]) for row in draft.rows]
    return rows, draft.frame, draft.shapes, draft.memo, draft.options


def seen_of_dealt(dealt: SplitReply) -> object:
    rows = [[(value.shape, bytes(value.data)) for value in row] for row in dealt.rows]
    return dealt.outputs, rows, dealt.frame


def seen_of_body(body: Body) -> object:
    return bytes(body.data) + b"".join(body.tail), body.content_type, body.headers


async def assert_asks_alike(kind: str, body: bytes, head: str | None = None) -> object:
    dialect = await dialect_of(kind)

    async def here() -> object:
        return seen_of_draft(drafted(dialect, body, head, 4096))

    async def elsewhere() -> object:
        return seen_of_draft(await done(Worker(), parsing(dialect, head), body))

    expected = await outcome(here)
    assert await outcome(elsewhere) == expected
    return expected


async def assert_answers_alike(
    kind: str, body: bytes, head: str | None = None, *, alone: bool = True
) -> None:
    """The answer cut into rows, and what each of two forms that a caller may want becomes."""
    dialect = await dialect_of(kind)
    protocol = ServerProtocol.V2 if kind == BINARY else ServerProtocol(kind)
    question = PLAIN[protocol]
    rows = drafted(dialect, question, None, 4096).rows
    response = Response(
        status=200, headers=(), content_type="x", header_length=head, body=memoryview(body)
    )
    dealt: list[SplitReply] = []

    async def here() -> object:
        dealt.append(dialect.dealt(response, rows, alone=alone))
        return seen_of_dealt(dealt[0])

    async def elsewhere() -> object:
        job = dealing(dialect, response, [row.length for row in rows], alone=alone)
        return seen_of_dealt(await done(Worker(), job, body))

    assert await outcome(elsewhere) == await outcome(here)
    if not dealt:
        return
    reply = UpstreamReply(status=200, headers=(("a", "b"),), frame=dealt[0].frame)
    answer = Answer(outputs=dealt[0].outputs, rows=tuple(dealt[0].rows), replies=(reply, reply))
    for wish in (b"", b'"parameters":{"binary_data_output":true},'):
        asked = (
            question.replace(b"{", b"{" + wish, 1) if protocol is ServerProtocol.V2 else question
        )
        memo = drafted(dialect, asked.replace(b',"parameters":{"timeout":5}', b""), None, 4096).memo
        await assert_renders_alike(dialect, memo, answer)


async def test_what_is_large_beside_the_rows_is_carried_unread_and_renders_the_same() -> None:
    dialect = await dialect_of(ServerProtocol.V1)
    words = b'"' + b"w" * 100_000 + b'"'
    body = ANSWERS[ServerProtocol.V1].replace(b'"m"', words)
    rows = drafted(dialect, PLAIN[ServerProtocol.V1], None, 4096).rows
    response = Response(status=200, headers=(), content_type="x", header_length=None, body=body)
    dealt = await done(Worker(), dealing(dialect, response, [1, 1], alone=True), body)
    assert isinstance(dealt.frame, Kept)
    replies = [UpstreamReply(status=200, frame=frame) for frame in (dealt.frame, None)]
    replies[1] = UpstreamReply(status=200, frame=dialect.dealt(response, rows, alone=True).frame)
    rendered = []
    for first, second in ((0, 0), (0, 1), (1, 1)):
        answer = Answer(
            outputs=dealt.outputs, rows=tuple(dealt.rows), replies=(replies[first], replies[second])
        )
        rendered.append(seen_of_body(await done(Worker(), rendering(dialect, None, answer))))
    assert rendered[0] == rendered[1] == rendered[2]
    assert words in str(rendered[0]).encode()


async def assert_renders_alike(dialect: BackendProtocol, memo: object, answer: Answer) -> None:
    async def here() -> object:
        return seen_of_body(dialect.render(memo, answer))

    async def elsewhere() -> object:
        return seen_of_body(await done(Worker(), rendering(dialect, memo, answer)))

    assert await outcome(elsewhere) == await outcome(here)


def binary(head: bytes, *, size: int = 8) -> tuple[bytes, str]:
    """A v2 body whose tensor follows as bytes."""
    text = head.replace(b'"data":[1,2.50]', b'"parameters":{"binary_data_size":%d}' % size)
    text = text.replace(b'"data":[[ 1 ],[2.50]]', b'"parameters":{"binary_data_size":%d}' % size)
    return text + struct.pack("<ff", 1.0, 0.1), str(len(text))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_right_body_asks_the_same(kind: str) -> None:
    body = PLAIN[ServerProtocol.V2 if kind == BINARY else ServerProtocol(kind)]
    asked = await assert_asks_alike(kind, body)
    assert isinstance(asked, tuple)
    assert len(asked[0]) == 2, "two rows, and no error"


@pytest.mark.parametrize("kind", [ServerProtocol.V2, BINARY])
async def test_a_body_in_binary_asks_and_answers_the_same(kind: str) -> None:
    await assert_asks_alike(kind, *binary(PLAIN[ServerProtocol.V2]))
    await assert_answers_alike(kind, *binary(ANSWERS[ServerProtocol.V2]))


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_right_answer_says_the_same(kind: str, alone: bool) -> None:
    body = ANSWERS[ServerProtocol.V2 if kind == BINARY else ServerProtocol(kind)]
    await assert_answers_alike(kind, body, alone=alone)


@pytest.mark.parametrize("kind", [ServerProtocol.V2, BINARY])
@pytest.mark.parametrize("number", [b"NaN", b"1e999", b"[", b'"a"'])
async def test_numbers_that_cannot_be_turned_into_bytes_are_named_alike(
    kind: str, number: bytes
) -> None:
    body = ANSWERS[ServerProtocol.V2].replace(b"2.50", number)
    await assert_answers_alike(kind, body)


async def test_rows_that_were_answered_differently_make_no_body_and_no_estimate() -> None:
    dialect = await dialect_of(ServerProtocol.V2)
    question, body = PLAIN[ServerProtocol.V2], ANSWERS[ServerProtocol.V2]
    draft = drafted(dialect, question, None, 4096)
    first, second = (
        dialect.dealt(
            Response(status=200, headers=(), content_type="x", header_length=None, body=one),
            draft.rows,
            alone=False,
        )
        for one in (body, body.replace(b'"y"', b'"z"'))
    )
    answer = Answer(
        outputs=first.outputs,
        rows=(first.rows[0], second.rows[1]),
        replies=(
            UpstreamReply(status=200, frame=first.frame),
            UpstreamReply(status=200, frame=second.frame),
        ),
    )
    for step in (dialect.texts, dialect.render):
        with pytest.raises(Unserved, match="answered parts of this request differently"):
            step(draft.memo, answer)
    await assert_renders_alike(dialect, draft.memo, answer)


@pytest.mark.parametrize("index", ["1" * 5000, "-1", "1.0", '"1"'])
async def test_an_index_that_counts_nothing_is_named(index: str) -> None:
    body = ANSWERS[ServerProtocol.OPENAI].replace(b'"index": 1', f'"index": {index}'.encode())
    await assert_answers_alike(ServerProtocol.OPENAI, body)


def cut_or_changed(text: bytes, data: st.DataObject) -> bytes:
    """A document with some of its characters gone, doubled or replaced."""
    start = data.draw(st.integers(0, len(text)))
    end = min(len(text), start + data.draw(st.integers(0, 6)))
    put = data.draw(
        st.sampled_from([b"", b",", b"]", b"}", b'"', b"NaN", b"[[1]]", b"\xff", b"-0.0", b"{}"])
        | json_values(max_leaves=3).map(lambda value: json.dumps(value).encode())
    )
    return text[:start] + put + text[end:]


heads = st.none() | st.integers(0, 170).map(str) | st.text(max_size=3)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.sampled_from(KINDS), heads, st.data())
async def test_a_broken_body_is_refused_in_the_same_words(
    kind: str, head: str | None, data: st.DataObject
) -> None:
    protocol = ServerProtocol.V2 if kind == BINARY else ServerProtocol(kind)
    await assert_asks_alike(kind, cut_or_changed(PLAIN[protocol], data), head)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.sampled_from(KINDS), heads, st.booleans(), st.data())
async def test_a_broken_answer_has_the_same_outcome(
    kind: str, head: str | None, alone: bool, data: st.DataObject
) -> None:
    protocol = ServerProtocol.V2 if kind == BINARY else ServerProtocol(kind)
    body = cut_or_changed(ANSWERS[protocol], data)
    await assert_answers_alike(kind, body, head, alone=alone)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(
    st.sampled_from([ServerProtocol.V1, ServerProtocol.OPENAI]),
    st.lists(json_values(max_leaves=6), max_size=4),
    st.dictionaries(st.text(max_size=3), json_values(max_leaves=3), max_size=2),
)
async def test_any_document_asks_the_same(
    protocol: ServerProtocol, rows: list[Any], beside: dict[str, Any]
) -> None:
    field = "instances" if protocol is ServerProtocol.V1 else "input"
    await assert_asks_alike(protocol, json.dumps({field: rows, **beside}).encode())


async def test_more_rows_than_are_ever_taken_are_refused_before_the_loop_sees_them() -> None:
    job = parsing(await dialect_of(ServerProtocol.V1), most_rows=2)
    assert len((await done(Worker(), job, b'{"instances": [1, 2]}')).rows) == 2
    with pytest.raises(Rejected) as refused:
        await done(Worker(), job, b'{"instances": [1, 2, 3]}')
    assert refused.value.message == "3 rows in one request are more than the queue holds (2)"
    assert refused.value.status == 413
