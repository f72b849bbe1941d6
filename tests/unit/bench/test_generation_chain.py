"""Figures of our own engine through the whole chain are of what they say."""

import asyncio
from typing import Any, cast

import orjson
import pytest

from batchedmodel_contract.generation.frames import StepReport
from engine_rivals import Load
from generation_faults import Killed, compared, fault_figures, freed
from generation_overhead import Round, overhead_figures, rate_of, simulated
from generation_refilled import DEVICE, judged, refilled_figures
from stream_capacity import limit_of, token_limit
from stream_client import Client
from stream_plan import CHAT, COMPLETIONS, Record, Stream, StreamResult

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire:
    """A connection's transport, as far as a client needs it."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        pass


def record(**values: Any) -> Record:
    usual = {"mark": 3, "expected": 3, "due": 0.0, "sent": 0.0}
    return Record(**{**usual, **values})


def whole(**values: Any) -> Record:
    ends = {"tokens": 3, "ended": 0.5, "whole": True, "told_end": True, "told_reason": True}
    return record(**{**ends, **values})


def result(*records: Record, arrivals: tuple[int, ...] = (), **values: Any) -> StreamResult:
    usual = {"began": 0.0, "open_at_end": 0, "cpu_seconds": 0.0}
    return StreamResult(records=records, arrivals=arrivals, **{**usual, **values})


def event(field: bytes, reason: bytes = b"null") -> bytes:
    """As our engine's answers have them."""
    data = b'data: {"choices":[{"index":0,%b,"logprobs":null,"finish_reason":%b}]}\n\n'
    text = data % (field, reason)
    return b"%x\r\n%b\r\n" % (len(text), text)


def asked(stream: Stream) -> tuple[Client, Record, Wire]:
    client = Client(0.0, lambda now, tokens: None, lambda client, stream, one: None)
    wire, one = Wire(), record(expected=stream.tokens)
    client.connection_made(cast(asyncio.Transport, wire))
    client.ask(stream, one)
    return client, one, wire


def body_of(wire: Wire) -> Any:
    return orjson.loads(wire.written.partition(b"\r\n\r\n")[2])


