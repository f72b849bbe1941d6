"""A server of a test's own process that stops has all connections that it was handed."""

import asyncio
import gc
import socket
import warnings

import pytest
from aiohttp import web

from support.listening import Listener


@pytest.mark.parametrize("turns", range(8))
def test_no_connection_is_left_open_whenever_the_server_stops(turns: int) -> None:
    async def serve() -> socket.socket:
        runner = web.AppRunner(web.Application(), shutdown_timeout=0.1)
        await runner.setup()
        listener = await Listener.start(runner)
        caller = socket.create_connection(runner.addresses[0])
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener.stop()
        await runner.cleanup()
        return caller

    with asyncio.run(serve()), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gc.collect()
    assert not seen
