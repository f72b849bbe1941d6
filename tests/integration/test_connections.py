"""Connections over real sockets: however requests are cut and mixed, each has its own answer."""

import asyncio
import gzip
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.books import assert_books_balance
from support.chain import Chain, running_chain
from support.examples import examples
from support.process_memory import resident_bytes
from support.raw_caller import RawCaller, Told, request
from support.row_server import RowServer, in_front

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS: Final = 20.0
INFER: Final = "/v2/models/m/infer"
AT_ONCE: Final = BatchSettings(policy=PolicyName.GREEDY)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One for all, whose books must balance and whose log must be clean at the end."""
    device = {"fixedSeconds": "0.001", "rowSeconds": "0"}
    async with running_chain(
        tmp_path_factory.mktemp("cut"),
        handler="simulated",
        parameters=device,
        settings=AT_ONCE,
        max_body_bytes=300_000,
    ) as running:
        yield running
        await assert_unharmed(running)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def upstream(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """The same in front of an upstream server."""
    folder = tmp_path_factory.mktemp("upstream")
    async with RowServer() as server, in_front(server, folder, ServerProtocol.V2) as running:
        yield running
        await assert_unharmed(running)


async def assert_unharmed(chain: Chain) -> None:
    await assert_books_balance(chain)
    assert not [line for line in chain.sidecar.lines if " ERROR " in line]


def row(*values: int, datatype: str = "INT64", **more: Any) -> bytes:
    entry = {"name": "x", "datatype": datatype, "shape": [1, len(values)], "data": list(values)}
    return json.dumps({"inputs": [entry], **more}).encode()


small = st.integers(0, 9).map(lambda value: request(INFER, row(value, value + 1)))
"""What the front answers at once; all others are aiohttp's in one way or another."""
others = st.sampled_from(
    [
        request(INFER, row(*range(8000))),
        request(INFER, row(*range(30_000))),
        request(INFER, row(1), chunks=10),
        request(INFER, row(1), "x-long: " + "y" * 5000),
        request(INFER, row(1), "x-about: y"),
        request(INFER, gzip.compress(row(2), mtime=0), "Content-Encoding: gzip"),
        request(INFER, gzip.compress(row(*range(5000)), mtime=0), "Content-Encoding: gzip"),
        request(INFER, b"not gzip", "Content-Encoding: gzip"),
        request(INFER, b"x", "Content-Encoding: br"),
        request(INFER, b"{"),
        request(INFER, b""),
        request(INFER, b"POST /v2/models/m/infer HTTP/1.1\r\n\r\n"),
        request(INFER, row(1), "x-request-timeout-ms: never"),
        request("/v2/models/other/infer", row(1)),
        request("http://x" + INFER, row(3)),
        request("/v2/models/m%2Finfer?a=b", row(4)),
        request(INFER, row(1), method="PUT"),
        request("/v2/models/m", method="GET"),
        request("/v2", b"a body", method="GET"),
        request("/nothing", b"x" * 50_000),
        b"\r\n" + request(INFER, row(5)),
    ]
)
alone = st.sampled_from(
    [
        request(INFER, row(1, datatype="FP32")),
        request(INFER, row(2, datatype="FP32"), "x-batch: off"),
        request(INFER, row(3, datatype="FP32"), "x-batch: perhaps"),
        request(INFER, row(*range(9000), datatype="FP32"), "x-batch: off"),
        request(INFER, b"{}"),
        request(INFER, b"{" + b"x" * 2000),
        request(INFER, gzip.compress(b"[%b]" % row(*range(999))), "Content-Encoding: gzip"),
        request("/elsewhere", b"x", method="PUT"),
        request("/v2/models/m", method="GET"),
    ]
)
cuts = st.lists(
    st.tuples(
        st.integers(1, 300) | st.integers(1, 60_000), st.sampled_from([0.0, 0.0, 0.002, 0.06])
    )
)
"""Bytes that are sent together, and seconds until the next."""

told_alone: dict[tuple[int, bytes], Told] = {}


async def on_its_own(chain: Chain, sent: bytes) -> Told:
    """What a request is told that has a connection for itself; asked once."""
    if (chain.port, sent) not in told_alone:
        async with RawCaller.calling(chain.port) as caller:
            caller.sends(sent)
            told_alone[chain.port, sent] = await caller.answer()
    return told_alone[chain.port, sent]


async def assert_told_as_alone(
    chain: Chain, sent: list[bytes], cut: list[tuple[int, float]], *, waits: bool
) -> None:
    """Over one connection, in such pieces; one that `waits` asks only when it was answered."""
    expected = [await on_its_own(chain, one) for one in sent]

    async def say(caller: RawCaller, data: bytes) -> None:
        at = 0
        for size, seconds in [*cut, (len(data), 0.0)]:
            caller.sends(data[at : at + size])
            at += size
            if at >= len(data):
                break
            await asyncio.sleep(seconds)

    async with asyncio.timeout(SECONDS), RawCaller.calling(chain.port) as caller:
        if waits:
            told = []
            for one in sent:
                await say(caller, one)
                told.append(await caller.answer())
        else:
            saying = asyncio.create_task(say(caller, b"".join(sent)))
            told = [await caller.answer() for _ in sent]
            await saying
    assert told == expected


