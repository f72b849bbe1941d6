"""When connections end: of age, for want of use, behind the last answers, or with their reader."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, cast

import pytest
from aiohttp import web

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_http.response import Response
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.http.body_reader import UnreadAnswers
from batchedmodel_sidecar.http.connections import Connections
from batchedmodel_sidecar.http.data_handler import DataHandler
from batchedmodel_sidecar.http.request import RequestHead
from support.responding import Responds
from support.wire import Wire

pytestmark = pytest.mark.looptime

AGE: Final = 1000.0
AT_MOST: Final = 10
IDLE: Final = 75.0
BUDGET: Final = 4_000_000
CALL: Final = b"POST /call HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na"
SLOW: Final = CALL.replace(b"Host", b"x-seconds: 10\r\nHost")
OTHER: Final = b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n"
SLOW_OTHER: Final = OTHER.replace(b"Host", b"x-seconds: 10\r\nHost")
CLOSE: Final = b"connection: close"


class Answering(Responds):
    """Answers what it is asked, after the seconds of `x-seconds`."""

    closing = False
    refusing = False

    def is_call(self, asked: RequestHead) -> bool:
        return asked.path == "/call"

    def left_early(self) -> None:
        raise AssertionError("all callers here stay until they have asked")

    def unreadable(self, status: int, rule: str) -> Response:
        return Response((b"unreadable",), status=status)

    async def respond(self, asked: RequestHead, source: bytes, caller: str = "") -> Response:
        await asyncio.sleep(float(asked.headers.get("x-seconds", 0)))
        return Response((b"answer",))

    async def handle(self, request: web.BaseRequest) -> Response:
        await request.read()
        await asyncio.sleep(float(request.headers.get("x-seconds", 0)))
        return Response((b"answer",))


@pytest.fixture
def front() -> Answering:
    return Answering()


@pytest.fixture
def budget() -> ByteBudget:
    return ByteBudget(BUDGET)


@pytest.fixture
async def connections(front: Answering, budget: ByteBudget) -> AsyncIterator[Connections]:
    made = Connections(
        cast("DataHandler", front),
        unread=UnreadAnswers(budget),
        hold=lambda address: budget.hold(Share(address)),
        mean_age=AGE,
        at_most=AT_MOST,
    )
    yield made
    await made.close(0.1)


@pytest.fixture
def caller(connections: Connections) -> Callable[..., Wire]:
    return lambda address=None: Wire(connections.open(), address)


async def ended(wire: Wire, before: float) -> float:
    """When the connection ended."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(before):
        while not wire.gone:  # noqa: ASYNC110  # a caller can only look
            await asyncio.sleep(1.0)
    return loop.time()


@pytest.mark.parametrize("asked", [b"", CALL, OTHER])
async def test_who_asks_nothing_for_long_is_hung_up_on(
    caller: Callable[[], Wire], asked: bytes
) -> None:
    wire = caller()
    await asyncio.sleep(10.0)
    wire.sends(*[asked][: bool(asked)])
    at = await ended(wire, 200.0)
    assert IDLE <= at <= 10.0 + IDLE + 2.0


@pytest.mark.parametrize("asked", [CALL, OTHER])
async def test_who_asks_now_and_then_stays_until_its_age(
    caller: Callable[[], Wire], asked: bytes
) -> None:
    wire = caller()
    while not wire.is_closing():
        await asyncio.sleep(60.0)
        wire.sends(asked)
        await asyncio.sleep(0.1)
    assert 0.8 * AGE <= asyncio.get_running_loop().time() <= 1.2 * AGE + 61.0
    assert [status for status, _ in wire.answers] == [200] * len(wire.answers)
    assert bytes(wire.written).lower().count(CLOSE) == 1
    assert CLOSE in bytes(wire.written).lower().rpartition(b"http/1.1")[2]


@pytest.mark.parametrize("asked", [SLOW, SLOW_OTHER])
async def test_work_is_not_idleness(caller: Callable[[], Wire], asked: bytes) -> None:
    wire = caller()
    for _ in range(20):
        wire.sends(asked)
        await asyncio.sleep(11.0)
    assert len(wire.answers) == 20
    assert not wire.is_closing()


@pytest.mark.parametrize("asked", [CALL, OTHER])
async def test_a_pod_that_refuses_ends_what_is_unused_and_what_works_or_is_new_a_second_later(
    caller: Callable[[], Wire], connections: Connections, front: Answering, asked: bytes
) -> None:
    """What was new at that moment kept its connection, and was refused on it later."""
    unused, working = caller(), caller()
    unused.sends(asked)
    working.sends(asked.replace(b"Host", b"x-seconds: 10\r\nHost"))
    await asyncio.sleep(2.0)
    new = caller()
    front.refusing = True
    connections.end_idle()
    assert unused.is_closing()
    assert not working.is_closing()
    assert not new.is_closing()
    late = caller()
    await asyncio.sleep(1.1)
    assert new.is_closing()
    assert late.is_closing()
    await asyncio.sleep(6.5)
    assert not working.is_closing()
    await asyncio.sleep(3.0)
    assert working.answers
    assert working.is_closing()


