"""Random pipelined requests, good and bad, cut anywhere: understood as by aiohttp's plain server.

That gets them byte by byte: of good requests in front of bad ones it would otherwise lose those
that come in the same piece. How bytes are cut must not change what they mean.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

import looptime
from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchedmodel_http.request_head import RequestHead
from batchedmodel_http.response import Response
from support.door_world import DoorWorld, PretendFront, call, turns
from support.examples import examples
from support.wire import Wire

SILENT: Final = logging.getLogger(f"{__name__}.silent")
SILENT.disabled = True  # aiohttp tells what is no request with a traceback each

Understood = list[tuple[str, str, bytes]]
"""Method, path and body of each request that was read to its end."""


async def is_read(request: web.BaseRequest, understood: Understood) -> bool:
    try:
        body = await request.read()
    except web.RequestPayloadError:
        return False
    understood.append((request.method, request.path, body))
    return True


@dataclass
class ReadingFront(PretendFront):
    """Takes calls as they are."""

    understood: Understood = field(default_factory=list)

    async def respond(self, asked: RequestHead, source: bytes, caller: str = "") -> Response:
        self.understood.append((asked.method, asked.path, source))
        return Response((b"read",))

    async def handle(self, request: web.BaseRequest) -> Response:
        return Response((b"read",), status=200 if await is_read(request, self.understood) else 400)


async def by_ours(sent: bytes, cuts: list[tuple[int, bool]]) -> tuple[Understood, bool]:
    """What is understood of the bytes, and whether the connection ended."""
    understood: Understood = []
    world = DoorWorld(ReadingFront(understood=understood))
    at = 0
    for size, waits in [*cuts, (len(sent), False)]:
        while not world.wire.reading:  # noqa: ASYNC110  # a caller can only look
            await asyncio.sleep(0.005)
        world.wire.sends(sent[at : at + size])
        at += size
        await asyncio.sleep(0.06 if waits else 0)
    return await ended(world.wire, understood)


async def by_aiohttp(requests: list[bytes]) -> tuple[Understood, bool]:
    understood: Understood = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.version not in (HttpVersion10, HttpVersion11):
            # The one rule in which ours is stricter: aiohttp takes a line without a version.
            return web.Response(status=400, headers={"Connection": "close"})
        if await is_read(request, understood):
            return web.Response(body=b"read")
        return web.Response(status=400, headers={"Connection": "close"})

    wire = Wire(web.Server(handle, access_log=None, auto_decompress=False, logger=SILENT)())
    for one in requests:
        # Of long ones all but the beginning is one body or one header.
        for piece in (*(one[at : at + 1] for at in range(min(len(one), 300))), one[300:]):
            if not wire.reading:
                await turns()
            if wire.reading:  # and else it reads nothing more: a body that it waits for broke off
                wire.sends(piece)
        await turns()
    return await ended(wire, understood)


async def ended(wire: Wire, understood: Understood) -> tuple[Understood, bool]:
    await asyncio.sleep(5.0)
    closing = wire.is_closing()
    wire.leaves()
    await turns()
    return understood, closing


class Shown(bytes):
    """Of which a report shows the beginning."""

    def __repr__(self) -> str:
        return repr(bytes(self[:150]))


def chunked(*lines: bytes, headers: str = "", path: str = "/call") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Transfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"".join(line + b"\r\n" for line in lines)


def get(*headers: str, first: str = "GET /other HTTP/1.1") -> bytes:
    return "\r\n".join([first, "Host: x", *headers, "", ""]).encode()


OFFER: Final = "Connection: upgrade\r\nUpgrade: "
UPGRADES: Final = [
    get("Connection: upgrade", "Upgrade: websocket"),
    get("Connection: upgrade", "Upgrade: h2c"),
    call(b"f", "Connection: upgrade", "Upgrade: websocket"),
    call(b"f", "Connection: upgrade", "Upgrade: h2c"),
    call(b"x" * 33_000, "Connection: upgrade", "Upgrade: h2c"),
    call(b"x" * 33_000, "Connection: upgrade", "Upgrade: websocket"),
    call(get(), "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAQAA"),
    get("Connection: upgrade", "Upgrade: TLS/1.0", first="OPTIONS * HTTP/1.1"),
    *(
        chunked(b"12", b"GET /s HTTP/1.1\r\n\r", b"0", b"", headers=f"{OFFER}{each}\r\n", path=path)
        for each in ("h2c", "websocket")
        for path in ("/call", "/other")
    ),
    chunked(b"1", b"a", b"0", b"x-trailer: 1", b"", headers=f"{OFFER}websocket\r\n"),
]
"""Answered as if nothing were said of another protocol."""
GOOD: Final = [
    call(b"a"),
    call(b"", path="/other"),
    call(b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"),
    call(b"x" * 33_000),
    call(b"b", "Expect: 100-continue"),
    call(b"c", "x-long: " + "y" * 5000),
    call(b"d", "Content-Encoding: gzip"),
    call(b"e", method="PUT"),
    chunked(b"1", b"a", b"0", b""),
    chunked(b"0", b""),
    chunked(b"a;name=value", b"0123456789", b"0", b"x-trailer: 1", b""),
    chunked(b"05", b"GET /", b"0", b"", path="/other"),
    get(),
    get(first="HEAD /other HTTP/1.1"),
    get(first="OPTIONS * HTTP/1.1"),
    get(first="GET http://y/other?a=b HTTP/1.1"),
    get("Connection: keep-alive", first="GET /other HTTP/1.0"),
    b"\r\n" + get(),
    *UPGRADES,
]
BAD: Final = [
    get(first="GET /other HTTP/1.0"),  # good, but the last
    get("Connection: close"),
    call(b"a", "Content-Length: 11"),
    call(b"a", "Transfer-Encoding: chunked"),
    call(b"a").replace(b"Length: 1", b"Length: +1"),
    call(b"a").replace(b"Length: 1", b"Length: -1"),
    call(b"a").replace(b"Length: 1", b"Length: 1, 1"),
    call(b"a").replace(b"Content-Length:", b"Content-Length :"),
    call(b"a").replace(b"Host: x\r\n", b""),
    call(b"a").replace(b"\r\n", b"\n"),
    chunked(b"1", b"a", b"two"),
    chunked(b"-1", b"a", b"0", b""),
    chunked(b"1", b"ab", b"0", b""),
    chunked(b"ffffffffffffffffff", b"a"),
    chunked(b"1", b"a", b"0", b"", headers="Transfer-Encoding: identity\r\n"),
    chunked(b"1", b"a", b"0", b"").replace(b"chunked", b"chunked, gzip"),
    get("x: \x00"),
    get(" folded"),
    get("no colon"),
    get("x-large: " + "y" * 10_000),
    get(first="get /other HTTP/1.1"),
    get(first="GET  /other HTTP/1.1"),
    get(first="GET other HTTP/1.1"),
    b"\x16\x03\x01 no request\r\n\r\n",
]


def changed(good: bytes, at: int, byte: int) -> bytes:
    """With another byte somewhere in its first lines, but for "#".

    A target with a fragment is refused here, and aiohttp drops the fragment.
    """
    at %= min(len(good), 120)
    byte = ord("?") if byte == ord("#") else byte
    return Shown(good[:at] + bytes([byte]) + good[at + 1 :])


good: Final = st.sampled_from([Shown(one) for one in GOOD])
bad: Final = st.sampled_from([Shown(one) for one in BAD]) | st.builds(
    changed,
    st.sampled_from([one for one in GOOD if len(one) < 300]),
    st.integers(0, 119),
    st.integers(0, 255),
)
cut: Final = st.lists(
    st.tuples(st.integers(1, 40) | st.integers(1, 20_000), st.booleans()), max_size=12
)


def test_a_target_with_a_fragment_is_refused() -> None:
    (ours, ended), (theirs, _) = by_both([get(first="GET /other#part HTTP/1.1"), get()], [])
    assert (ours, ended) == ([], True)
    assert len(theirs) == 2


@given(
    st.lists(good, max_size=4),
    st.none() | bad,
    st.lists(good, max_size=2),
    cut,
)
@example([call(b"a"), get()], BAD[-1], [], [])
@example([chunked(b"1", b"a", b"0", b"")], chunked(b"1", b"a", b"two"), [], [(200, True)])
@settings(max_examples=examples(200))
def test_however_requests_are_cut_they_mean_what_they_mean_to_a_plain_server(
    before: list[bytes], between: bytes | None, behind: list[bytes], cuts: list[tuple[int, bool]]
) -> None:
    requests = [*before, *([] if between is None else [between]), *behind]

    (ours, ended), (theirs, theirs_ended) = by_both(requests, cuts)
    assert ours == theirs
    # Behind a body that broke off, aiohttp waits for the rest.
    assert ended or not theirs_ended


@given(
    st.lists(st.sampled_from([Shown(one) for one in UPGRADES]) | good, min_size=1, max_size=4),
    st.none() | bad,
    cut,
)
@settings(max_examples=examples(100))
def test_an_offer_of_another_protocol_changes_nothing(
    offering: list[bytes], behind: bytes | None, cuts: list[tuple[int, bool]]
) -> None:
    (ours, ended), (theirs, theirs_ended) = by_both(
        [*offering, *([] if behind is None else [behind])], cuts
    )
    assert ours == theirs
    assert ended or not theirs_ended


Judged = tuple[Understood, bool]
"""What was understood, and whether the connection ended."""


def by_both(requests: list[bytes], cuts: list[tuple[int, bool]]) -> tuple[Judged, Judged]:
    async def both() -> tuple[Judged, Judged]:
        return await by_ours(b"".join(requests), cuts), await by_aiohttp(requests)

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        return runner.run(both())
