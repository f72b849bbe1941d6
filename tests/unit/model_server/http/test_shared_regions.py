"""Offers of shared memory: taken as long as their sender lives, and refused where they could harm.

Over a real socket, since descriptors travel over no other.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from batchedmodel_contract.processes.shared_region import TAKEN, create, offer
from batchedmodel_model_server.http.shared_regions import SharedRegions

MOST: Final = 8


@pytest.fixture
async def regions(tmp_path: Path) -> AsyncIterator[SharedRegions]:
    made = SharedRegions(tmp_path / "m.sock.memory")
    made.open()
    yield made
    made.close()
    assert not made.known
    assert not (tmp_path / "m.sock.memory").exists()


class Proxy:
    """Whoever offers."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.setblocking(False)
        self.path = str(folder / "m.sock.memory")

    async def offers(self, message: bytes, *descriptors: int) -> bytes:
        loop = asyncio.get_running_loop()
        if not self._connected():
            await loop.sock_connect(self.socket, self.path)
        socket.send_fds(self.socket, [message], list(descriptors))
        try:
            async with asyncio.timeout(5.0):
                return await loop.sock_recv(self.socket, 10)
        except ConnectionResetError:
            return b""

    def _connected(self) -> bool:
        try:
            self.socket.getpeername()
        except OSError:
            return False
        return True


Come = Callable[[], Proxy]


@pytest.fixture
def come(tmp_path: Path) -> Iterator[Come]:
    """Makes proxies, which leave when the test ends."""
    came: list[Proxy] = []

    def make() -> Proxy:
        came.append(Proxy(tmp_path))
        return came[-1]

    yield make
    for proxy in came:
        proxy.socket.close()


async def shared(proxy: Proxy, name: str = "a") -> int:
    descriptor = create(1 << 20)
    assert await proxy.offers(offer(name), descriptor) == TAKEN
    return descriptor


async def until_known(regions: SharedRegions, names: set[str]) -> None:
    async with asyncio.timeout(5.0):
        while set(regions.known) != names:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_what_is_written_to_a_region_is_read_here(regions: SharedRegions, come: Come) -> None:
    descriptor = await shared(come())
    os.pwrite(descriptor, b"hello", 100)
    os.close(descriptor)
    assert bytes(regions.known["a"][100:105]) == b"hello"


async def test_a_region_is_forgotten_with_its_sender_and_stays_for_who_reads_it(
    regions: SharedRegions, come: Come
) -> None:
    proxy, other = come(), come()
    descriptor = await shared(proxy)
    os.pwrite(descriptor, b"hello", 0)
    os.close(descriptor)
    os.close(await shared(other, "b"))
    row = regions.known["a"][:5]
    proxy.socket.close()
    await until_known(regions, {"b"})
    assert bytes(row) == b"hello"
    other.socket.close()
    await until_known(regions, set())


async def test_no_descriptor_is_left_behind(regions: SharedRegions, come: Come) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        proxy = come()
        os.close(await shared(proxy))
        proxy.socket.close()
        await until_known(regions, set())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("message", [b"{}", b"\xff", b'{"region": ""}', b"x" * 1000])
async def test_what_is_no_offer_ends_its_connection(
    regions: SharedRegions, come: Come, message: bytes
) -> None:
    descriptor = create(4096)
    assert await come().offers(message, descriptor) == b""
    os.close(descriptor)
    assert not regions.known


async def test_memory_that_could_be_made_shorter_is_refused(
    regions: SharedRegions, come: Come
) -> None:
    descriptor = os.memfd_create("other")
    os.ftruncate(descriptor, 4096)
    assert await come().offers(offer("a"), descriptor) == b""
    os.close(descriptor)
    assert not regions.known


async def test_an_offer_without_memory_is_refused(regions: SharedRegions, come: Come) -> None:
    assert await come().offers(offer("a")) == b""
    assert not regions.known


async def test_a_name_that_is_known_is_refused_and_stays_what_it_was(
    regions: SharedRegions, come: Come
) -> None:
    os.close(await shared(first := come()))
    descriptor = create(4096)
    assert await come().offers(offer("a"), descriptor) == b""
    os.close(descriptor)
    assert len(regions.known["a"]) == 1 << 20
    first.socket.close()


async def test_a_second_offer_on_a_connection_ends_it(regions: SharedRegions, come: Come) -> None:
    proxy = come()
    descriptor = await shared(proxy)
    assert await proxy.offers(offer("b"), descriptor) == b""
    os.close(descriptor)
    assert not regions.known


async def test_who_comes_above_the_bound_is_hung_up_on(regions: SharedRegions, come: Come) -> None:
    proxies = [come() for _ in range(MOST)]
    for number, proxy in enumerate(proxies):
        os.close(await shared(proxy, str(number)))
    late = come()
    loop = asyncio.get_running_loop()
    await loop.sock_connect(late.socket, late.path)
    async with asyncio.timeout(5.0):
        assert await loop.sock_recv(late.socket, 10) == b""
    proxies[0].socket.close()
    await until_known(regions, {str(number) for number in range(1, MOST)})
    os.close(await shared(come(), "late"))


async def test_where_nothing_can_be_offered_the_server_serves_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = SharedRegions(tmp_path / ("x" * 120))
    made.open()
    assert not made.known
    made.close()
    assert "no memory can be shared" in caplog.text