async def test_a_connection_is_kept_as_ever_once_calls_are_taken_again(
    caller: Callable[[], Wire], connections: Connections, front: Answering
) -> None:
    new = caller()
    front.refusing = True
    connections.end_idle()
    front.refusing = False
    await asyncio.sleep(IDLE - 1.0)
    assert not new.is_closing()


@pytest.mark.parametrize("before", [b"", CALL, OTHER])
async def test_a_head_has_ten_seconds_from_its_first_byte(
    caller: Callable[[], Wire], before: bytes
) -> None:
    wire = caller()
    wire.sends(*[before][: bool(before)])
    await asyncio.sleep(30.0)
    began = asyncio.get_running_loop().time()
    wire.sends(b"GET / HTTP/1.1\r\nx: ")
    while not wire.is_closing():
        await asyncio.sleep(0.5)
        wire.sends(b"y")
    assert 10.0 <= asyncio.get_running_loop().time() - began <= 11.0
    assert wire.answers[-1] == (408, b"unreadable")


async def test_a_body_may_be_slower_than_a_head(caller: Callable[[], Wire]) -> None:
    wire = caller()
    wire.sends(CALL[:-1])
    await asyncio.sleep(30.0)
    wire.sends(CALL[-1:])
    await asyncio.sleep(1.0)
    assert wire.answers == [(200, b"answer")]
    assert not wire.is_closing()


async def test_a_request_that_names_no_version_is_refused(caller: Callable[[], Wire]) -> None:
    wire = caller()
    wire.sends(b"GET /call\r\n\r\n")
    await asyncio.sleep(1.0)
    assert wire.answers == [(400, b"unreadable")]
    assert wire.gone


async def test_no_more_callers_stay_than_may(caller: Callable[[], Wire]) -> None:
    wires = []
    for _ in range(AT_MOST + 1):
        wires.append(caller())
        wires[-1].sends(SLOW)  # whoever is at work stays
    await asyncio.sleep(0.1)
    assert [wire.aborted for wire in wires] == [False] * AT_MOST + [True]
    wires[0].leaves()
    await asyncio.sleep(0.1)
    assert not caller().aborted


async def test_when_nearly_all_connections_are_used_the_largest_holder_loses_idle_ones(
    caller: Callable[..., Wire],
) -> None:
    small = [caller("10.0.0.1") for _ in range(3)]
    large = [caller("10.0.0.2") for _ in range(6)]
    large[0].sends(SLOW)
    large[1].sends(b"GET / HT")
    await asyncio.sleep(1.0)
    for number in range(3):
        assert not caller(f"10.0.1.{number}").aborted
        await asyncio.sleep(0.1)
    assert [wire.gone for wire in large] == [False, True, True, True, False, False]
    assert not any(wire.gone for wire in small)


UPLOAD: Final = b"POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\na"


async def test_slow_bodies_of_one_address_give_way_to_another(
    caller: Callable[..., Wire],
) -> None:
    large = [caller("10.0.0.2") for _ in range(9)]
    for wire in large:
        wire.sends(UPLOAD)
    await asyncio.sleep(1.0)
    for number in range(3):
        assert not caller(f"10.0.1.{number}").aborted
        await asyncio.sleep(0.1)
    assert [wire.gone for wire in large] == [True] * 3 + [False] * 6
    large[-1].sends(b"bcdefghi")
    await asyncio.sleep(0.1)
    assert [status for status, _ in large[-1].answers] == [200]


async def test_a_slow_body_does_not_give_way_to_its_own_address(
    caller: Callable[..., Wire],
) -> None:
    wires = []
    for _ in range(AT_MOST):
        wires.append(caller("10.0.0.2"))
        wires[-1].sends(UPLOAD)
        await asyncio.sleep(0.1)
    assert caller("10.0.0.2").aborted
    assert not any(wire.gone for wire in wires)


async def test_all_addresses_of_one_network_hold_connections_together(
    caller: Callable[..., Wire],
) -> None:
    small = [caller("10.0.0.1") for _ in range(3)]
    large = [caller(f"2001:db8::{number}") for number in range(6)]
    await asyncio.sleep(1.0)
    for number in range(3):
        assert not caller(f"10.0.1.{number}").aborted
        await asyncio.sleep(0.1)
    assert not any(wire.gone for wire in small)
    assert sum(wire.gone for wire in large) == 3


