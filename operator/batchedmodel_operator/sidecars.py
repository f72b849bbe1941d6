"""Asks the sidecars of pods which batch settings they use.

A pod's address is somebody else's server: time and size are bounded, and whatever it answers that
is no hash counts as no answer.
"""

import asyncio
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from batchedmodel_contract import sidecar_api
from batchedmodel_contract.kubernetes_names import ADMIN_PORT

_TIMEOUT_SECONDS: Final = 1.0
_LARGEST_ANSWER: Final = 65_536
_LONGEST_HASH: Final = 64
_AT_ONCE: Final = 16


class SidecarAdmin:
    """The admin ports of pods, by their addresses."""

    def __init__(self, port: int = ADMIN_PORT) -> None:
        self._port = port
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sidecars")

    async def settings_hash(self, address: str) -> str | None:
        """The hash of the batch settings in force, or None when there is no answer."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._ask, address)

    def close(self) -> None:
        """Answers that are still awaited come within their time limit."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, address: str) -> str | None:
        # Straight to the pod: `urllib` would honour a proxy from the environment.
        connection = http.client.HTTPConnection(address, self._port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("GET", sidecar_api.SETTINGS)
            response = connection.getresponse()
            body = response.read1(_LARGEST_ANSWER) if response.status == 200 else b""
            answer = json.loads(body)["hash"]
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
        ):
            return None
        finally:
            connection.close()
        return answer if isinstance(answer, str) and len(answer) <= _LONGEST_HASH else None
