"""Opens the sidecar's two ports."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from batchedmodel_contract.processes.listening import EVERY_ADDRESS, authority, bound_socket

_BACKLOG: Final = 4096


class CannotListen(Exception):
    """A port is taken or forbidden; the message says which."""


async def data_port(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> asyncio.Server:
    """Listen for callers; raises `CannotListen`. A host may be a name of several addresses."""
    loop = asyncio.get_running_loop()
    with _explained(host, port):
        if host == EVERY_ADDRESS:
            return await loop.create_server(factory, sock=_every_address(port), backlog=_BACKLOG)
        return await loop.create_server(factory, host, port, backlog=_BACKLOG)


async def admin_port(runner: web.AppRunner, host: str, port: int) -> int:
    """Listen for probes and readers with a runner that is set up; the port.

    Raises `CannotListen`.
    """
    site: web.BaseSite
    with _explained(host, port):
        if host == EVERY_ADDRESS:
            site = web.SockSite(runner, _every_address(port), backlog=_BACKLOG)
        else:
            site = web.TCPSite(runner, host, port, backlog=_BACKLOG)
        await site.start()
    return int(runner.addresses[0][1])


def _every_address(port: int) -> socket.socket:
    return bound_socket(EVERY_ADDRESS, port)


@contextmanager
def _explained(host: str, port: int) -> Iterator[None]:
    where = authority(host, port)
    try:
        yield
    except OSError as error:
        raise CannotListen(f"cannot listen on {where}: {error.strerror}") from error
    except UnicodeError as error:
        raise CannotListen(f"cannot listen on {where}: no host has such a name") from error