def test_each_event_with_text_is_a_token_where_there_are_no_marks() -> None:
    client, one, _ = asked(Stream(mark=3, tokens=3, marked=False))
    client.data_received(HEAD + event(b'"delta":{"role":"assistant","content":""}'))
    assert one.tokens == 0
    quote, brace = rb'"delta":{"content":"\""}', b'"delta":{"content":"}"}'
    client.data_received(event(quote) + event(brace))
    assert one.tokens == 2
    client.data_received(event(b'"delta":{"content":"c"}', b'"length"'))
    client.data_received(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    assert one.completed
    assert one.foreign == 0


def test_tokens_that_nobody_asked_for_are_foreign() -> None:
    client, one, _ = asked(Stream(mark=3, tokens=1, marked=False, path=COMPLETIONS))
    client.data_received(HEAD + event(b'"text":"a"') + event(b'"text":"b"'))
    client.data_received(event(b'"text":"c"'))
    assert (one.tokens, one.foreign) == (3, 2)


def test_an_engine_of_our_own_is_told_the_length_in_the_body_alone() -> None:
    _, _, wire = asked(Stream(mark=3, tokens=7, marked=False, prompt_bytes=5))
    assert wire.written.startswith(b"POST %b HTTP/1.1\r\n" % CHAT.encode())
    assert b"X-Simulate" not in wire.written
    assert body_of(wire)["max_tokens"] == 7
    assert body_of(wire)["messages"] == [{"role": "user", "content": "3 www"}]
    _, _, wire = asked(Stream(mark=3, tokens=7, marked=False, path=COMPLETIONS, prompt_ids=(4, 5)))
    assert wire.written.startswith(b"POST %b HTTP/1.1\r\n" % COMPLETIONS.encode())
    assert body_of(wire)["prompt"] == [4, 5]


def test_the_limit_of_the_device_counts_what_prompts_take() -> None:
    assert limit_of(DEVICE, 0, 40.0) == 3200.0
    assert limit_of(DEVICE, 64, 40.0) == token_limit(DEVICE, prompt_bytes=256)
    assert limit_of(DEVICE, 500, 40.0) == pytest.approx(1 / (0.02 / 64 + 0.01 / 40))


def test_a_closed_loop_is_judged_by_its_rate_and_by_cpu_time_per_token() -> None:
    running = record(tokens=1)
    broken = record(tokens=2, ended=0.4)
    one = judged(
        result(whole(), running, broken, whole(foreign=1), arrivals=(500, 500), cpu_seconds=0.02),
        rate=limit_of(DEVICE, 23, 3.0) / 2,
        prompt_tokens=23,
        cpu_seconds=0.03,
        server_cpu_seconds=0.01,
    )
    assert one.share == pytest.approx(0.5)
    assert one.cpu_seconds == pytest.approx(30e-6)
    assert one.server_cpu_seconds == pytest.approx(10e-6)
    assert one.generator_cpu_seconds == pytest.approx(20e-6)
    assert one.wrong == 2
    told = refilled_figures("chats", [one], goals=True)
    assert [figure.holds for figure in told[:2]] == [False, True]
    assert all(figure.holds is None for figure in refilled_figures("x", [one], goals=False))


def report(running: int, used: int) -> StepReport:
    return StepReport(
        seconds=0.02,
        running=running,
        waiting=0,
        free_blocks=1000 - used,
        blocks=1000,
        backlog=0,
        preemptions=0,
        prefill_tokens=0,
    )


def test_blocks_are_free_once_only_those_of_the_others_are_taken() -> None:
    before = report(64, 832)
    assert not freed(before, report(64, 840), 32)
    assert not freed(before, report(32, 840), 32)
    assert freed(before, report(32, 416), 32)
    # Each that stays may have begun another block.
    assert freed(before, report(32, 448), 32)


def test_a_text_is_compared_token_by_token() -> None:
    wanted = ["abcdef", "abcdef", "abcdef", "abcdef"]
    seen = compared(wanted, ["abcdef", "abcd", "abccdef", "abcdef"], [True, False, True, True], 3)
    assert seen == Killed(under_way=3, lost=2 + 3, doubled=4, broken=1)


def test_one_wrong_token_in_any_round_is_told() -> None:
    well = Killed(under_way=60, lost=0, doubled=0, broken=0)
    ill = Killed(under_way=60, lost=1, doubled=0, broken=0)
    told = {one.name: one.holds for one in fault_figures([1, 1, 3], [2], [well, ill, well])}
    assert told["engine killed in mid-stream, 100 streams: tokens lost"] is False
    assert told["engine killed in mid-stream, 100 streams: tokens doubled"] is True
    assert told["cancel of half of 64 streams: steps until their blocks are free"] is True


LOAD = Load(name="2 at once", prompts=[[4, 300], [5]], tokens=[3, 3], goals={})


def test_a_rate_is_from_the_first_request_to_the_last_end() -> None:
    one, other = whole(sent=1.0, ended=2.0), whole(sent=1.1, ended=4.0)
    assert rate_of(result(one, other), LOAD) == 2.0
    with pytest.raises(AssertionError, match="1 streams were not whole"):
        rate_of(result(one, whole(told_end=False)), LOAD)


def test_the_simulated_device_gets_prompts_of_its_own_tokens() -> None:
    assert simulated(LOAD).prompts == [[4, 44], [5]]
    assert simulated(LOAD).tokens == LOAD.tokens


def test_the_chain_is_compared_with_the_loop_round_by_round() -> None:
    rounds = [Round(bare=100.0, through=96.0), Round(bare=50.0, through=48.5)]
    share = overhead_figures("48 at once", rounds)[0]
    assert share.value == pytest.approx(96.5)
    assert share.holds
