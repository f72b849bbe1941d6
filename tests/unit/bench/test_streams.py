"""Streams are read token by token, and judged by what was to become of them."""

import asyncio
import math
from typing import Any, cast

import orjson
import pytest

from stream_capacity import capacity, drawn, request_limit, served, token_limit
from stream_client import Client, check
from stream_faults import seen_of
from stream_figures import Busy, Found, figures_of
from stream_plan import Record, Stream, StreamLoad, StreamResult, load_of, result_of, text_of
from support.engine import EngineSettings
from support.engine_events import DONE, Wording, chunk_of

ENGINE = EngineSettings()


class Wire:
    """A connection's transport, as far as a client needs it."""

    def __init__(self) -> None:
        self.aborted = False
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


def record(**values: Any) -> Record:
    usual = {"mark": 3, "expected": 3, "due": 0.0, "sent": 0.0}
    return Record(**{**usual, **values})


def whole(**values: Any) -> Record:
    usual = {"tokens": 3, "status": 200, "first": 0.1, "last": 0.14, "ended": 0.2}
    ends = {"whole": True, "told_end": True, "told_reason": True}
    return record(**{**usual, **ends, **values})


def answer(tokens: int) -> bytes:
    """A stream of request 3, as it is on the wire."""
    wording = Wording(chat=True, name="x", model="m", mark=3)
    events = [wording.opening(), *(wording.token(place) for place in range(tokens - 1))]
    events += [wording.last_token(tokens - 1, "length"), DONE]
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(map(chunk_of, events)) + b"0\r\n\r\n"


def asked(stream: Stream) -> tuple[Client, Record, Wire, list[Record]]:
    ended: list[Record] = []
    client = Client(0.0, lambda now, tokens: None, lambda client, stream, one: ended.append(one))
    wire, one = Wire(), record(expected=stream.tokens)
    client.connection_made(cast(asyncio.Transport, wire))
    client.ask(stream, one)
    return client, one, wire, ended


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_a_stream_is_whole_however_it_is_cut_in_pieces(size: int) -> None:
    client, one, wire, ended = asked(Stream(mark=3, tokens=4))
    assert b'"mark":3' in wire.written
    text = answer(4)
    for at in range(0, len(text), size):
        client.data_received(text[at : at + size])
    assert ended == [one]
    assert one.completed
    assert (one.status, one.tokens, one.lost, one.doubled, one.foreign) == (200, 4, 0, 0, 0)


def test_a_stream_that_ends_with_its_connection_is_not_whole() -> None:
    client, one, _, ended = asked(Stream(mark=3, tokens=4))
    client.data_received(answer(4)[:-5])
    client.connection_lost(None)
    assert ended == [one]
    assert one.told_end
    assert not one.completed


def test_a_caller_leaves_after_so_many_tokens() -> None:
    client, one, wire, _ = asked(Stream(mark=3, tokens=4, leaves_after=2))
    client.data_received(answer(4)[:700])
    assert wire.aborted
    assert one.left


