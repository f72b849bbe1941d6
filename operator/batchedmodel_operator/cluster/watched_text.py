"""What Kopf gets to read of an API server's answers: of each object the few fields asked for here.

Kopf parses whole pages and messages by itself, and one object that its parser cannot take would end
the watching of all. So it gets a session that reads answers within bounds first.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

import aiohttp
import kopf

from batchedmodel_kube.client import path_of
from batchedmodel_kube.names import NAME_LABEL
from batchedmodel_kube.object_text import (
    LARGEST_OF_MANY,
    ItemSplitter,
    Unreadable,
    Wanted,
    pick,
    pick_owned,
)
from batchedmodel_kube.reading import CHUNK, items_of, message_of, messages_of
from batchedmodel_operator.cluster.request_pace import RequestPace
from batchedmodel_operator.conditions.autoscaling import looked_at
from batchedmodel_operator.interfaces import LOOKED_AT
from batchedmodel_operator.kinds import RESOURCES, Kind

_log: Final = logging.getLogger(__name__)
_WANTED: Final[Wanted] = {
    "apiVersion": None,
    "kind": None,
    "metadata": {
        **dict.fromkeys(("name", "namespace", "uid", "resourceVersion", "generation")),
        "deletionTimestamp": None,
        "labels": {NAME_LABEL: None},
        "ownerReferences": None,
    },
    "status": {"observedGeneration": None},
}
_AUTOSCALER: Final[Wanted] = {"metadata": None, "spec": None, "status": {"conditions": None}}
"""What a digest is made of. It is not kept: a page of HPAs may hold megabytes of annotations."""


def bounded(account: kopf.ConnectionInfo, authorities: str | None = None) -> kopf.AiohttpSession:
    """The account with a session that asks in turn and leaves out what nobody here asks for.

    `authorities`: a file with those that a proxy's own certificates may be of.
    """
    trust = account.as_ssl_context()
    if account.proxy_url and authorities:
        trust.load_verify_locations(authorities)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=trust),
        headers=account.as_http_headers(),
        proxy=account.proxy_url,
        trust_env=account.trust_env,
        middlewares=(_paced(), _read_before),
    )
    return kopf.AiohttpSession(
        aiohttp_session=session,
        server=account.server,
        default_namespace=account.default_namespace,
        priority=account.priority,
        expiration=account.expiration,
    )


class LightContent:
    """The body of an answer, as far as Kopf reads it; everything else is the body's own."""

    def __init__(self, content: aiohttp.StreamReader, where: str) -> None:
        self._content = content
        self._where = where
        autoscalers = where.endswith(f"/{RESOURCES[Kind.AUTOSCALER].plural}")
        self._read = _light_autoscaler if autoscalers else _light

    async def read(self) -> bytes:
        """A page of a list. Raises `aiohttp.ClientPayloadError` where it is none."""
        splitter, items = ItemSplitter(), []
        try:
            chunks = aiter(self._content.iter_chunked(CHUNK))
            async for item, _ in items_of(chunks, splitter, self._read, self._leave_out):
                items.append(item)
            page = {**splitter.rest(), "items": items}
        except Unreadable as error:
            raise aiohttp.ClientPayloadError(f"{self._where}: the list {error}") from error
        return json.dumps(page).encode()

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """A watch, a message at a time. Raises `aiohttp.ClientPayloadError` where it is none."""
        chunks = aiter(self._content.iter_chunked(min(size, CHUNK)))
        try:
            read = partial(_light_message, read=self._read)
            async for message in messages_of(chunks, read, self._leave_out):
                yield message
        except Unreadable as error:
            raise aiohttp.ClientPayloadError(f"{self._where}: it {error}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    def _leave_out(self, error: Unreadable) -> None:
        _log.warning("%s: an object is left out, as it %s", self._where, error)


def _paced() -> aiohttp.ClientMiddlewareType:
    pace = RequestPace()

    async def ask(
        request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        query = request.url.query
        # The pages of a list follow each other, and end.
        if "continue" not in query:
            what = f"{request.url.path} {query.get('watch', '')}"
            wait = pace.seconds_to_wait(what, asyncio.get_running_loop().time())
            if wait > 0:
                await asyncio.sleep(wait)
        return await send(request)

    return ask


async def _read_before(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    response = await send(request)
    path = request.url.path
    if response.status == HTTPStatus.TOO_MANY_REQUESTS:
        # Kopf would wait for as long as the answer says, be it a day. So it waits as for others.
        response.close()
        raise aiohttp.ClientConnectionError(f"{path}: too many requests")
    if response.ok and _is_ours(path):
        response.content = cast(aiohttp.StreamReader, LightContent(response.content, path))
    return response


def _is_ours(path: str) -> bool:
    """Whether users write what stands there; the rest is the cluster's and read as it is."""
    return any(
        path.startswith(f"{path_of(one.group, one.version)}/") and path.endswith(f"/{one.plural}")
        for one in RESOURCES.values()
    )


def _light(item: bytes) -> dict[str, Any]:
    return pick_owned(item, _WANTED, largest=LARGEST_OF_MANY)


def _light_autoscaler(item: bytes) -> dict[str, Any]:
    found = _light(item)
    # What is too large for a digest is news each time it comes.
    with suppress(Unreadable):
        found[LOOKED_AT] = looked_at(pick(item, _AUTOSCALER, largest=LARGEST_OF_MANY))
    return found


def _light_message(line: bytes, *, read: Callable[[bytes], dict[str, Any]]) -> bytes:
    kind, found = message_of(line, read)
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"
