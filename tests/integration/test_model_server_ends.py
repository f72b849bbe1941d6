"""How a model server begins and ends as a real process, with handlers that need no torch."""

import asyncio
import os
import signal
import socket
import stat
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from batchedmodel_contract.link.model_frames import State
from batchedmodel_contract.link.model_state import ModelState
from support.model_server_handlers import arrays_of
from support.model_server_process import NAME, model_server, token_batch
from support.private_hop import BatchInParts, HopError, batch_in_parts, connected

pytestmark = pytest.mark.asyncio(loop_scope="module")

HANDLERS = "support.model_server_handlers"
ONE = token_batch("x", [[1]])


async def test_the_server_answers_while_it_loads(tmp_path: Path) -> None:
    async with model_server(tmp_path, f"{HANDLERS}:Slow") as server:
        assert (await server.hop.state()).state is ModelState.LOADING
        with pytest.raises(HopError) as refusal:
            await server.hop.infer(ONE)
        assert refusal.value.status == 503
        assert "model is LOADING" in refusal.value.message
        states = []
        async for event in server.hop.states():
            states.append(event.state)
            if event.state is ModelState.READY:
                break
        assert states == [ModelState.LOADING, ModelState.WARMING, ModelState.READY]


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (f"{HANDLERS}:Broken", "failed to load: FileNotFoundError: weights.bin"),
        (f"{HANDLERS}:Quitting", "failed to load: SystemExit: 3"),
        ("no_such_package:Handler", "no_such_package cannot be imported"),
        ("simulated", 'spec.model.parameters.fixedSeconds: "soon" is not a number'),
    ],
)
async def test_a_model_that_cannot_be_loaded_says_why_for_as_long_as_it_is_asked(
    tmp_path: Path, handler: str, reason: str
) -> None:
    parameters = {"fixedSeconds": "soon"} if handler == "simulated" else {}
    async with model_server(tmp_path, handler, parameters=parameters) as server:
        event = await server.settled()
        assert event.state is ModelState.FAILED
        assert reason in event.detail
        again = await server.hop.state()
        assert (again.state, again.detail) == (event.state, event.detail)
        assert await server.stop() == 0
        assert any("ERROR FAILED" in line and reason in line for line in server.log)


async def test_a_drain_answers_what_was_accepted_and_ends_the_streams(tmp_path: Path) -> None:
    async with model_server(tmp_path, parameters={"fixedSeconds": "0.4"}) as server:
        await server.settled()
        events = server.hop.states()
        assert (await anext(events)).state is ModelState.READY
        accepted = [
            asyncio.create_task(server.hop.infer(token_batch("x", [[number]])))
            for number in range(3)
        ]
        await asyncio.sleep(0.1)
        server.process.send_signal(signal.SIGTERM)
        assert (await anext(events)).state is ModelState.DRAINING
        # Longer than what was sent before the order to stop may take to be read.
        await asyncio.sleep(0.2)
        with pytest.raises(HopError) as refusal:
            await server.hop.infer(ONE)
        assert refusal.value.status == 503
        assert "DRAINING" in refusal.value.message
        for number, answered in enumerate(await asyncio.gather(*accepted)):
            assert arrays_of(answered.outputs[0])[0].tolist() == [number]
        assert [event async for event in events] == []
        assert await server.process.wait() == 0
        assert not server.socket.exists()


async def test_a_drain_does_not_wait_for_whoever_only_follows_or_is_idle(tmp_path: Path) -> None:
    async with (
        model_server(tmp_path, parameters={"fixedSeconds": "0.5"}) as server,
        connected(server.socket) as idle,
        connected(server.socket) as follows,
    ):
        await server.settled()
        assert (await idle.infer(ONE)).statuses == (200,)
        events = follows.states()
        assert (await anext(events)).state is ModelState.READY
        at_work = asyncio.create_task(server.hop.infer(ONE))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert (await at_work).statuses == (200,)
        assert [event.state async for event in events] == [ModelState.DRAINING]
        assert await server.process.wait() == 0
        # Five seconds are what connections at work get at the end.
        assert time.monotonic() - began < 4