mixed = settings(max_examples=examples(60))


@mixed
@given(st.lists(small | small | others, min_size=1, max_size=10), cuts, st.booleans())
async def test_however_requests_are_cut_and_mixed_each_is_told_what_it_is_told_alone(
    chain: Chain, sent: list[bytes], cut: list[tuple[int, float]], waits: bool
) -> None:
    await assert_told_as_alone(chain, sent, cut, waits=waits)


@mixed
@given(st.lists(alone, min_size=1, max_size=8), cuts, st.booleans())
async def test_so_it_is_in_front_of_an_upstream_server_that_gets_some_of_them_as_they_are(
    upstream: Chain, sent: list[bytes], cut: list[tuple[int, float]], waits: bool
) -> None:
    await assert_told_as_alone(upstream, sent, cut, waits=waits)


@mixed
@given(st.lists(small | others, min_size=1, max_size=4), st.floats(0, 1), st.booleans())
async def test_callers_that_leave_anywhere_leave_the_books_balanced(
    chain: Chain, sent: list[bytes], share: float, half: bool
) -> None:
    data = b"".join(sent)
    async with RawCaller.calling(chain.port) as caller:
        caller.sends(data[: int(share * len(data))])
        await asyncio.sleep(0.001)
        if half:
            caller.writer.write_eof()
            await asyncio.sleep(0.001)
    await assert_books_balance(chain)


EARLY: Final = {
    "half a small body": request(INFER, row(*range(900)))[:-50],
    "half a large body": request(INFER, row(*range(30_000)))[:-50],
    "no body yet": request(INFER, row(1)).partition(b"{")[0],
    "a part of a chunk": request(INFER, row(*range(900)), chunks=500)[:-50],
    "half a compressed body": request(
        INFER, gzip.compress(row(*range(900)), mtime=0), "Content-Encoding: gzip"
    )[:-50],
    "all of it": request(INFER, row(*range(30_000))),
}


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.08])
@pytest.mark.parametrize("farewell", [True, False])
async def test_whoever_asks_and_leaves_early_is_counted_once(
    chain: Chain, early: str, seconds: float, farewell: bool
) -> None:
    callers = 10

    async def comes_and_leaves() -> None:
        async with RawCaller.calling(chain.port) as caller:
            caller.sends(EARLY[early])
            await caller.writer.drain()
            await asyncio.sleep(seconds)
            if farewell:
                caller.writer.write_eof()

    offered = "batchedmodel_requests_offered_total"
    before = await chain.metric(offered)
    await asyncio.gather(*(comes_and_leaves() for _ in range(callers)))
    await chain.until(offered, lambda count: count >= before + callers)
    await asyncio.sleep(0.02)
    assert await chain.metric(offered) == before + callers
    await assert_books_balance(chain)


UNREADABLE: Final = {
    b"NO\r\n\r\n": 400,
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n": 400,
    b"GET / HTTP/9.9\r\n\r\n": 400,
    b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nHost: x\r\nx-large: " + b"y" * 10_000 + b"\r\n\r\n": 431,
    b"GET /" + b"y" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n": 431,
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"x: y\r\n" * 500 + b"\r\n": 400,
}


@pytest.mark.parametrize("sent", UNREADABLE, ids=lambda sent: repr(sent[:20]))
async def test_bytes_that_are_no_request_are_refused_in_our_words_and_counted(
    chain: Chain, sent: bytes
) -> None:
    name = "batchedmodel_requests_rejected_total"
    before = await chain.metric(name, reason="invalid")
    async with asyncio.timeout(SECONDS), RawCaller.calling(chain.port) as caller:
        caller.sends(sent)
        head = await caller.permission()
        assert b"\r\nx-request-outcome: invalid\r\n" in head
        assert b"\r\nContent-Type: application/json\r\n" in head
        assert head.split()[1] == b"%d" % UNREADABLE[sent]
        error = json.loads(await caller.rest())["error"]
        assert 0 < len(error) < 300
    assert await chain.metric(name, reason="invalid") == before + 1


@pytest.mark.parametrize("manner", ["x-nothing: 1", "x-batch: off"])
@pytest.mark.parametrize("pause", [0.0, 0.1])
async def test_a_body_that_goes_on_with_no_chunk_is_refused_at_once_and_ends_the_connection(
    chain: Chain, upstream: Chain, manner: str, pause: float
) -> None:
    begun = request(INFER, row(1), manner, chunks=10).removesuffix(b"0\r\n\r\n")
    for each in (chain, upstream):
        async with asyncio.timeout(SECONDS / 4), RawCaller.calling(each.port) as caller:
            caller.sends(begun)
            await asyncio.sleep(pause)
            caller.sends(b"two\r\n")
            answer = await caller.rest()
            assert answer.split()[1] == b"400", answer
            assert len(re.findall(rb"HTTP/1\.[01] ", answer)) == 1


