"""Asks sidecars for their stats over HTTP: the only module that knows how they are reached."""

import json
import time
from functools import lru_cache
from typing import Final

import aiohttp
from yarl import URL

from batchedmodel_autoscaler.errors import SidecarSilent, SomebodyElse
from batchedmodel_autoscaler.kept import Kept
from batchedmodel_contract.kubernetes_names import ADMIN_PORT
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.sidecar_api import STATS, Whom
from batchedmodel_contract.stats import SidecarStats, stats_from_mapping

POLL_TIMEOUT_SECONDS: Final = 1.0
KEPT_SECONDS: Final = 45.0
"""How long a connection waits for the next question: three times the longest pause that can be set,
and shorter than a sidecar waits for it, which would else close it just as it is used."""
_LONGEST_ANSWER: Final = 65_536
_URLS: Final = 10_000


class Sidecars:
    """A client of all sidecars; used inside one event loop.

    Connections are kept, since opening one costs nearly as much as the question. A pod that got
    the address of another is never mistaken for it: it knows nothing of the other's connection and
    resets it, and the client asks anew through one of its own. A question that was given up takes
    its connection with it, so that no late answer is taken for that to the next.
    """

    def __init__(self, most_kept: int, *, kept_seconds: float = KEPT_SECONDS) -> None:
        # The connector looks for idle connections once in this time, so the last go after twice it.
        self._kept = Kept(most_kept, seconds=2 * kept_seconds + 2.0)
        self._keeping = _session(
            aiohttp.TCPConnector(limit=0, keepalive_timeout=kept_seconds),
        )
        self._closing = _session(aiohttp.TCPConnector(limit=0, force_close=True))

    async def stats(self, address: str, whom: Whom) -> SidecarStats:
        """What the pod at an IP address tells; raises `SidecarSilent`, also when it is another."""
        kept = self._kept.has_place(address, time.monotonic())
        session = self._keeping if kept else self._closing
        try:
            async with session.get(_url(address), allow_redirects=False) as response:
                if response.status != 200:
                    raise SidecarSilent(f"{address} answers with status {response.status}")
                if other := whom.other(response.headers.get):
                    raise SomebodyElse(f"{address} is {other}, and not {whom.pod} of {whom.model}")
                body = await response.content.read(_LONGEST_ANSWER)
                while not response.content.at_eof() and len(body) < _LONGEST_ANSWER:
                    body += await response.content.read(_LONGEST_ANSWER)
                return stats_from_mapping(json.loads(body))
        except (aiohttp.ClientError, OSError) as error:
            raise SidecarSilent(f"{address}: {error!r}") from error
        except (InvalidInput, ValueError, RecursionError) as error:
            raise SidecarSilent(f"{address} answers nonsense: {error}") from error

    async def close(self) -> None:
        """Drop all connections."""
        await self._keeping.close()
        await self._closing.close()


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=POLL_TIMEOUT_SECONDS),
        # A proxy in the environment is meant for the world outside.
        trust_env=False,
    )


@lru_cache(maxsize=_URLS)
def _url(address: str) -> URL:
    """Of the stats; taking an address apart takes longer than remembering it."""
    host = f"[{address}]" if ":" in address else address
    return URL(f"http://{host}:{ADMIN_PORT}{STATS}")
