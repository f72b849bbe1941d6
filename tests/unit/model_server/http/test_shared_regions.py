"""Offers of shared memory: taken as long as their sender lives, and refused where they could harm.

Over a real socket, since descriptors travel over no other.
"""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from batchedmodel_contract.inference.batch_wire import (
    AnswerRoom,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.shared_region import TAKEN, create, offer
from batchedmodel_model_server.http.shared_regions import SharedRegions
from support.room_locks import can_be_locked_elsewhere, locked_elsewhere

MOST: Final = 8


@pytest.fixture
async def regions(tmp_path: Path) -> AsyncIterator[SharedRegions]:
    made = SharedRegions(tmp_path / "m.sock.memory")
    made.open()
    yield made
    made.close()
    assert not made.known.rows
    assert not made.known.answers
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


def refused(*_: object) -> None:
    raise OSError(errno.ENOLCK, "no locks available")


async def until_known(regions: SharedRegions, names: set[str]) -> None:
    async with asyncio.timeout(5.0):
        while set(regions.known.rows) != names:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_what_is_written_to_a_region_is_read_here(regions: SharedRegions, come: Come) -> None:
    descriptor = await shared(come())
    os.pwrite(descriptor, b"hello", 100)
    os.close(descriptor)
    assert bytes(regions.known.rows["a"][100:105]) == b"hello"


async def test_a_region_is_forgotten_with_its_sender_and_stays_for_who_reads_it(
    regions: SharedRegions, come: Come
) -> None:
    proxy, other = come(), come()
    descriptor = await shared(proxy)
    os.pwrite(descriptor, b"hello", 0)
    os.close(descriptor)
    os.close(await shared(other, "b"))
    row = regions.known.rows["a"][:5]
    proxy.socket.close()
    await until_known(regions, {"b"})
    assert bytes(row) == b"hello"
    other.socket.close()
    await until_known(regions, set())


async def sharing_answers(proxy: Proxy, name: str = "a") -> int:
    rows, answers = create(1 << 20), create(1 << 20)
    assert await proxy.offers(offer(name), rows, answers) == TAKEN
    os.close(rows)
    return answers


async def test_answers_are_put_where_the_sender_sees_them(
    regions: SharedRegions, come: Come
) -> None:
    answers = await sharing_answers(come())
    placing = regions.known.placing(AnswerRoom("a", 3, 4096, 300_000))
    assert placing is not None
    with placing as place:
        assert place is not None
        assert place(b"x" * 70_001) == 0
        assert place(b"small") is None, "it is sent"
        assert place(b"y" * 70_000) == 70_008
        assert place(b"z" * 200_000) is None, "no room is left for it"
    assert os.pread(answers, 70_001, 4096) == b"x" * 70_001
    assert os.pread(answers, 70_000, 4096 + 70_008) == b"y" * 70_000
    assert os.pread(answers, 100, 4096 + 140_008) == bytes(100)
    os.close(answers)


async def test_nothing_is_put_in_room_that_its_sender_uses_for_others(
    regions: SharedRegions, come: Come
) -> None:
    answers = await sharing_answers(come())
    late, next_one = (
        regions.known.placing(AnswerRoom("a", number, 0, 300_000)) for number in (3, 4)
    )
    assert late is not None
    assert next_one is not None
    with locked_elsewhere(answers, 3):
        with late as place:
            assert place is None
        with next_one as place:
            assert place is not None
            assert place(b"x" * 70_000) == 0


async def test_room_is_the_servers_while_it_writes_and_no_longer(
    regions: SharedRegions, come: Come
) -> None:
    answers = await sharing_answers(come())
    placing = regions.known.placing(AnswerRoom("a", 3, 0, 300_000))
    assert placing is not None
    with placing:
        assert not can_be_locked_elsewhere(answers, 3)
        assert can_be_locked_elsewhere(answers, 4)
    assert can_be_locked_elsewhere(answers, 3)


async def test_a_region_with_rooms_that_cannot_be_locked_takes_no_answers(
    regions: SharedRegions, come: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(await sharing_answers(come()))
    placing = regions.known.placing(AnswerRoom("a", 1 << 63, 0, 300_000))
    assert placing is not None
    with placing as place:
        assert place is None, "there is no such byte"
    monkeypatch.setattr("fcntl.lockf", refused)
    placing = regions.known.placing(AnswerRoom("a", 3, 0, 300_000))
    assert placing is not None
    with placing as place:
        assert place is None, "the system has no locks"


async def test_room_that_is_not_there_is_refused_and_an_unknown_one_is_not_used(
    regions: SharedRegions, come: Come
) -> None:
    os.close(await sharing_answers(come()))
    os.close(await shared(come(), "b"))
    for start, size in ((1 << 20, 1), (0, (1 << 20) + 1), (1 << 62, 1 << 62)):
        with pytest.raises(InvalidInput, match="leads out of the shared memory"):
            regions.known.placing(AnswerRoom("a", 0, start, size))
    assert regions.known.placing(AnswerRoom("b", 0, 0, 1000)) is None, "it shares none for answers"
    assert regions.known.placing(AnswerRoom("c", 0, 0, 1000)) is None
    assert regions.known.placing(None) is None


async def test_no_descriptor_is_left_behind(regions: SharedRegions, come: Come) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        proxy = come()
        os.close(await sharing_answers(proxy))
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
    assert not regions.known.rows


async def test_memory_that_could_be_made_shorter_is_refused(
    regions: SharedRegions, come: Come
) -> None:
    descriptor = os.memfd_create("other")
    os.ftruncate(descriptor, 4096)
    assert await come().offers(offer("a"), descriptor) == b""
    os.close(descriptor)
    assert not regions.known.rows


async def test_an_offer_without_memory_is_refused(regions: SharedRegions, come: Come) -> None:
    assert await come().offers(offer("a")) == b""
    assert not regions.known.rows


async def test_a_name_that_is_known_is_refused_and_stays_what_it_was(
    regions: SharedRegions, come: Come
) -> None:
    os.close(await shared(first := come()))
    descriptor = create(4096)
    assert await come().offers(offer("a"), descriptor) == b""
    os.close(descriptor)
    assert len(regions.known.rows["a"]) == 1 << 20
    first.socket.close()


async def test_a_second_offer_on_a_connection_ends_it(regions: SharedRegions, come: Come) -> None:
    proxy = come()
    descriptor = await shared(proxy)
    assert await proxy.offers(offer("b"), descriptor) == b""
    os.close(descriptor)
    assert not regions.known.rows


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
    assert not made.known.rows
    made.close()
    assert "no memory can be shared" in caplog.text
