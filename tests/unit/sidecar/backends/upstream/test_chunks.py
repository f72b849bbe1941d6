"""Answers in chunks, cut anywhere."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_sidecar.backends.upstream.connection import AnswerHead, UpstreamConnection
from batchedmodel_sidecar.errors import Unserved
from support.wire import Wire

pytestmark = pytest.mark.looptime

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECES = st.lists(st.binary(min_size=1, max_size=300), max_size=6)
CUTS = st.lists(st.integers(1, 40), max_size=60)


@dataclass
class Listener:
    """Notes what it hears."""

    body: bytes = b""
    whole: bool = False
    errors: list[Unserved] = field(default_factory=list)

    def answered(self, head: AnswerHead) -> None:
        pass

    def piece(self, data: bytes) -> None:
        self.body += data

    def ended(self) -> None:
        self.whole = True

    def broke_off(self, error: Unserved) -> None:
        self.errors.append(error)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data, cut so, and the rest."""
    found, at = [], 0
    for size in cuts:
        found.append(data[at : at + size])
        at += size
    return [one for one in (*found, data[at:]) if one]


def heard(parts: list[bytes], over: list[bool] | None = None) -> Listener:
    """What is heard of an answer whose body is sent in these parts."""
    listener, made = Listener(), UpstreamConnection(asyncio.get_running_loop())
    made.send(listener, [b"request"], over=None if over is None else over.append)
    wire = Wire(made)
    wire.sends(HEAD)
    for part in parts:
        if not wire.is_closing():
            wire.sends(part)
    return listener


@given(PIECES, CUTS, st.sampled_from([b"", b";a=b", b"  "]), st.sampled_from([b"", b"x: y\r\n"]))
async def test_what_was_sent_comes_out_however_it_is_cut(
    pieces: list[bytes], cuts: list[int], extension: bytes, trailer: bytes
) -> None:
    wire = b"".join(b"%x%b\r\n%b\r\n" % (len(one), extension, one) for one in pieces)
    over = list[bool]()
    listener = heard(pieces_of(wire + b"0\r\n" + trailer + b"\r\n", cuts), over)
    assert (listener.body, listener.whole) == (b"".join(pieces), True)
    assert over == [True]


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "byte by byte"])
@pytest.mark.parametrize(
    "wire",
    [
        b"zz\r\n",
        b"-1\r\na\r\n",
        b"0x1\r\na\r\n",
        b"1_0\r\n",
        b"\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\r\r\n",
        b"1\r\na\n\n",
        b"f" * 5000,
        b"0\r\n" + b"x" * 20_000,
        b"1" * 17 + b"\r\n",
    ],
)
async def test_what_is_no_chunk_is_told(wire: bytes, at_once: bool) -> None:
    listener = heard([wire] if at_once else pieces_of(wire, [1] * len(wire)))
    assert [error.status for error in listener.errors] == [502]


@pytest.mark.parametrize(
    "surplus",
    [b"xy", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nX: y", b"\r\nHTTP/1.1 2"],
)
async def test_what_follows_the_end_takes_nothing_from_the_answer(surplus: bytes) -> None:
    over = list[bool]()
    listener = heard([b"2\r\nab\r\n0\r\n\r\n" + surplus], over)
    assert (listener.body, listener.whole) == (b"ab", True)
    assert over == [False], "the connection is not used again"


async def test_large_pieces_are_taken_as_they_come() -> None:
    pieces = [bytes([n]) * 500_000 for n in range(4)]
    wire = [b"%x\r\n%b\r\n" % (len(one), one) for one in pieces]
    listener = heard([*wire, b"0\r\n\r\n"])
    assert (listener.body, listener.whole) == (b"".join(pieces), True)


@given(st.binary(max_size=200), CUTS)
async def test_nothing_is_ever_raised(wire: bytes, cuts: list[int]) -> None:
    heard(pieces_of(wire, cuts))
