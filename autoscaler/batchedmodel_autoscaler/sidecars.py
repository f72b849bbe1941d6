"""Asks sidecars for their stats over HTTP: the only module that knows how they are reached."""

import json
from typing import Final

import aiohttp

from batchedmodel_autoscaler.errors import SidecarSilent
from batchedmodel_contract.kubernetes_names import ADMIN_PORT
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.sidecar_api import STATS
from batchedmodel_contract.stats import SidecarStats, stats_from_mapping

POLL_TIMEOUT_SECONDS: Final = 1.0
_LONGEST_ANSWER: Final = 65_536


class Sidecars:
    """A client of all sidecars; used inside one event loop."""

    def __init__(self) -> None:
        # A connection per question: nothing is held open towards thousands of pods, and a pod that
        # got the address of another is never asked through the other's connection.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            timeout=aiohttp.ClientTimeout(total=POLL_TIMEOUT_SECONDS),
            # A proxy in the environment is meant for the world outside.
            trust_env=False,
        )

    async def stats(self, address: str) -> SidecarStats:
        """What the pod at an IP address tells; raises `SidecarSilent`."""
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(
                f"http://{host}:{ADMIN_PORT}{STATS}", allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise SidecarSilent(f"{host} answers with status {response.status}")
                body = await response.content.read(_LONGEST_ANSWER)
                while not response.content.at_eof() and len(body) < _LONGEST_ANSWER:
                    body += await response.content.read(_LONGEST_ANSWER)
                return stats_from_mapping(json.loads(body))
        except (aiohttp.ClientError, OSError) as error:
            raise SidecarSilent(f"{host}: {error!r}") from error
        except (InvalidInput, ValueError, RecursionError) as error:
            raise SidecarSilent(f"{host} answers nonsense: {error}") from error

    async def close(self) -> None:
        """Drop all connections."""
        await self._session.close()
