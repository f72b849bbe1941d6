"""The connections of the socket in simulated time: none ends for want of use."""

import asyncio
from typing import Final

import pytest

from batchedmodel_model_server.app import make_runner
from batchedmodel_model_server.connections import Connections
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
    runner = make_runner(service, shutdown_timeout=1.0)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(service, runner.server)
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