async def test_while_there_is_room_nobody_loses_an_idle_connection(
    caller: Callable[..., Wire],
) -> None:
    wires = [caller("10.0.0.1") for _ in range(AT_MOST - 1)]
    await asyncio.sleep(1.0)
    assert not any(wire.gone for wire in wires)


@pytest.mark.parametrize("asked", [CALL, OTHER])
async def test_while_draining_each_answer_is_the_last(
    caller: Callable[[], Wire], front: Answering, asked: bytes
) -> None:
    wire = caller()
    wire.sends(asked)
    await asyncio.sleep(0.1)
    front.closing = True
    wire.sends(asked)
    await asyncio.sleep(0.1)
    assert wire.gone
    assert bytes(wire.written).lower().count(CLOSE) == 1


async def test_the_end_waits_for_answers_under_way_and_for_nobody_else(
    connections: Connections, caller: Callable[[], Wire]
) -> None:
    silent, half, idle, used_by_both, general = (caller() for _ in range(5))
    half.sends(CALL[:20])
    idle.sends(CALL)
    used_by_both.sends(OTHER)
    await asyncio.sleep(1.0)
    used_by_both.sends(SLOW)
    general.sends(SLOW_OTHER)
    await asyncio.sleep(1.0)
    started = asyncio.get_running_loop().time()
    await connections.close(30.0)
    assert asyncio.get_running_loop().time() - started == pytest.approx(9.0, abs=0.5)
    assert not any(wire.aborted for wire in (silent, half, idle, used_by_both, general))
    assert [len(wire.answers) for wire in (silent, half, idle, used_by_both, general)] == [
        0, 0, 1, 2, 1,
    ]  # fmt: skip


async def test_the_end_does_not_wait_longer_than_it_may(
    connections: Connections, caller: Callable[[], Wire]
) -> None:
    wires = [caller(), caller(), caller()]
    wires[0].sends(SLOW)
    wires[1].sends(SLOW_OTHER)
    wires[2].stops_reading()
    wires[2].sends(CALL)
    await asyncio.sleep(1.0)
    started = asyncio.get_running_loop().time()
    await connections.close(3.0)
    assert asyncio.get_running_loop().time() - started == pytest.approx(3.0, abs=0.1)
    assert all(wire.aborted for wire in wires)


@pytest.mark.parametrize("closing", [False, True])
async def test_an_answer_that_nobody_reads_is_not_kept_for_ever(
    caller: Callable[[], Wire], front: Answering, closing: bool
) -> None:
    front.closing = closing
    wire = caller()
    wire.stops_reading()
    wire.sends(CALL)
    await asyncio.sleep(1.5 * IDLE)
    assert wire.is_closing()
    assert not wire.aborted
    await asyncio.sleep(2.0 * IDLE)
    assert wire.aborted


async def test_an_answer_that_is_read_slowly_is_read_to_its_end(caller: Callable[[], Wire]) -> None:
    wire = caller()
    wire.stops_reading()
    wire.sends(CALL)
    for _ in range(10):
        wire.reads_some()
        await asyncio.sleep(IDLE)
    assert wire.is_closing()
    assert not wire.aborted
    wire.reads()
    await asyncio.sleep(1.0)
    assert wire.gone


async def test_what_is_no_request_is_answered_by_the_front_and_ends_the_connection(
    caller: Callable[[], Wire],
) -> None:
    wire = caller()
    wire.sends(b"\x16\x03\x01 is no request\r\n\r\n")
    await asyncio.sleep(1.0)
    assert wire.answers == [(400, b"unreadable")]
    assert wire.gone


@pytest.mark.parametrize("asked", [SLOW, SLOW_OTHER])
async def test_what_is_sent_ahead_counts_in_the_memory_of_callers(
    caller: Callable[[], Wire], budget: ByteBudget, asked: bytes
) -> None:
    wire = caller()
    wire.sends(asked + b"x" * 30_000)
    await asyncio.sleep(0.5)
    assert budget.in_use == 30_000
    wire.sends(b"x" * 1000)
    assert budget.in_use == 31_000
    wire.leaves()
    await asyncio.sleep(0.1)
    assert budget.in_use == 0


@pytest.mark.parametrize("asked", [SLOW, SLOW_OTHER])
async def test_who_sends_ahead_more_than_fits_is_hung_up_on(
    caller: Callable[[], Wire], budget: ByteBudget, asked: bytes
) -> None:
    wire = caller()
    wire.sends(asked + b"x" * (BUDGET + 1))
    await asyncio.sleep(0.5)
    assert wire.gone
    assert budget.in_use == 0
