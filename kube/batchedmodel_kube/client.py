"""The API server. Beside `credentials` the only module that knows the Kubernetes client.

Objects go in and out as JSON: the client's typed models would cost memory and drop the fields that
they do not know. Every call ends in bounded time, except a watch, and raises only `ClusterError`s.
"""

import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from batchedmodel_kube.credentials import configuration_from
from batchedmodel_kube.errors import ClusterError, Gone, Unreachable, translated
from batchedmodel_kube.object_text import (
    LARGEST_OBJECT,
    ItemSplitter,
    Unreadable,
    members,
    parsed,
)
from batchedmodel_kube.reading import (
    CHUNK,
    Object,
    apart,
    items_of,
    message_of,
    messages_of,
    steadily,
)
from batchedmodel_kube.server_calendar import ServerCalendar

_log: Final = logging.getLogger(__name__)
_CALL_SECONDS: Final = 30.0
"""From connecting to the last byte of an answer. A large page of a list may take longer."""
_WATCH_SECONDS: Final = 240
"""A watch ends by itself after this, so that one which died unseen is not believed for long."""
_CALL: Final = aiohttp.ClientTimeout(total=_CALL_SECONDS)
_WATCH: Final = aiohttp.ClientTimeout(
    total=_WATCH_SECONDS + _CALL_SECONDS, sock_connect=_CALL_SECONDS
)
_PAGE: Final = "100"
"""Objects."""
_LARGEST_REFUSAL: Final = 524_288
"""Bytes. A refusal quotes every value that it complains of, twice."""
_JSON: Final = "application/json"
_METADATA: Final = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST: Final = f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
"""With its parameter the client sends a text as it is."""
_TWO_ESCAPES: Final = re.compile(r"\\\\|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
"""An escaped backslash, or a character that JSON escapes as two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection of objects, or the one object of it that has a name."""

    path: str
    read: Callable[[bytes], Object]
    """What is kept of an object's JSON. Raises `Unreadable` for one that is left out."""
    labels: str = ""
    """Label selector."""
    name: str = ""
    """The only object wanted: rights can then be limited to its name."""
    metadata_only: bool = False
    """Whether the rest of the objects, such as a whole pod template, need not be sent."""
    may_be_closed: bool = False
    """Whether it counts as empty when it is forbidden: a namespace takes its Role along."""

    @property
    def selectors(self) -> dict[str, str]:
        """The query that selects its objects."""
        found = {"labelSelector": self.labels} if self.labels else {}
        return {**found, "fieldSelector": f"metadata.name={self.name}"} if self.name else found

    def __str__(self) -> str:
        return f"{self.path}/{self.name}" if self.name else self.path


class EventType(StrEnum):
    """What a list or a watch tells."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An object of a list, or a message of a watch."""

    type: EventType
    found: Object
    """Empty for a bookmark."""
    version: str = ""
    """The version to go on from; empty for an object of a list."""
    size: int = 0
    """Bytes of the object's JSON."""


def path_of(
    group: str,
    version: str,
    plural: str = "",
    *,
    namespace: str = "",
    name: str = "",
    subresource: str = "",
) -> str:
    """An address at the API server. The core group is empty; no namespace means all."""
    parts = [f"/apis/{group}" if group else "/api", version]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [plural, quote(name, safe=""), subresource]
    return "/".join(filter(None, parts))


def _unread(text: bytes) -> Object:
    return {}


class Client:
    """A connection to the API server; used inside one event loop."""

    def __init__(self, configuration: Configuration, *, page_seconds: float = 120.0) -> None:
        """`page_seconds`: for a page of a list, with the time in which its objects are read."""
        # Each watch holds a connection, and other requests are bounded by the workers. With the
        # client's bound of 100 they would queue behind requests that a slow API server keeps.
        configuration.connection_pool_maxsize = 0
        self._client = ApiClient(configuration)
        self._page_limit = aiohttp.ClientTimeout(
            total=page_seconds, sock_connect=_CALL_SECONDS, sock_read=_CALL_SECONDS
        )
        self._calendar = ServerCalendar()
        self.left_out = 0
        """How many objects could not be read."""

    @classmethod
    async def connect(cls, environ: Mapping[str, str], *, page_seconds: float = 120.0) -> "Client":
        """As `configuration_from` says; raises `Unreachable` without usable credentials."""
        configuration = await configuration_from(environ)
        return cls(configuration, page_seconds=page_seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    def calendar(self) -> datetime:
        """The time for people, with its zone, by the API server's clock as soon as it answered."""
        return self._calendar.now()

    async def get(self, path: str, *, read: Callable[[bytes], Object] = parsed) -> Object | None:
        """What is read of an object; None when it, its namespace or its kind is not there."""
        try:
            return await self._call("GET", path, read=read)
        except Gone:
            return None

    async def list(self, collection: Collection) -> AsyncGenerator[Event, None]:
        """All objects there are, then a bookmark with the version that they are of.

        Objects that cannot be read are left out. Raises `TooOld` when a page came too late.
        """
        query = {**collection.selectors, "limit": _PAGE}
        accept = _METADATA_LIST if collection.metadata_only else _JSON
        leave_out = partial(self._leave_out, collection)
        while True:
            splitter = ItemSplitter()
            chunks = self._chunks(
                "GET", collection.path, query, accept=accept, limit=self._page_limit
            )
            coming = steadily(chunks, _CALL_SECONDS)
            items = items_of(coming, splitter, collection.read, leave_out)
            try:
                async with aclosing(chunks), aclosing(coming), aclosing(items):
                    async for found, size in items:
                        yield Event(type=EventType.ADDED, found=found, size=size)
                metadata = splitter.rest().get("metadata") or {}
            except Unreadable as error:
                raise Unreachable(f"GET {collection}: the answer {error}") from error
            except TimeoutError as error:
                raise Unreachable(f"GET {collection}: the answer comes too slowly") from error
            if not metadata.get("continue"):
                version = metadata.get("resourceVersion", "")
                if not version:
                    # Of a proxy, perhaps. Taken for an empty list it would end all that is there.
                    text = f"GET {collection}: the answer is no list: it has no resourceVersion"
                    raise Unreachable(text)
                yield Event(type=EventType.BOOKMARK, found={}, version=version)
                return
            query["continue"] = metadata["continue"]

    async def watch(self, collection: Collection, version: str) -> AsyncGenerator[Event, None]:
        """What happens to the objects after `version`, until the API server ends the watch.

        Raises `TooOld` when it no longer knows that version.
        """
        query = {
            **collection.selectors,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        accept = _METADATA if collection.metadata_only else _JSON
        chunks = self._chunks("GET", collection.path, query, accept=accept, limit=_WATCH)
        leave_out = partial(self._leave_out, collection)
        read = partial(_event, collection, leave_out)
        try:
            async with aclosing(chunks), aclosing(messages_of(chunks, read, leave_out)) as events:
                async for event in events:
                    yield event
        except Unreadable as error:
            raise Unreachable(f"watch {collection}: it {error}") from error

    async def apply(
        self,
        path: str,
        manifest: Object,
        *,
        manager: str,
        read: Callable[[bytes], Object] = _unread,
    ) -> Object:
        """Server-side apply as `manager`, with force; what is read of the object as it then is."""
        query = {"fieldManager": manager, "force": "true"}
        body = as_yaml(manifest)
        return await self._call(
            "PATCH", path, query=query, body=body, content_type=_APPLY, read=read
        )

    async def replace(self, path: str, manifest: Object) -> None:
        """Write a whole object. Raises `Conflict` if it has another version than the manifest."""
        await self._call("PUT", path, body=manifest, read=_unread)

    async def merge(self, path: str, patch: Object) -> None:
        """Change some fields. Raises `Conflict` if the object is not the one that `patch` names."""
        await self._call("PATCH", path, body=patch, content_type=_MERGE, read=_unread)

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete exactly this object. One that is gone is no error, another one is a `Conflict`."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            await self._call("DELETE", path, body=options, read=_unread)
        except Gone:
            return

    def _leave_out(self, collection: Collection, error: Unreadable) -> None:
        self.left_out += 1
        _log.warning("%s: an object is left out, as it %s", collection, error)

    async def _call(
        self, method: str, path: str, *, read: Callable[[bytes], Object], **request: Any
    ) -> Object:
        """What is read of a good answer; `request` as for `_chunks`."""
        text = b""
        async with aclosing(self._chunks(method, path, **request)) as chunks:
            async for chunk in chunks:
                text += chunk
                if len(text) > LARGEST_OBJECT:
                    raise Unreachable(f"{method} {path}: the answer has no end")
        try:
            return await apart(text, read)
        except Unreadable as error:
            raise Unreachable(f"{method} {path}: the answer {error}") from error

    async def _chunks(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Object | str | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        limit: aiohttp.ClientTimeout = _CALL,
    ) -> AsyncGenerator[bytes, None]:
        """The body of a good answer as it arrives."""
        try:
            call = await self._client.param_serialize(
                method,
                path,
                query_params=dict(query or {}),
                header_params={"Accept": accept, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*call, _request_timeout=limit)
            async with answer.response as response:
                self._calendar.heard(response.headers.get("Date", ""))
                chunks = response.content.iter_chunked(CHUNK)
                if not 200 <= response.status <= 299:
                    raise await _refusal(response.status, chunks)
                async for chunk in chunks:
                    yield chunk
        except ClusterError:
            raise
        except Exception as error:
            # The client lets the exceptions of its transport through.
            raise Unreachable(f"{method} {path}: {str(error) or type(error).__name__}") from error


def as_yaml(manifest: Object) -> str:
    """JSON that is YAML too: a character such as an emoji has no two escapes there but one."""
    text = json.dumps(manifest)
    return _TWO_ESCAPES.sub(_one_escape, text) if "\\ud" in text else text


def _one_escape(found: re.Match[str]) -> str:
    if found[1] is None:
        return found[0]
    high, low = int(found[1], 16), int(found[2], 16)
    return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08X}"


def _event(collection: Collection, leave_out: Callable[[Unreadable], None], line: bytes) -> Event:
    """What a message tells. An object that cannot be read is gone: a list leaves it out as well."""
    unread: Unreadable | None = None
    try:
        kind, found = message_of(line, collection.read)
    except Unreadable as error:
        _, found = message_of(line, _identity)
        kind, unread = EventType.DELETED, error
    try:
        if kind == "ERROR":
            raise translated(int(found.get("code") or 0), json.dumps(found).encode())
        version = found["metadata"]["resourceVersion"]
        event = Event(type=EventType(kind), found=found, version=version)
    except (LookupError, TypeError, ValueError) as error:
        raise Unreadable("is no message of a watch") from error
    if unread is not None:
        leave_out(unread)
    return event


def _identity(text: bytes) -> Object:
    return {"metadata": parsed(dict(members(text)).get("metadata", b"{}"))}


async def _refusal(status: int, chunks: AsyncIterator[bytes]) -> ClusterError:
    text = b""
    async for chunk in chunks:
        text += chunk
        if len(text) > _LARGEST_REFUSAL:
            break
    return await apart(text, partial(translated, status))