async def test_batches_that_were_sent_before_the_order_to_stop_are_answered(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    batch = token_batch("x", [[7]])
    async with (
        model_server(tmp_path, parameters={"fixedSeconds": "0.02"}) as server,
        AsyncExitStack() as stack,
    ):
        await server.settled()

        async def connections() -> list[BatchInParts]:
            opened = [batch_in_parts(server.socket, batch) for _ in range(2)]
            return [await stack.enter_async_context(one) for one in opened]

        known, slow = await connections(), await connections()
        for one in slow:
            # Its body takes longer than the server needs to stop taking batches.
            one.send(but_bytes=1)
        await asyncio.sleep(0.1)
        server.process.send_signal(signal.SIGSTOP)
        fresh = await connections()
        for one in (*known, *fresh):
            one.send()
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.3)
        for one in slow:
            one.send()
        callers = {"in the socket": known, "not accepted": fresh, "still arriving": slow}
        for case, sent in callers.items():
            with subtests.test(case):
                replies = [await one.reply() for one in sent]
                assert [reply.statuses for reply in replies] == [(200,)] * 2
        assert await server.process.wait() == 0


async def test_a_server_that_is_told_to_stop_while_it_loads_stops_at_once(tmp_path: Path) -> None:
    async with model_server(
        tmp_path, f"{HANDLERS}:Slow", environ={"BATCHEDMODEL_LOG_LEVEL": "debug"}
    ) as server:
        assert await asyncio.wait_for(server.stop(), 5) == 0


class Killed(NamedTuple):
    """What a server left that was killed, and what its states said then."""

    folder: Path
    later: list[State]
    socket_is_left: bool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    async with model_server(folder) as server:
        assert (await server.settled()).state is ModelState.READY
        events = server.hop.states()
        await anext(events)
        server.process.kill()
        async with asyncio.timeout(5):
            later = [event async for event in events]
        await server.process.wait()
        return Killed(folder, later, server.socket.exists())


async def test_the_states_end_when_the_process_dies(killed: Killed) -> None:
    assert killed.later == []


async def test_the_socket_of_a_killed_server_is_taken_over(killed: Killed) -> None:
    assert killed.socket_is_left
    async with model_server(killed.folder) as server:
        assert (await server.settled()).state is ModelState.READY
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o660


async def test_what_a_handler_forked_keeps_neither_callers_nor_the_next_server(
    tmp_path: Path,
) -> None:
    async with model_server(tmp_path, "support.storm_handlers:Forking") as server:
        assert (await server.settled()).state is ModelState.READY
        events = server.hop.states()
        await anext(events)
        await server.hop.infer(token_batch("x", [[1]]))
        server.process.kill()
        async with asyncio.timeout(5):
            assert [event async for event in events] == []
    async with model_server(tmp_path) as server:
        assert (await server.settled()).state is ModelState.READY


async def refused(environ: dict[str, str]) -> str:
    """What a process says that starts nothing."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BATCHEDMODEL_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "batchedmodel_model_server"),
        env={**clean, **environ},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    return said.decode()


async def test_wrong_settings_are_named_one_by_one() -> None:
    said = await refused({"BATCHEDMODEL_MAX_BATCH_SIZE": "0", "BATCHEDMODEL_HANDLER": "hf"})
    assert said.splitlines() == [
        "BATCHEDMODEL_MODEL_NAME: is required",
        "BATCHEDMODEL_MODEL_SOCKET: is required",
        'BATCHEDMODEL_MAX_BATCH_SIZE: "0" is below the minimum 1',
        "BATCHEDMODEL_CACHE_FOLDER: is required",
    ]


async def test_a_socket_that_cannot_be_had_starts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    environ = {
        "BATCHEDMODEL_MODEL_NAME": NAME,
        "BATCHEDMODEL_HANDLER": "simulated",
        "BATCHEDMODEL_CACHE_FOLDER": str(tmp_path),
        "BATCHEDMODEL_MODEL_SOCKET": str(path),
    }
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert "is served by another process" in await refused(environ)
    missing = {**environ, "BATCHEDMODEL_MODEL_SOCKET": str(tmp_path / "no" / "model.sock")}
    assert "BATCHEDMODEL_MODEL_SOCKET: " in await refused(missing)