async def test_of_a_flood_without_reading_little_is_taken_and_others_are_served(
    chain: Chain,
) -> None:
    before = resident_bytes(chain.sidecar.pid)
    flood = request(INFER, row(*range(400))) * 100

    async def pour(caller: RawCaller) -> None:
        while True:
            caller.sends(flood)
            await caller.writer.drain()

    async with RawCaller.calling(chain.port) as caller:
        # The caller's own buffers would otherwise read on its behalf.
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it can
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.0):
                await pour(caller)
        assert await on_its_own(chain, request(INFER, row(77)))
        assert resident_bytes(chain.sidecar.pid) < before + 20_000_000
    await assert_books_balance(chain)


async def test_a_slow_reader_of_large_answers_gets_them_whole_and_in_order(chain: Chain) -> None:
    sent = [request(INFER, row(*range(start, start + 4000))) for start in range(100)]
    async with asyncio.timeout(SECONDS), RawCaller.calling(chain.port) as caller:
        caller.sends(b"".join(sent))
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it can
        await asyncio.sleep(1.0)
        caller.writer.transport.resume_reading()  # type: ignore[attr-defined]  # it can
        for start in range(100):
            status, body = await caller.answer()
            assert status == 200
            assert json.loads(body)["outputs"][0]["data"] == list(range(start, start + 4000))


async def test_bytes_one_by_one_are_requests_as_well(chain: Chain) -> None:
    sent = request(INFER, row(1)) + request("/v2", method="GET") + request(INFER, row(2))
    async with asyncio.timeout(SECONDS), RawCaller.calling(chain.port) as caller:
        for byte in sent:
            caller.sends(bytes([byte]))
            await asyncio.sleep(0.0005)
        assert [(await caller.answer())[0] for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize(
    ("manner", "closes"),
    [
        ("HTTP/1.0\r\n", True),
        ("HTTP/1.0\r\nConnection: keep-alive\r\n", False),
        ("HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", True),
        ("HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", False),
    ],
)
async def test_callers_of_other_manners_are_answered_and_kept_as_they_wish(
    chain: Chain, manner: str, closes: bool
) -> None:
    body = row(6)
    lines = f"POST {INFER} {manner}Content-Length: {len(body)}\r\n\r\n"
    async with asyncio.timeout(SECONDS), RawCaller.calling(chain.port) as caller:
        caller.sends(lines.encode() + body)
        assert (await caller.answer())[0] == 200
        if closes:
            with pytest.raises(asyncio.IncompleteReadError):
                await caller.answer()
        else:
            caller.sends(request(INFER, row(7)))
            assert (await caller.answer())[0] == 200


async def test_who_waits_for_permission_gets_it_and_then_the_answer(chain: Chain) -> None:
    data = request(INFER, row(8), "Expect: 100-continue")
    head = data[: data.index(b"\r\n\r\n") + 4]
    async with asyncio.timeout(SECONDS), RawCaller.calling(chain.port) as caller:
        caller.sends(head)
        assert await caller.permission() == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.sends(data[len(head) :])
        assert (await caller.answer())[0] == 200


async def test_a_body_that_a_smuggler_hides_a_request_in_is_a_body_or_nothing(
    chain: Chain,
) -> None:
    hidden = request(INFER, row(1))
    for framing in (
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        f"Content-Length: {len(hidden)}\r\nContent-Length: 0",
        f"Content-Length: 0\r\nContent-Length : {len(hidden)}",
        "Transfer-Encoding: xchunked\r\nContent-Length: 0",
        f"X: y\nContent-Length: {len(hidden)}",
        "Content-Length: 0\r\n Transfer-Encoding: chunked",
    ):
        async with asyncio.timeout(SECONDS), RawCaller.calling(chain.port) as caller:
            caller.sends(f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode() + hidden)
            assert (await caller.answer())[0] == 400, framing
            with pytest.raises(asyncio.IncompleteReadError):
                await caller.answer()


async def test_an_answer_under_way_outlives_the_order_to_stop(tmp_path: Path) -> None:
    """Also over a connection that aiohttp has served before."""
    async with running_chain(
        tmp_path, handler="simulated", parameters={"fixedSeconds": "1"}, settings=AT_ONCE
    ) as chain:
        async with RawCaller.calling(chain.port) as caller:
            caller.sends(request("/v2", method="GET"))
            assert (await caller.answer())[0] == 200
            caller.sends(request(INFER, row(1)))
            await chain.until("batchedmodel_inflight_requests", lambda value: value == 1)
            chain.sidecar.send(signal.SIGTERM)
            assert (await caller.answer())[0] == 200
        assert await chain.sidecar.ended() == 0
