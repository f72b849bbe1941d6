"""Bodies in chunks, cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_sidecar.backends.upstream.connection import ChunkDecoder, NoChunk

PIECES = st.lists(st.binary(min_size=1, max_size=300), max_size=6)
CUTS = st.lists(st.integers(1, 40), max_size=60)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data, cut so, and the rest."""
    found, at = [], 0
    for size in cuts:
        found.append(data[at : at + size])
        at += size
    return [one for one in (*found, data[at:]) if one]


def decoded(parts: list[bytes]) -> bytes:
    decoder = ChunkDecoder()
    return b"".join(decoder.feed(part) for part in parts)


@given(PIECES, CUTS, st.sampled_from([b"", b";a=b", b"  "]), st.sampled_from([b"", b"x: y\r\n"]))
def test_what_was_sent_comes_out_however_it_is_cut(
    pieces: list[bytes], cuts: list[int], extension: bytes, trailer: bytes
) -> None:
    wire = b"".join(b"%x%b\r\n%b\r\n" % (len(one), extension, one) for one in pieces)
    decoder = ChunkDecoder()
    parts = pieces_of(wire + b"0\r\n" + trailer + b"\r\n", cuts)
    out = b"".join(decoder.feed(part) for part in parts)
    assert out == b"".join(pieces)
    assert decoder.ended


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
        b"0\r\n" + b"x" * 5000,
        b"1" * 16 + b"\r\n",
    ],
)
def test_what_is_no_chunk_is_told(wire: bytes, at_once: bool) -> None:
    with pytest.raises(NoChunk):
        decoded([wire] if at_once else pieces_of(wire, [1] * len(wire)))


def test_what_follows_the_end_takes_nothing_from_the_answer() -> None:
    decoder = ChunkDecoder()
    assert decoder.feed(b"2\r\nab\r\n0\r\n\r\nxy") == b"ab"
    assert decoder.ended


@given(st.binary(max_size=200), CUTS)
def test_nothing_else_is_ever_raised(wire: bytes, cuts: list[int]) -> None:
    decoder = ChunkDecoder()
    try:
        for part in pieces_of(wire, cuts):
            decoder.feed(part)
    except NoChunk:
        pass
