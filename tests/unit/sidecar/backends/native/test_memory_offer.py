"""Memory is shared while a server holds it, and never where a server does not want it.

Over real sockets, since descriptors travel over no other.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.processes.shared_region import TAKEN, socket_path
from batchedmodel_sidecar.backends.native.answer_rooms import AnswerRooms
from batchedmodel_sidecar.backends.native.memory_offer import MemoryOffer
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_slots import SharedSlots
from support.large_answers import rooms_of

SIZE = 1 << 20
ONE = Share("one")


class Server:
    """Takes one connection and what comes over it."""

    def __init__(self, path: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen()
        self._listening.setblocking(False)

    async def came(self) -> socket.socket:
        """The connection of who offers, once the offer is here."""
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(self._listening)
        message, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, connection, 256, 2)
        assert b"region" in message
        sizes = [os.fstat(descriptor).st_size for descriptor in descriptors]
        assert sizes == [SIZE, SIZE // 4], "for rows, and for answers"
        for descriptor in descriptors:
            os.close(descriptor)
        return connection

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(socket_path(str(tmp_path / "m.sock")))
    yield made
    made.close()


@pytest.fixture
def slots() -> SharedSlots:
    return SharedSlots(SIZE)


@pytest.fixture
def rooms() -> AnswerRooms:
    """Of answers of which some were large lately."""
    return rooms_of(ByteBudget(SIZE), 70_000)


@pytest.fixture
async def offer(
    tmp_path: Path, slots: SharedSlots, rooms: AnswerRooms
) -> AsyncIterator[MemoryOffer]:
    made = MemoryOffer(str(tmp_path / "m.sock"), slots, rooms)
    yield made
    made.end()
    await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def has_room(slots: SharedSlots) -> bool:
    return slots.room(1000, ONE) is not None


async def test_bodies_and_answers_lie_in_regions_once_the_server_has_taken_them(
    offer: MemoryOffer, slots: SharedSlots, rooms: AnswerRooms, server: Server
) -> None:
    offer.begin()
    with await server.came() as connection:
        assert not has_room(slots)
        assert rooms.room(1) is None
        connection.send(TAKEN)
        await until(lambda: has_room(slots))
        assert rooms.room(1) is not None


async def test_a_region_that_the_server_gave_up_is_named_no_more(
    offer: MemoryOffer, slots: SharedSlots, rooms: AnswerRooms, server: Server
) -> None:
    offer.begin()
    with await server.came() as connection:
        connection.send(TAKEN)
        await until(lambda: has_room(slots))
        body = slots.room(1000, ONE)
        assert slots.rows is not None
    await until(lambda: slots.rows is None)
    assert not has_room(slots)
    assert rooms.room(1) is None
    assert body is not None
    body[:4] = b"kept"


@pytest.mark.parametrize("answer", [b"", b"-"])
async def test_what_the_server_refuses_is_not_used(
    offer: MemoryOffer,
    slots: SharedSlots,
    server: Server,
    answer: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    offer.begin()
    with await server.came() as connection:
        connection.send(answer)
    await until(lambda: "no memory is shared" in caplog.text)
    assert not has_room(slots)


async def test_without_a_server_nothing_is_shared(
    offer: MemoryOffer, slots: SharedSlots, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    offer.begin()
    await until(lambda: "no memory is shared" in caplog.text)
    assert not has_room(slots)


async def test_what_ends_while_it_is_offered_is_not_used_and_leaves_nothing(
    offer: MemoryOffer, slots: SharedSlots, server: Server
) -> None:
    files = len(os.listdir("/proc/self/fd"))
    offer.begin()
    with await server.came() as connection:
        offer.end()
        await asyncio.sleep(0.01)
        connection.setblocking(False)
        assert connection.recv(10) == b""
    assert not has_room(slots)
    assert len(os.listdir("/proc/self/fd")) == files


async def test_who_begins_again_after_an_end_shares_memory_anew(
    offer: MemoryOffer, slots: SharedSlots, server: Server
) -> None:
    offer.begin()
    with await server.came():
        offer.end()
        offer.begin()
        with await server.came() as connection:
            connection.send(TAKEN)
            await until(lambda: has_room(slots))
