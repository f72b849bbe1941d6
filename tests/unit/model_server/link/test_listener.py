"""Connections of sidecars: whose hello is taken, how many, what they share, how they end."""

import asyncio
import logging
import mmap
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from batchedmodel_contract.link.hello import HELLO_BYTES, Hello, read_hello, write_hello
from batchedmodel_contract.link.region import create
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.lifecycle.service import ModelService
from batchedmodel_model_server.link import connection, listener, unix_socket
from batchedmodel_model_server.link.listener import MAX_CONNECTIONS, Listener
from support.model_server_process import token_batch
from support.private_hop import Hop, batch_in_parts, connected

SECONDS = 20.0


class World:
    """A listener and the service behind it."""

    def __init__(self, folder: Path, compute: DeviceThread) -> None:
        self.path = folder / "m.sock"
        settings = ModelServerSettings(
            model_name="m",
            model_socket=str(self.path),
            handler="simulated",
            cache_folder=str(folder),
        )
        self.service = ModelService(settings, None, compute)
        self.listener = Listener(self.service, unix_socket.bind(self.path))
        self.listener.open()
        self._is_open = True

    @property
    def in_work(self) -> int:
        """Batches that have no answer."""
        assert self.service.serving is not None
        return self.service.serving.in_work

    async def close(self, seconds: float) -> None:
        """Close the listener, once."""
        if self._is_open:
            self._is_open = False
            await self.listener.close(seconds)

    async def answer(self, hello: bytes, *descriptors: int) -> bytes:
        """What comes behind a hello; empty where the server hangs up."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as plug:
            plug.setblocking(False)
            await loop.sock_connect(plug, str(self.path))
            socket.send_fds(plug, [hello], descriptors)
            async with asyncio.timeout(SECONDS):
                try:
                    return await loop.sock_recv(plug, HELLO_BYTES)
                except ConnectionResetError:
                    return b""


@pytest_asyncio.fixture
async def world(tmp_path: Path, compute: DeviceThread) -> AsyncIterator[World]:
    made = World(tmp_path, compute)
    await made.service.bring_up()
    yield made
    await made.service.drain(made.listener.frames_whole)
    await made.close(1.0)


async def ended(hop: Hop) -> bool:
    """Whether the connection ends."""
    async with asyncio.timeout(SECONDS):
        async for _ in hop.states():
            pass
    return True


@pytest.mark.parametrize(
    ("theirs", "common"), [(Hello(1, 1), 1), (Hello(1, 7), 1), (Hello(0, 1), 1), (Hello(2, 3), 0)]
)
async def test_the_highest_version_that_both_speak_is_taken(
    world: World, theirs: Hello, common: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_hello(await world.answer(write_hello(theirs))) == Hello(common, common)
    assert ("names no version" in caplog.text) == (common == 0)


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\nHost: model\r\n\r\n",
        write_hello()[:-1],
        b"\x00" * HELLO_BYTES,
        b"x",
    ],
    ids=["HTTP", "half a hello", "zeros", "a byte"],
)
async def test_what_is_no_hello_is_hung_up_on(
    world: World, hello: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert await world.answer(hello) == b""
    assert "a connection is refused: hello: is not one" in caplog.text


async def test_a_connection_without_a_hello_is_hung_up_on_in_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_HELLO_SECONDS", 0.05)
    reader, writer = await asyncio.open_unix_connection(str(world.path))
    async with asyncio.timeout(SECONDS):
        assert await reader.read() == b""
    writer.close()


async def test_connections_without_a_hello_make_room(world: World) -> None:
    silent = [await asyncio.open_unix_connection(str(world.path)) for _ in range(MAX_CONNECTIONS)]
    async with connected(world.path) as hop:
        assert (await hop.state()).version == "1"
        async with asyncio.timeout(SECONDS):
            assert await silent[0][0].read() == b""
    for _, writer in silent:
        writer.close()


async def test_of_a_crowd_without_hellos_only_the_newest_stay(world: World) -> None:
    """Those that came in one moment all ended the same one, and as many stayed as had come."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        crowd = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(40)]
        for plug in crowd:
            plug.connect(str(world.path))
            plug.setblocking(False)
        async with asyncio.timeout(SECONDS):
            for plug in crowd[:-MAX_CONNECTIONS]:
                assert await loop.sock_recv(plug, 1) == b""
        for plug in crowd[-MAX_CONNECTIONS:]:
            with pytest.raises(BlockingIOError):
                plug.recv(1)


