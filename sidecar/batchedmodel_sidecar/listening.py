"""Opens the data port."""

import asyncio
from collections.abc import Callable
from typing import Final

from batchedmodel_contract.processes.listening import EVERY_ADDRESS, bound_socket
from batchedmodel_http.ports.listener import port_errors

_BACKLOG: Final = 4096


async def data_port(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> asyncio.Server:
    """Listen for callers; raises `CannotListen`. A host may be a name of several addresses."""
    loop = asyncio.get_running_loop()
    with port_errors(host, port):
        if host == EVERY_ADDRESS:
            one = bound_socket(host, port)
            return await loop.create_server(factory, sock=one, backlog=_BACKLOG)
        return await loop.create_server(factory, host, port, backlog=_BACKLOG)
