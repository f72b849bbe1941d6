"""Who may connect to an engine, and what is left of the socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path

import pytest
import pytest_asyncio

from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.generation import engine_socket
from batchedmodel_model_server.generation.engine_loop import EngineLoop, Rules
from batchedmodel_model_server.generation.engine_socket import MOST_CONNECTIONS, EngineSocket
from support.engine_frames import submit
from support.private_hop import Hop, connected
from support.reading_runner import ReadingRunner, engine_over


class World:
    """A socket, and the engine behind it."""

    def __init__(self, folder: Path, compute: DeviceThread) -> None:
        self.model = folder / "m.sock"
        self.path = folder / "m.sock.engine"
        self.engine: EngineLoop | None = EngineLoop(
            lambda: engine_over(ReadingRunner(32, 4)),
            compute.post,
            Rules(lambda: None, nullcontext, lambda error: None),
            max_context_tokens=64,
        )
        self.socket = EngineSocket(self.path, lambda: self.engine)


@pytest_asyncio.fixture
async def world(tmp_path: Path, compute: DeviceThread) -> AsyncIterator[World]:
    made = World(tmp_path, compute)
    await made.socket.open()
    yield made
    made.socket.close()
    await asyncio.sleep(0)
    assert not made.path.exists()


async def hung_up(caller: Hop) -> bool:
    """Whether nothing but reports came before the end."""
    while await caller.next() is not None:
        pass
    return True


async def test_nobody_is_served_while_nothing_generates(world: World) -> None:
    world.engine = None
    async with connected(world.model) as caller:
        assert await caller.next() is None


async def test_more_connections_than_a_sidecar_needs_are_hung_up_on(world: World) -> None:
    async with AsyncExitStack() as stack:
        callers = [
            await stack.enter_async_context(connected(world.model)) for _ in range(MOST_CONNECTIONS)
        ]
        for caller in callers:
            await caller.report()
        async with connected(world.model) as another:
            assert await another.next() is None
        await callers[0].send(submit(1, [1], max_tokens=2))
        assert len((await callers[0].texts(1))[1, 0]) == 2


async def test_a_caller_that_leaves_much_unread_is_hung_up_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_socket, "MOST_UNREAD_BYTES", -1)
    async with connected(world.model) as caller:
        assert await hung_up(caller)


async def test_a_frame_that_is_longer_than_any_prompt_is_hung_up_on(world: World) -> None:
    async with connected(world.model) as caller:
        await caller.send(submit(1, [1] * 400_000))
        assert await hung_up(caller)


async def test_a_socket_that_closes_hangs_up_on_all(world: World) -> None:
    async with connected(world.model) as caller:
        await caller.report()
        world.socket.close()
        assert await hung_up(caller)


async def test_a_socket_of_another_process_is_not_taken(world: World) -> None:
    with pytest.raises(FileExistsError, match="is served by another process"):
        EngineSocket(world.path, lambda: None)
