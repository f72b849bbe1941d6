"""Small calls, of a form that is known and of others: what is answered, counted and held."""

import asyncio
import gc
import json
from dataclasses import replace
from typing import Final

import pytest

from batchedmodel_contract.inference.description import RAGGED, TensorSpec
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_sidecar.body.encodings import Compression
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.http.request import Request
from support.handler_world import body, here, text
from support.sidecar_world import DESCRIPTION, MODEL

pytestmark = pytest.mark.looptime

HEADERS: Final[list[dict[str, str]]] = [
    {},
    {"x-request-id": "mine"},
    {"x-timing": "on"},
    {"Accept-Encoding": "gzip"},
    {"x-request-timeout-ms": "5000", "x-request-priority": "3"},
]


@pytest.mark.parametrize("headers", HEADERS, ids=repr)
async def test_an_answer_is_that_of_a_call_in_a_form_that_is_not_known(
    headers: dict[str, str],
) -> None:
    place = await here()
    place.begin(body(3, 4), headers)
    await asyncio.sleep(1.0)
    place.begin(body(3, 4) + b" ", headers)
    await asyncio.sleep(1.0)
    _, first, second = place.told
    assert text(first) == text(second)
    assert (first.status, first.headers, first.content_type) == (
        second.status, second.headers, second.content_type,
    )  # fmt: skip
    assert place.held == 0
    assert not MODEL.users.any


@pytest.mark.parametrize(
    ("sent", "headers"),
    [
        (body(300, 4), {}),
        (body(1.5, 4), {}),
        (body(1, 2), {"x-request-timeout-ms": "soon"}),
        (body(1, 2), {"Content-Encoding": "br"}),
        (body(1, 2), {"x-batch": "off"}),
    ],
    ids=repr,
)
async def test_bad_input_is_told_as_in_a_form_that_is_not_known(
    sent: bytes, headers: dict[str, str]
) -> None:
    place = await here()
    known = await place.answer(sent, headers)
    other = await place.answer(sent + b" ", headers)
    assert 400 <= known.status < 500
    assert (known.status, text(known), known.headers) == (
        other.status, text(other), other.headers,
    )  # fmt: skip
    assert place.world.ledger.rejected == {Rejection.INVALID: 2}
    assert place.held == 0


async def test_a_caller_that_leaves_takes_its_row_and_its_bytes_along() -> None:
    place = await here()
    call = place.begin(body(3, 4))
    await asyncio.sleep(0)
    assert place.held == len(body(3, 4))
    assert MODEL.users.any
    call.cancel()
    await asyncio.sleep(1.0)
    assert len(place.told) == 1, "only the first caller hears anything"
    assert place.world.ledger.settled[Outcome.CANCELLED] == 1
    assert place.world.ledger.rows_live == 0
    assert place.held == 0
    assert not MODEL.users.any
    call.cancel()
    assert place.world.ledger.settled[Outcome.CANCELLED] == 1


@pytest.mark.parametrize("end", [b"", b" "], ids=["known form", "other form"])
async def test_rows_that_take_more_memory_than_their_text_count_as_what_they_take(
    end: bytes,
) -> None:
    """An INT64 has eight bytes, and two in JSON."""
    numbers = TensorSpec(name="x", datatype=Datatype.INT64, shape=(RAGGED,), max_length=4000)
    model = replace(MODEL, description=replace(DESCRIPTION, inputs=(numbers,)))
    text = {"name": "x", "datatype": "INT64", "shape": [1, 4000], "data": [1] * 4000}
    sent = json.dumps({"inputs": [text]}, separators=(",", ":")).encode()
    place = await here()
    place.world.batcher.attach(model)
    await place.answer(sent)
    place.begin(sent + end)
    await asyncio.sleep(0)
    assert len(sent) < 10_000
    assert place.held == 8 * 4000
    await asyncio.sleep(1.0)
    assert place.held == 0


@pytest.mark.parametrize("end", [b"", b" "], ids=["known form", "other form"])
async def test_rows_of_an_answer_that_wait_for_others_are_held(end: bytes) -> None:
    x = {"name": "x", "datatype": "UINT8", "shape": [10, 2], "data": list(range(20))}
    sent = json.dumps({"inputs": [x]}).encode()
    place = await here(knows=sent)
    place.begin(sent + end)
    held = set()
    while len(place.told) == 1:
        held.add(place.held - len(sent + end))
        await asyncio.sleep(0.001)
    assert held == {0, 8, 16}, "two batches of four rows before the last two"
    assert place.held == 0


async def test_parts_of_an_answer_count_once() -> None:
    place = await here()
    size = 1_000_000
    with place.bodies.hold(Share("one")) as mine, place.bodies.hold(Share("two")) as theirs:
        assert theirs.keep(1000)
        assert mine.keep(size)
        place.bodies.hold_answer(size, mine)
        assert place.held == 1000 + 2 * size
        assert not mine.keep(place.bodies._budget.limit)
        theirs.release()
        assert mine.keep(place.bodies._budget.limit), "who is alone is answered"
    assert place.held == 0


async def test_a_refused_caller_is_told_and_counted_once() -> None:
    place = await here(BatchSettings(max_batch_size=1, max_queue_size=1))
    for _ in range(20):
        place.begin(body(3, 4))
    await asyncio.sleep(1.0)
    statuses = [response.status for response in place.told]
    refused = statuses.count(429)
    assert refused >= 10
    assert len(statuses) == 21
    assert place.world.ledger.rejected == {Rejection.QUEUE_FULL: refused}
    assert all(dict(r.headers)["Retry-After"] for r in place.told if r.status == 429)
    assert place.held == 0