async def test_connections_are_bounded_and_a_new_one_ends_the_oldest(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever held eight of them kept a sidecar out that was started again."""
    async with AsyncExitStack() as stack:
        hops = [
            await stack.enter_async_context(connected(world.path)) for _ in range(MAX_CONNECTIONS)
        ]
        for hop in hops:
            assert (await hop.state()).version == "1"
        ending = asyncio.create_task(ended(hops[0]))
        await asyncio.sleep(0)
        async with connected(world.path) as another:
            assert (await another.state()).version == "1"
            assert await ending
            for hop in (another, *hops[1:]):
                assert (await hop.infer(token_batch("x", [[1]]))).statuses == (200,)
        assert f"{MAX_CONNECTIONS} newer ones are open" in caplog.text


@pytest.fixture
def files(tmp_path: Path) -> dict[str, int]:
    """Descriptors that share no memory as it must be."""
    unsealed = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4096)
    (tmp_path / "file").write_bytes(bytes(4096))
    return {
        "a file": os.open(tmp_path / "file", os.O_RDWR),
        "a pipe": os.pipe()[0],
        "memory that can shrink": unsealed,
    }


async def test_memory_that_is_not_as_it_must_be_is_not_shared_and_all_is_sent(
    world: World, files: dict[str, int], subtests: pytest.Subtests, caplog: pytest.LogCaptureFixture
) -> None:
    for name, descriptor in files.items():
        with subtests.test(name):
            answer = read_hello(await world.answer(write_hello(), descriptor))
            assert answer == Hello(1, 1)
            assert "no memory is shared with a sidecar: " in caplog.text
            caplog.clear()
        os.close(descriptor)


async def test_the_first_descriptor_is_the_memory_of_rows(world: World) -> None:
    """A descriptor behind it is closed."""
    good, shared = create(4096), Hello(1, 1, shares_memory=True)
    for count in (1, 2, 3):
        assert read_hello(await world.answer(write_hello(), *[good] * count)) == shared
    os.close(good)


async def test_a_server_that_cannot_map_memory_serves_without(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hung up on its sidecar, which tried again for ever."""

    def none(*_: object, **__: object) -> mmap.mmap:
        raise OSError("of a test")

    monkeypatch.setattr(connection, "mapped", none)
    region = create(4096)
    answer = read_hello(await world.answer(write_hello(), region, region))
    assert answer == Hello(1, 1)
    os.close(region)


async def test_no_descriptor_is_left_of_connections(world: World) -> None:
    await world.answer(write_hello())
    await asyncio.sleep(0.05)
    before = len(os.listdir("/proc/self/fd"))
    for hello in (write_hello(), b"nonsense", write_hello(Hello(2, 2))):
        region = create(4096)
        await world.answer(hello, region, region)
        os.close(region)
    async with asyncio.timeout(SECONDS):
        while len(os.listdir("/proc/self/fd")) > before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_close_ends_connections_behind_their_answers(world: World) -> None:
    async with connected(world.path) as hop, connected(world.path) as idle:
        await idle.state()
        answers = [asyncio.create_task(hop.infer(token_batch("x", [[n]]))) for n in range(4)]
        while not world.in_work:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await world.close(SECONDS)
        assert [(await one).statuses for one in answers] == [(200,)] * 4
        assert await ended(idle)


async def test_a_close_does_not_wait_for_ever_for_a_sidecar_that_does_not_read(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rows = [[number] * 100_000 for number in range(8)]
    async with connected(world.path) as hop:
        await hop.state()
        hop.stop_reading()
        asking = asyncio.create_task(hop.infer(token_batch("x", rows)))
        while not world.in_work:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with asyncio.timeout(SECONDS):
            await world.close(0.1)
        asking.cancel()


async def test_however_many_orders_come_at_once_the_connection_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers of the index ended it, and with it all batches and texts."""
    until = asyncio.Event()

    async def load() -> None:
        await until.wait()

    monkeypatch.setattr(world.service, "load", load)
    async with connected(world.path) as hop:
        await hop.state()
        loads = [asyncio.create_task(hop.load()) for _ in range(40)]
        rows = await asyncio.gather(*[hop.index() for _ in range(100)])
        assert {len(each) for each in rows} == {1}
        until.set()
        answers = await asyncio.gather(*loads, return_exceptions=True)
        refused = [one for one in answers if one is not None]
        assert len(refused) == 40 - 16
        assert {str(one) for one in refused} == {"503: 16 loads and unloads are under way already"}
        assert (await hop.infer(token_batch("x", [[1]]))).statuses == (200,)


async def test_frames_that_have_come_in_part_are_waited_for(world: World) -> None:
    async with batch_in_parts(world.path, token_batch("x", [[1]])) as batch:
        batch.send(but_bytes=1)
        await asyncio.sleep(0.05)
        draining = asyncio.create_task(world.service.drain(world.listener.frames_whole))
        done, _ = await asyncio.wait([draining], timeout=0.2)
        assert not done
        batch.send()
        assert (await batch.reply()).statuses == (200,)
        await draining


async def test_a_socket_of_another_process_is_not_taken(world: World) -> None:
    with pytest.raises(FileExistsError, match="is served by another process"):
        unix_socket.bind(world.path)
