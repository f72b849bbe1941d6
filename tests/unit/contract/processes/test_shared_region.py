"""Memory that two processes share: sealed, bounded, and offered by name."""

import os
from collections.abc import Iterator

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.shared_region import create, mapped, offer, read_offer


@pytest.fixture
def region() -> Iterator[int]:
    descriptor = create(4096)
    yield descriptor
    os.close(descriptor)


def test_what_one_writes_the_other_reads(region: int) -> None:
    writing, reading = mapped(region, writable=True), mapped(region, writable=False)
    writing[:5] = b"hello"
    assert reading[:5] == b"hello"
    with pytest.raises(TypeError):
        reading[:5] = b"other"


@pytest.mark.parametrize("size", [0, 100, 8192])
def test_nobody_gives_it_another_size(region: int, size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(region, size)
    assert os.fstat(region).st_size == 4096


@pytest.mark.parametrize("size", [0, 4096])
def test_a_file_that_could_be_made_shorter_is_refused(size: int) -> None:
    descriptor = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    try:
        with pytest.raises(InvalidInput, match="not sealed"):
            mapped(descriptor, writable=False)
    finally:
        os.close(descriptor)


def test_a_file_that_knows_no_seals_is_an_error_of_the_system() -> None:
    here, there = os.pipe()
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            mapped(here, writable=False)
    finally:
        os.close(here)
        os.close(there)


def test_an_empty_region_is_refused() -> None:
    descriptor = create(0)
    try:
        with pytest.raises(InvalidInput, match="size"):
            mapped(descriptor, writable=False)
    finally:
        os.close(descriptor)


def test_an_offer_names_its_region() -> None:
    assert read_offer(offer("a1")) == "a1"


@pytest.mark.parametrize(
    "message", [b"", b"\xff", b"[]", b"{}", b'{"region": ""}', b'{"region": 1}', b"[" * 5000]
)
def test_what_is_no_offer_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidInput, match="region"):
        read_offer(message)
