"""Connects to our model server: the socket, the two hellos, and the memory that both share."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.connection import LinkConnection
from batchedmodel_contract.link.hello import (
    HELLO_BYTES,
    OTHER_RELEASE,
    OURS,
    Hello,
    read_hello,
    write_hello,
)
from batchedmodel_sidecar.body.shared_regions import Region, SharedRegions

logger: Final = logging.getLogger(__name__)


class AbsentServer(Exception):
    """Nobody takes connections at the socket."""


class RefusedLink(Exception):
    """The server does not speak as we do; the message says why."""


async def connect(path: str, opened: Callable[[], LinkConnection], regions: SharedRegions) -> int:
    """Connect to the server at a Unix socket; frames go over what is `opened` then.

    Returns the version of the frames that both ends speak.

    Raises `AbsentServer`, `RefusedLink`, and `OSError` where the server goes away meanwhile.
    """
    loop = asyncio.get_running_loop()
    plug = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    plug.setblocking(False)
    try:
        try:
            await loop.sock_connect(plug, path)
        except OSError as error:
            raise AbsentServer(str(error)) from error
        region = _region(regions)
        descriptors = [] if region is None else [region.descriptor]
        socket.send_fds(plug, [write_hello()], descriptors)
        hello = await _read_hello(plug)
        if region is not None and hello.shares_memory:
            regions.use(region)
            logger.info("large rows lie in memory that the model server sees")
        elif region is not None:
            logger.info("no memory is shared with the model server: it cannot map it")
        await loop.create_unix_connection(opened, sock=plug)
        return hello.max_version
    except BaseException:
        plug.close()
        raise


def _region(regions: SharedRegions) -> Region | None:
    try:
        return regions.create()
    except (OSError, InvalidInput) as error:
        logger.info("no memory is shared with the model server: %s", error)
        return None


async def _read_hello(plug: socket.socket) -> Hello:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < HELLO_BYTES:
        more = await loop.sock_recv(plug, HELLO_BYTES - len(data))
        if not more:
            break
        data += more
    if not data:
        raise ConnectionResetError("the model server closed the connection")
    try:
        hello = read_hello(data)
    except InvalidInput as error:
        raise RefusedLink(f"{OTHER_RELEASE}, which speaks no frames") from error
    if not OURS.min_version <= hello.max_version <= OURS.max_version:
        spoken = f"{OURS.min_version} to {OURS.max_version}"
        raise RefusedLink(f"{OTHER_RELEASE}, which speaks none of the versions {spoken} of frames")
    return hello