def test_an_answer_without_chunks_is_read_to_its_end() -> None:
    client, one, _, ended = asked(Stream(mark=3, tokens=4))
    client.data_received(b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\nno")
    assert not ended
    client.data_received(b"ne")
    assert ended == [one]
    assert (one.status, one.completed) == (429, False)


@pytest.mark.parametrize(
    ("texts", "lost", "doubled", "foreign"),
    [
        ([(3, 0), (3, 1), (3, 2)], 0, 0, 0),
        ([(3, 0), (3, 2)], 1, 0, 0),
        ([(3, 0), (3, 0), (3, 1)], 0, 1, 0),
        ([(3, 0), (4, 1), (3, 1), (3, 3)], 0, 0, 2),
        ([(3, 1), (3, 0)], 1, 1, 0),
    ],
)
def test_tokens_out_of_their_order_are_counted(
    texts: list[tuple[int, int]], lost: int, doubled: int, foreign: int
) -> None:
    one = record()
    for mark, place in texts:
        check(one, mark, place)
    assert (one.lost, one.doubled, one.foreign) == (lost, doubled, foreign)


@pytest.mark.parametrize(
    ("one", "stream", "wrong", "false_ends", "without_cause"),
    [
        (whole(), {}, 0, 0, 0),
        (whole(tokens=2), {}, 1, 1, 1),
        (whole(tokens=2, whole=False, told_end=False, told_reason=False), {}, 1, 0, 1),
        (
            whole(tokens=1, left=True, told_end=False, told_reason=False),
            {"leaves_after": 1},
            0,
            0,
            0,
        ),
        (
            whole(tokens=1, whole=False, told_end=False, told_reason=False),
            {"script": {"breaks_off_after": 2}},
            1,
            0,
            0,
        ),
        (
            whole(tokens=2, error_event=True, told_reason=False),
            {"script": {"error_after": 2}},
            0,
            0,
            0,
        ),
        (
            whole(tokens=1, sent=4.0, ended=5.5, whole=False, told_end=False, told_reason=False),
            {},
            0,
            0,
            0,
        ),
        (whole(tokens=0, status=503, told_end=False, told_reason=False), {}, 0, 0, 0),
    ],
)
def test_a_stream_is_judged_by_what_happened_to_it(
    one: Record, stream: dict[str, Any], wrong: int, false_ends: int, without_cause: int
) -> None:
    seen = seen_of([one], {3: Stream(mark=3, tokens=3, **stream)}, (5.0, 6.0))
    assert (seen.wrong, seen.false_ends, seen.without_cause) == (wrong, false_ends, without_cause)


def test_an_engine_serves_what_its_steps_and_prompts_allow() -> None:
    assert token_limit(ENGINE, prompt_bytes=4, mean_tokens=math.inf) == 3200.0
    limit = request_limit(ENGINE)
    assert 0.9 * limit < capacity(ENGINE, seconds=10.0, seed=0) < 1.1 * limit


def test_times_in_the_engine_follow_its_steps() -> None:
    streams = [Stream(mark=number, tokens=20, prompt_bytes=400, at=1.0) for number in range(65)]
    times = served(ENGINE, streams)
    step = 0.02 + 64 * 100 * 20e-6
    assert times[0].first_seconds == pytest.approx(step)
    assert times[0].token_seconds == pytest.approx(0.02)
    # The last waits until the others have ended.
    assert times[64].first_seconds == pytest.approx(step + 19 * 0.02 + 0.02 + 100 * 20e-6)


def test_loads_and_results_travel_as_they_are() -> None:
    streams = drawn(50.0, 1.0, seed=1, address="127.0.0.66")
    assert streams == drawn(50.0, 1.0, seed=1, address="127.0.0.66")
    load = StreamLoad(port=1, streams=streams, seconds=1.0)
    assert load_of(orjson.dumps(load)) == load
    result = StreamResult(
        records=[whole()], arrivals=[0, 3], began=1.0, open_at_end=0, cpu_seconds=0.1
    )
    assert result_of(text_of(result)) == result
    assert result.token_rate(0.1, 0.2) == pytest.approx(30.0)


def test_figures_say_what_holds() -> None:
    late = whole(first=1.5, last=1.54)
    busy = Busy(
        rate=2900.0,
        tokens=1000,
        cpu_seconds=0.025,
        generator_cpu_seconds=0.01,
        result=StreamResult(records=[], arrivals=[], began=0.0, open_at_end=0, cpu_seconds=0.0),
    )
    found = Found(
        capacity=70.0,
        engine=ENGINE,
        closed=[busy],
        closed_straight=[busy],
        partly=[[whole(first=0.104)]],
        partly_straight=[[whole()]],
        beside=[[0.003]],
        beside_straight=[[0.001]],
        overload=[[whole(), whole(), late]],
        overload_straight=[[whole(), late, late]],
        shared=[([whole()], [whole(first=0.25)], [])],
        opened=[(50_000_000, 1000, 900)],
        faults=[seen_of([whole(tokens=2)], {3: Stream(mark=3, tokens=3)}, (5.0, 6.0))],
    )
    told = {one.name: (round(one.value, 6), one.holds) for one in figures_of(found)}
    assert told["closed loop of 96: CPU of the sidecar per token"] == (25.0, True)
    assert told["70 % load: first token added, p99"] == (4.0, True)
    assert told["1.3 x capacity: goodput over straight"] == (2.0, True)
    ratio = told["interactive tenant beside a flood: first token p99 over alone"]
    assert ratio == (2.5, False)
    assert told["1,000 open streams: memory above idle"] == (50.0, True)
    assert told["kills, leaves, slow readers: lost or doubled chunks"] == (1.0, False)