async def test_while_draining_a_call_is_refused_before_its_body_is_read() -> None:
    place = await here()
    place.lifecycle.refusing = True
    assert (await place.answer(b"no JSON at all")).status == 503
    assert (await place.answer(body(3, 4))).status == 503
    assert place.world.ledger.rejected == {Rejection.DRAINING: 2}


async def test_what_the_server_fails_over_is_told() -> None:
    place = await here()
    place.world.server.failure = Unserved("out of order", status=500)
    response = await place.answer(body(3, 4))
    assert response.status == 500
    assert "out of order" in text(response)
    assert place.held == 0


def small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have answers of a hundred bytes be large."""
    monkeypatch.setattr("batchedmodel_sidecar.http.inference.SMALL", 100)
    monkeypatch.setattr("batchedmodel_sidecar.body.encodings._LARGE_ANSWER", 100)


@pytest.mark.interpreted
async def test_a_large_answer_is_compressed_for_who_takes_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [200] * 16
    place = await here(knows=body(*values))
    place.begin(body(*values), {"Accept-Encoding": "gzip"})
    small_answers(monkeypatch)
    await asyncio.sleep(5.0)
    assert ("Content-Encoding", "gzip") in place.told[-1].headers
    assert place.held == 0


@pytest.mark.interpreted
@pytest.mark.parametrize("end", [b"", b" "], ids=["known form", "other form"])
async def test_an_answer_that_waits_to_be_compressed_is_held(
    end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [200] * 16
    place = await here(knows=body(*values))
    plain, go_on = len(text(place.told[-1])), asyncio.Event()

    async def slowly(*_: object) -> bytes:
        await go_on.wait()
        return b""

    monkeypatch.setattr(Compression, "gzipped", slowly)
    small_answers(monkeypatch)
    sent = body(*values) + end
    running = place.begin(sent, {"Accept-Encoding": "gzip"})
    await asyncio.sleep(1.0)
    assert len(place.told) == 1
    assert place.held >= plain
    running.cancel()
    await asyncio.sleep(1.0)
    assert place.held == 0
    place.begin(sent, {"Accept-Encoding": "gzip"})
    await asyncio.sleep(1.0)
    go_on.set()
    await asyncio.sleep(1.0)
    assert len(place.told) == 2
    assert place.held == 0
    with place.bodies.hold(Share("others")) as others:
        others.regain(place.bodies._budget.limit - len(sent))
        go_on.clear()
        assert (await place.answer(sent, {"Accept-Encoding": "gzip"})).status == 200, "as it is"


@pytest.mark.interpreted
async def test_a_bug_over_an_answer_is_a_500_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = await here()

    def fails(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("batchedmodel_sidecar.http.inference.Response", fails)
    response = await place.answer(body(3, 4))
    assert response.status == 500
    assert "KeyError" in text(response)
    assert place.held == 0
    assert not MODEL.users.any
    assert place.world.ledger.settled[Outcome.COMPLETED] == 2


async def test_answers_of_one_batch_are_all_told_though_one_is_no_more_wanted() -> None:
    place = await here()
    calls = [place.begin(body(3, number)) for number in range(4)]
    await asyncio.sleep(0.001)
    calls[1].cancel()
    await asyncio.sleep(1.0)
    told = [json.loads(text(response))["outputs"][0]["data"] for response in place.told[1:]]
    assert told == [[3, 0], [3, 2], [3, 3]]


async def test_the_next_batch_is_sent_before_the_answers_of_this_one_are_made() -> None:
    place = await here(BatchSettings(policy=PolicyName.GREEDY, max_batch_size=2))
    sent: list[int] = []
    place.hears = lambda _: sent.append(len(place.world.server.batches) - 1)
    for number in range(6):
        place.begin(body(3, number))
    await asyncio.sleep(1.0)
    # Two of them are at the server at a time.
    assert sent == [3, 3, 3, 3, 3, 3]


async def test_a_caller_that_cannot_be_told_harms_no_other_of_its_batch() -> None:
    place = await here()

    def fails(number: int) -> None:
        if number == 2:
            raise RuntimeError("the transport")

    place.hears = fails
    for number in range(4):
        place.begin(body(3, number))
    await asyncio.sleep(1.0)
    assert [response.status for response in place.told[1:]] == [200, 200, 200, 200]
    assert place.world.ledger.rows_live == 0
    assert place.held == 0


@pytest.mark.parametrize("sent", [body(300, 4), body(1, 2)], ids=["wrong", "right"])
async def test_nothing_is_kept_of_a_request_that_has_ended(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await here()
    # What goes on in a coroutine, and ends there at once.
    monkeypatch.setattr("batchedmodel_sidecar.body.encodings._LARGE_ANSWER", 10)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            place.begin(sent, {"Accept-Encoding": "gzip"})
            await asyncio.sleep(1.0)
        assert not [one for one in gc.get_objects() if type(one) is Request]
    finally:
        gc.enable()


@pytest.mark.interpreted
async def test_a_call_over_which_reading_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    place = await here()

    def fails(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("batchedmodel_sidecar.protocols.v2.values_to_bytes", fails)
    response = await place.answer(body(3, 4))
    assert response.status == 500
    assert ("x-request-outcome", "invalid") in response.headers
    assert place.world.ledger.rejected == {Rejection.INVALID: 1}
