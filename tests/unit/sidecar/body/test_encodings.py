"""Compressed bodies: what is understood, and how little a bomb costs."""

import asyncio
import gzip
import random
import time
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.body.encodings import (
    Compression,
    Encoding,
    encoding_of,
    inflated,
    wants_gzip,
)
from batchedmodel_sidecar.errors import Rejected
from support.examples import examples

DATA = b"some data, some data, some data"
LIMIT = 1000
NOISE = random.Random(3).randbytes(4_000_000)
PACKED = gzip.compress(NOISE, 1)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (gzip.compress(DATA), Encoding.GZIP),
        (gzip.compress(DATA[:9]) + gzip.compress(DATA[9:]), Encoding.GZIP),
        (zlib.compress(DATA), Encoding.DEFLATE),
        (raw_deflate(DATA), Encoding.DEFLATE),
    ],
    ids=["gzip", "gzip in two members", "deflate in zlib's form", "bare deflate"],
)
def test_every_form_is_inflated(packed: bytes, encoding: Encoding) -> None:
    assert inflated(packed, encoding, LIMIT) == DATA
    assert inflated(packed, encoding, len(DATA)) == DATA
    with pytest.raises(Rejected, match="larger than the 30 bytes taken here, once inflated"):
        inflated(packed, encoding, len(DATA) - 1)


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize(
    "packed",
    [b"", b"hello", gzip.compress(DATA)[:-1], zlib.compress(DATA)[:9]],
    ids=["nothing", "text", "gzip cut short", "deflate cut short"],
)
def test_what_is_not_compressed_as_it_says_is_refused(packed: bytes, encoding: Encoding) -> None:
    with pytest.raises(InvalidInput, match="body: "):
        inflated(packed, encoding, LIMIT)


def test_what_follows_a_deflate_body_is_refused() -> None:
    with pytest.raises(InvalidInput, match="goes on behind its deflate data"):
        inflated(zlib.compress(DATA) + b"more", Encoding.DEFLATE, LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_bomb_costs_no_more_than_the_bound(encoding: Encoding) -> None:
    pack = gzip.compress if encoding is Encoding.GZIP else zlib.compress
    bomb = pack(bytes(60_000_000))
    limit = 4_000_000
    tracemalloc.start()
    started = time.monotonic()
    with pytest.raises(Rejected) as caught:
        inflated(bomb, encoding, limit)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.status == 413
    assert time.monotonic() - started < 1.0
    assert peak < 3 * limit


def test_members_without_data_are_bounded_too() -> None:
    with pytest.raises(InvalidInput, match="has more than 1000 members"):
        inflated(gzip.compress(b"") * 2000, Encoding.GZIP, LIMIT)


@pytest.mark.parametrize("packed", [gzip.compress(b"") * 900 + PACKED, PACKED])
def test_what_is_behind_a_step_or_a_member_is_not_copied_each_time(
    monkeypatch: pytest.MonkeyPatch, packed: bytes
) -> None:
    """zlib copies all that it is given and does not use: 900 members cost gigabytes."""
    handed = 0
    new = zlib.decompressobj

    class Counted:
        def __init__(self, bits: int) -> None:
            self._member = new(bits)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal handed
            handed += len(data)
            return self._member.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._member, name)

    monkeypatch.setattr(zlib, "decompressobj", Counted)
    assert inflated(packed, Encoding.GZIP, 4 * len(PACKED)) == NOISE
    assert handed < 2 * len(packed) + 900 * 64 * 1024


@settings(max_examples=examples(300))
@given(st.binary(max_size=200), st.sampled_from(Encoding))
def test_any_bytes_are_inflated_or_refused(data: bytes, encoding: Encoding) -> None:
    try:
        assert len(inflated(data, encoding, LIMIT)) <= LIMIT
    except (InvalidInput, Rejected) as refused:
        str(refused).encode()


@settings(max_examples=examples(200))
@given(st.binary(max_size=600), st.integers(0, 700), st.binary(max_size=3))
def test_any_damage_is_noticed_or_harmless(data: bytes, at: int, damage: bytes) -> None:
    packed = gzip.compress(data)
    broken = packed[:at] + damage + packed[at + len(damage) :]
    try:
        inflated(broken, Encoding.GZIP, LIMIT)
    except (InvalidInput, Rejected):
        return


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        (None, None),
        ("", None),
        ("identity", None),
        ("gzip", Encoding.GZIP),
        (" GZIP ", Encoding.GZIP),
        ("x-gzip", Encoding.GZIP),
        ("deflate", Encoding.DEFLATE),
    ],
)
def test_an_encoding_is_known_by_its_name(header: str | None, encoding: Encoding | None) -> None:
    assert encoding_of(header) is encoding


@pytest.mark.parametrize("header", ["br", "zstd", "gzip, gzip", "\udcff"])
def test_an_encoding_that_is_not_understood_is_415(header: str) -> None:
    with pytest.raises(Rejected, match="is not one of gzip, deflate") as caught:
        encoding_of(header)
    assert caught.value.status == 415
    str(caught.value).encode()


LARGE = 64 * 1024


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, False),
        ("", False),
        ("identity", False),
        ("br", False),
        ("gzip", True),
        ("x-gzip", True),
        ("*", True),
        ("gzip, deflate, br, zstd", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=nonsense", False),
    ],
)
def test_large_answers_are_compressed_for_those_who_ask(header: str | None, wanted: bool) -> None:
    assert wants_gzip(header, LARGE) is wanted
    assert not wants_gzip(header, LARGE - 1)


async def test_a_flood_of_bombs_keeps_another_tenant_waiting_for_few() -> None:
    codec, done = Compression(), list[str]()
    bomb = gzip.compress(bytes(4_000_000), 1)

    async def inflate(tenant: str) -> None:
        limit, share = 4_000_000, Share(tenant)
        size = await codec.inflated(bomb, Encoding.GZIP, limit, len, share)
        assert size == limit
        done.append(tenant)

    async with asyncio.TaskGroup() as group:
        for _ in range(30):
            group.create_task(inflate("flood"))
        await asyncio.sleep(0)
        group.create_task(inflate("other"))
    assert done.index("other") <= 10, "in the order in which they came it is the last of 31"
    assert len(done) == 31


async def test_a_flood_of_large_answers_keeps_another_tenant_waiting_for_few() -> None:
    codec, done = Compression(), list[str]()
    answer = random.Random(1).randbytes(1_000_000)

    async def shorten(tenant: str) -> None:
        assert gzip.decompress(await codec.gzipped([answer], Share(tenant))) == answer
        done.append(tenant)

    async with asyncio.TaskGroup() as group:
        for _ in range(30):
            group.create_task(shorten("flood"))
        await asyncio.sleep(0)
        group.create_task(shorten("other"))
    assert done.index("other") <= 10, "in the order in which they came it is the last of 31"
    assert len(done) == 31
