"""Asks our model server for its versions, and tells it to load and unload, for the two ports.

The link carries batches and follows states; what a person asks must not wait for either, so this
has connections of its own. It translates nothing: the server's documents pass as they are.
"""

import asyncio
import logging
from typing import Final, NamedTuple

import aiohttp

from batchedmodel_contract.processes import server_api
from batchedmodel_sidecar.errors import Unserved

logger: Final = logging.getLogger(__name__)

MOST_BYTES: Final = 16 * 1024
"""Of a question; all that is known fits into a hundredth of it."""
_INDEX_SECONDS: Final = 10.0


class Told(NamedTuple):
    """What the server answered."""

    status: int
    body: bytes
    """JSON."""


class Repository:
    """One model server's."""

    def __init__(self, name: str, socket_path: str) -> None:
        """Needs a running loop."""
        self._name = name
        # No time-out of the session: loading takes minutes.
        self._session = aiohttp.ClientSession(
            "http://model",
            connector=aiohttp.UnixConnector(path=socket_path),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def index(self, body: bytes = b"") -> Told:
        """The versions with their states; raises `Unserved`."""
        try:
            async with asyncio.timeout(_INDEX_SECONDS):
                return await self._told(server_api.INDEX, body)
        except TimeoutError as error:
            raise Unserved("the model server does not answer", status=504) from error

    async def load(self, body: bytes) -> Told:
        """Serve what the source holds now; raises `Unserved`."""
        return await self._told(server_api.load_path(self._name), body)

    async def unload(self, body: bytes) -> Told:
        """Give the memory back; raises `Unserved`."""
        return await self._told(server_api.unload_path(self._name), body)

    async def close(self) -> None:
        """Hang up."""
        await self._session.close()

    async def _told(self, path: str, body: bytes) -> Told:
        try:
            async with self._session.post(path, data=body) as answer:
                return Told(status=answer.status, body=await answer.read())
        except (aiohttp.ClientError, OSError) as error:
            logger.debug("repository: %s", type(error).__name__)
            message = "the model server cannot be reached, or went away"
            raise Unserved(message, status=503, retry_after=1.0) from error
