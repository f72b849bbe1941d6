"""The connections of the socket in simulated time: none ends for want of use."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from aiohttp import web

from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.http.app import make_app
from batchedmodel_model_server.http.connections import MOST_CONNECTIONS, Connections
from batchedmodel_model_server.http.inference import BODY_SECONDS
from batchedmodel_model_server.http.shared_regions import Regions
from batchedmodel_model_server.lifecycle.service import ModelService
from support.hostile_tokenizers import Panic
from support.versions import MakeService
from support.wire import Wire

pytestmark = pytest.mark.looptime

DAY: Final = 86_400.0
OTHER: Final = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
CALL: Final = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


async def test_what_the_application_answered_once_is_kept_however_long_it_is_not_asked_again(
    make_versions: MakeService,
) -> None:
    service = make_versions()
    runner = web.AppRunner(
        make_app(service, Regions({}, {})), access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    assert runner.server is not None
    connections = Connections(service, runner.server, Regions({}, {}))
    wire = Wire(connections.open())
    wire.sends(OTHER)
    for _ in range(3):
        await asyncio.sleep(DAY)
        wire.sends(CALL)
    wire.sends(OTHER)
    await asyncio.sleep(1.0)
    # Nothing is served yet, but all are answered.
    assert [status for status, _ in wire.answers] == [200, 503, 503, 503, 200]
    assert not wire.is_closing()
    await connections.close(1.0)
    await runner.cleanup()


class Open(ModelService):
    """Takes whatever comes, and sees how much of it is on its way."""

    arriving = 0

    @contextmanager
    def admitted(self, version: str | None = None) -> Iterator[Any]:
        self.arriving += 1
        try:
            yield None
        finally:
            self.arriving -= 1

    def of(self, version: str | None = None) -> Any:
        return SimpleNamespace(description=None)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[tuple[Open, Connections]]:
    settings = ModelServerSettings(
        model_name="m",
        model_socket=str(tmp_path / "model.sock"),
        handler="simulated",
        cache_folder=str(tmp_path),
    )
    service = Open(settings, None, DeviceThread(asyncio.get_running_loop()))
    runner = web.AppRunner(
        make_app(service, Regions({}, {})), access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    assert runner.server is not None
    connections = Connections(service, runner.server, Regions({}, {}))
    yield service, connections
    await connections.close(1.0)
    await runner.cleanup()


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/m/versions/7/infer"])
async def test_body_that_comes_byte_by_byte_has_one_deadline_over_all_of_it(
    opened: tuple[Open, Connections], path: str
) -> None:
    service, connections = opened
    wire = Wire(connections.open())
    wire.sends(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode())
    for _ in range(int(BODY_SECONDS) - 1):
        wire.sends(b" ")
        await asyncio.sleep(1.0)
    assert service.arriving == 1
    await asyncio.sleep(2.0)
    ((status, body),) = wire.answers
    assert (status, b"did not arrive within 30 s" in body) == (408, True)
    assert service.arriving == 0
    await asyncio.sleep(5.0)
    assert wire.is_closing()


async def test_head_that_never_ends_is_hung_up_on(opened: tuple[Open, Connections]) -> None:
    wire = Wire(opened[1].open())
    wire.sends(b"POST /v2/models/m/infer HTTP/1.1\r\n")
    for number in range(20):
        if not wire.is_closing():
            wire.sends(b"X-%d: y\r\n" % number)
            await asyncio.sleep(1.0)
    assert [status for status, _ in wire.answers] == [408]
    assert wire.is_closing()


async def test_connection_too_many_takes_the_place_of_the_one_that_was_idle_longest(
    opened: tuple[Open, Connections],
) -> None:
    first = Wire(opened[1].open())
    await asyncio.sleep(1.0)
    wires = [Wire(opened[1].open()) for _ in range(MOST_CONNECTIONS - 1)]
    first.sends(OTHER)
    await asyncio.sleep(1.0)
    wires[0].sends(OTHER)
    await asyncio.sleep(1.0)
    late = Wire(opened[1].open())
    late.sends(OTHER)
    await asyncio.sleep(1.0)
    assert [status for status, _ in late.answers] == [200]
    assert [wire.is_closing() for wire in (first, wires[0], wires[-1])].count(True) == 0
    assert sum(wire.is_closing() for wire in wires) == 1


async def test_connection_too_many_is_refused_while_all_others_are_at_work(
    opened: tuple[Open, Connections],
) -> None:
    wires = [Wire(opened[1].open()) for _ in range(MOST_CONNECTIONS)]
    for wire in wires:
        wire.sends(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    await asyncio.sleep(1.0)
    assert Wire(opened[1].open()).is_closing()
    assert not any(wire.is_closing() for wire in wires)


async def test_whatever_is_raised_over_a_request_its_caller_is_told(
    opened: tuple[Open, Connections], monkeypatch: pytest.MonkeyPatch
) -> None:
    def panics(self: Open, version: str | None = None) -> Any:
        raise Panic("of a library")

    monkeypatch.setattr(Open, "admitted", panics)
    wire = Wire(opened[1].open())
    chunks = CALL.replace(
        b"Content-Length: 2\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    for sent in (CALL, chunks):
        wire.sends(sent)
        await asyncio.sleep(1.0)
    assert wire.answers == [(500, b'{"error":"Panic: of a library"}')] * 2
