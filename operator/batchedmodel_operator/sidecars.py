"""Asks the sidecars of pods which batch settings they use, and how their model's start goes.

A pod's address is somebody else's server: time and size are bounded, and whatever it answers that
does not fit the question counts as no answer.
"""

import asyncio
import http.client
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final

from batchedmodel_contract import sidecar_api
from batchedmodel_contract.kubernetes_names import ADMIN_PORT
from batchedmodel_contract.sidecar_api import Whom

_log: Final = logging.getLogger(__name__)
_TIMEOUT_SECONDS: Final = 1.0
_LARGEST_ANSWER: Final = 65_536
_LONGEST_HASH: Final = 64
_LONGEST_TEXT: Final = 2_048
_AT_ONCE: Final = 16


class SidecarAdmin:
    """The admin ports of pods, by their addresses."""

    def __init__(self, port: int = ADMIN_PORT) -> None:
        self._port = port
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sidecars")

    async def settings_hash(self, address: str, whom: Whom) -> str | None:
        """The hash of the batch settings in force, or None when the pod gives no answer."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._settings_hash, address, whom)

    async def model_startup(self, address: str, whom: Whom) -> str | None:
        """What is said of the model's start, or None when the pod gives no answer."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._model_startup, address, whom)

    def close(self) -> None:
        """Answers that are still awaited come within their time limit."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _settings_hash(self, address: str, whom: Whom) -> str | None:
        status, body = self._get(address, sidecar_api.SETTINGS, whom)
        if status != HTTPStatus.OK:
            return None
        try:
            answer = json.loads(body)["hash"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return answer if isinstance(answer, str) and len(answer) <= _LONGEST_HASH else None

    def _model_startup(self, address: str, whom: Whom) -> str | None:
        status, body = self._get(address, sidecar_api.MODEL_STARTUP, whom)
        if status not in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
            return None
        return body.decode(errors="replace").strip()[:_LONGEST_TEXT]

    def _get(self, address: str, path: str, whom: Whom) -> tuple[int | None, bytes]:
        """Status and body of the answer; no status when there is none, or another's."""
        # Straight to the pod: `urllib` would honour a proxy from the environment.
        connection = http.client.HTTPConnection(address, self._port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            if other := whom.other(response.getheader):
                _log.warning(
                    "dropped: %s is %s, and not %s of %s", address, other, whom.pod, whom.model
                )
                return None, b""
            return response.status, response.read1(_LARGEST_ANSWER)
        except (OSError, http.client.HTTPException, ValueError):
            return None, b""
        finally:
            connection.close()
