"""A bare client of an API server, for a benchmark that makes thousands of requests.

Called by `control_plane`, `scaling_trace` and what they share. It knows nothing of what the objects
mean.
"""

import asyncio
import base64
import io
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from batchedmodel_kube.names import NAME_LABEL
from cluster import ControlPlane

_AT_ONCE: Final = 16
_CALL_SECONDS: Final = 60.0
_JSON: Final = "application/json"
METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_MERGE: Final = "application/merge-patch+json"


class Api:
    """The API server, asked as its administrator."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = _JSON,
        accept: str = _JSON,
    ) -> dict[str, Any]:
        """The JSON answer; raises `RuntimeError` for one that is none of success."""
        data = None if body is None else json.dumps(body).encode()
        status, text = await self.send(method, path, data, kind=kind, accept=accept)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {text[:300]!r}")
        answer: dict[str, Any] = json.loads(text)
        return answer

    async def send(
        self,
        method: str,
        path: str,
        data: bytes | None,
        *,
        kind: str = _JSON,
        accept: str = _JSON,
    ) -> tuple[int, bytes]:
        """Status and body of the answer to a body that is written already."""
        headers = {"Content-Type": kind, "Accept": accept}
        # Large ones are written in pieces.
        body = None if data is None else io.BytesIO(data)
        async with self._session.request(
            method, f"{self._server}{path}", data=body, headers=headers
        ) as response:
            return response.status, await response.read()

    async def items(self, path: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a collection, as the API server has them in memory."""
        query = f"?resourceVersion=0&labelSelector={selector}"
        found: list[dict[str, Any]] = (await self.call("GET", path + query))["items"]
        return found

    async def count(self, path: str) -> int:
        """How many objects of a collection are of BatchedModels."""
        query = f"?resourceVersion=0&labelSelector={NAME_LABEL}"
        found = await self.call("GET", path + query, accept=METADATA)
        # Where there are none it says null.
        return len(found["items"] or ())

    async def patch(self, path: str, change: Mapping[str, Any]) -> None:
        """Merge a change into an object."""
        await self.call("PATCH", path, change, kind=_MERGE)


async def each(items: Iterable[Any], act: Callable[[Any], Any]) -> None:
    """Act on all of them, a few at the same time."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(item: Any) -> None:
        async with places:
            await act(item)

    async with asyncio.TaskGroup() as group:
        for item in items:
            group.create_task(one(item))


async def until(
    what: str,
    holds: Callable[[], Awaitable[bool]],
    *,
    limit_seconds: float = 60.0,
    look_seconds: float = 0.5,
) -> None:
    """Waits for something that happens in its own time; raises `SystemExit` if it does not."""
    deadline = time.monotonic() + limit_seconds
    while not await holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {limit_seconds:g} s: {what}")
        await asyncio.sleep(look_seconds)


@asynccontextmanager
async def administrator(plane: ControlPlane, folder: Path) -> AsyncIterator[Api]:
    """The API server as it is asked by whoever may do anything; `folder`: for a credential."""
    config = json.loads(plane.kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    tls = ssl.create_default_context(cadata=authority)
    pair = folder / "admin.pem"
    pair.touch(mode=0o600)
    pair.write_bytes(
        base64.b64decode(user["client-certificate-data"])
        + base64.b64decode(user["client-key-data"])
    )
    tls.load_cert_chain(pair)
    limit = aiohttp.ClientTimeout(total=_CALL_SECONDS)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls), timeout=limit
    ) as session:
        yield Api(session, cluster["server"])
