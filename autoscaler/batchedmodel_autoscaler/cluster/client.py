"""The API server, as the autoscaler uses it: lists, watches, a few kinds of writes.

The only module that knows the Kubernetes client. Its typed methods are passed by: they would build
an object for every field of every pod. Every call has a time limit, and every foreign exception
leaves as a `ClusterError`.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

from batchedmodel_autoscaler.cluster.objects import Object
from batchedmodel_autoscaler.cluster.resources import Event, EventType, Resource
from batchedmodel_autoscaler.errors import ClusterError, TooOld
from batchedmodel_contract.kubernetes.object_text import (
    LARGE,
    ItemSplitter,
    LineSplitter,
    Unreadable,
    members,
    parsed,
    pick_owned,
)

logger: Final = logging.getLogger(__name__)
_T = TypeVar("_T")
_CALL_SECONDS: Final = 20.0
_WATCH_SECONDS: Final = 240
"""A watch ends by itself after this, so that one which died unseen is not believed for long."""
_PAGE: Final = 100
"""Objects. Reading a page of pods stops everything else for some milliseconds."""
_CHUNK: Final = 65_536
_LARGEST_REFUSAL: Final = 65_536
_LONGEST_COMPLAINT: Final = 1_000
_NOT_PRINTED: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_READER: Final = ThreadPoolExecutor(1, thread_name_prefix="reader")
_JSON: Final = "application/json"
_METADATA: Final = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST: Final = f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_MERGE_PATCH: Final = "application/merge-patch+json"
_APPLY_PATCH: Final = "application/apply-patch+yaml"
"""JSON is YAML."""


class Cluster:
    """A connection to the API server; used inside one event loop."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._client = client.ApiClient(configuration)
        self.left_out = 0
        """How often an object could not be read."""

    @classmethod
    async def connect(cls, environ: Mapping[str, str]) -> "Cluster":
        """As the pod's service account, or by `KUBECONFIG` outside a cluster.

        Raises:
            ClusterError: there are no usable credentials.
        """
        # Or it would look for proxies and a .netrc in threads at each request.
        configuration = client.Configuration(client_session_kwargs={"trust_env": False})
        # Each watch holds one, three for each namespace that is named. Nothing else here asks for
        # many at once.
        configuration.connection_pool_maxsize = 0
        # Many clusters' own certificates lack the key identifiers that Python 3.13 asks for.
        configuration.disable_strict_ssl_verification = True
        try:
            if "KUBERNETES_SERVICE_HOST" in environ:
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=environ.get("KUBECONFIG"), client_configuration=configuration
                )
        except (config.ConfigException, OSError, ValueError) as error:
            raise ClusterError(f"no credentials for a cluster: {error}") from error
        return cls(configuration)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def list_page(
        self, resource: Resource, following: str = ""
    ) -> tuple[list[Object], str, str]:
        """Objects, the version they are of, and what to pass for the next page, empty at the end.

        Raises:
            TooOld: the next page is no longer known; begin anew.
            ClusterError: anything else.
        """
        more = {"continue": following} if following else {}
        url, what = resource.query(limit=_PAGE, **more), f"GET {resource}"
        accept = _METADATA_LIST if resource.metadata_only else _JSON
        # Not for all of it: large objects take their time to be read, in which nothing is awaited.
        limit = aiohttp.ClientTimeout(sock_connect=_CALL_SECONDS, sock_read=_CALL_SECONDS)
        items: list[Object] = []
        splitter = ItemSplitter()
        with _translated(what):
            response = await self._request("GET", url, limit, accept=accept)
            async with response:
                await _raise_for_status(response, what)
                async for chunk in response.content.iter_chunked(_CHUNK):
                    for item in splitter.feed(chunk):
                        try:
                            items.append(await _apart(item, partial(_picked, resource=resource)))
                        except Unreadable as error:
                            self._leave_out(resource, error)
                    # What has arrived already would be cut apart without leaving the loop.
                    await asyncio.sleep(0)
            metadata = splitter.rest().get("metadata", {})
        return items, metadata.get("resourceVersion", ""), metadata.get("continue", "")

    async def watch(self, resource: Resource, version: str) -> AsyncIterator[Event]:
        """What happens to the objects after `version`, until the API server ends the watch.

        Raises:
            TooOld: it no longer knows that version; list anew.
            ClusterError: anything else.
        """
        url = resource.query(
            watch="true",
            resourceVersion=version,
            allowWatchBookmarks="true",
            timeoutSeconds=_WATCH_SECONDS,
        )
        limit = aiohttp.ClientTimeout(
            total=None, sock_connect=_CALL_SECONDS, sock_read=_WATCH_SECONDS + _CALL_SECONDS
        )
        with _translated(f"watch {resource}"):
            accept = _METADATA if resource.metadata_only else _JSON
            response = await self._request("GET", url, limit, accept=accept)
            try:
                await _raise_for_status(response, f"watch {resource}")
                splitter = LineSplitter()
                async for chunk in response.content.iter_chunked(_CHUNK):
                    for line in splitter.feed(chunk):
                        try:
                            event = await _apart(line, partial(_event, resource=resource))
                        except Unreadable as error:
                            self._leave_out(resource, error)
                        else:
                            yield event
            finally:
                response.close()

    async def get(self, path: str) -> Object | None:
        """An object, None when it is not there; raises `ClusterError`."""
        try:
            return await self._call("GET", path)
        except ClusterError as error:
            if error.status != 404:
                raise
            return None

    async def replace(self, path: str, manifest: Object) -> None:
        """Write a whole object; raises `ClusterError`, 409 if it differs meanwhile."""
        await self._call("PUT", path, manifest)

    async def merge_patch(self, path: str, patch: Object) -> None:
        """Change some fields of an object; raises `ClusterError`, 409 if it differs meanwhile."""
        await self._call("PATCH", path, patch, _MERGE_PATCH)

    async def apply(self, path: str, manifest: Object, *, manager: str) -> None:
        """Have these fields of an object as they are here, whoever set them before.

        Raises `ClusterError`, 409 where another object has its name.
        """
        query = urlencode({"fieldManager": manager, "force": "true"})
        await self._call("PATCH", f"{path}?{query}", manifest, _APPLY_PATCH)

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete that very object; one that is gone already is no error. Raises `ClusterError`."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        try:
            await self._call("DELETE", path, body)
        except ClusterError as error:
            # 409: an object of the same name that is not the one that was meant.
            if error.status not in (404, 409):
                raise

    def _leave_out(self, resource: Resource, error: Unreadable) -> None:
        self.left_out += 1
        logger.warning("%s: an object is left out, as it %s", resource, error)

    async def _call(
        self,
        verb: str,
        url: str,
        body: Object | None = None,
        kind: str = _JSON,
        accept: str = _JSON,
    ) -> dict[str, Any]:
        what = f"{verb} {url.partition('?')[0]}"
        limit = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        with _translated(what):
            response = await self._request(verb, url, limit, body, kind, accept)
            async with response:
                await _raise_for_status(response, what)
                if verb != "GET":
                    return {}
                answer: dict[str, Any] = parsed(await response.read())
                return answer

    async def _request(
        self,
        verb: str,
        url: str,
        limit: aiohttp.ClientTimeout,
        body: Object | None = None,
        kind: str = _JSON,
        accept: str = _JSON,
    ) -> aiohttp.ClientResponse:
        serialised = await self._client.param_serialize(
            verb,
            url,
            header_params={"Accept": accept, "Content-Type": kind},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(*serialised, _request_timeout=limit)
        response: aiohttp.ClientResponse = answer.response
        return response


async def _apart(text: bytes, read: Callable[[bytes], _T]) -> _T:
    """What is read of the text; of a large one in a thread, as it takes the loop's time.

    In one thread for all: several would take turns with the loop, and leave it less.
    """
    if len(text) <= LARGE:
        return read(text)
    return await asyncio.get_running_loop().run_in_executor(_READER, read, text)


def _picked(text: bytes, resource: Resource) -> Object:
    return pick_owned(text, resource.wanted, largest=resource.largest)


def _event(line: bytes, resource: Resource) -> Event:
    message = dict(members(line))
    if not message.keys() >= {"type", "object"}:
        raise Unreadable("is no message of a watch")
    kind = parsed(message["type"])
    if kind == "ERROR":
        item = parsed(message["object"])
        error = TooOld if item.get("code") == 410 else ClusterError
        raise error(f"watch {resource}: {item.get('message')}", status=item.get("code"))
    found = _picked(message["object"], resource)
    return Event(type=EventType(kind), found=found, version=found["metadata"]["resourceVersion"])


async def _raise_for_status(response: aiohttp.ClientResponse, what: str) -> None:
    if response.status < 400:
        return
    body = b""
    async for chunk in response.content.iter_chunked(_CHUNK):
        body += chunk
        if len(body) > _LARGEST_REFUSAL:
            break
    try:
        message = parsed(body).get("message", "")
    except (ValueError, AttributeError):
        message = response.reason or ""
    # It quotes what users wrote, and goes into the log, where a line must be one of ours.
    message = _NOT_PRINTED.sub(" ", str(message)[:_LONGEST_COMPLAINT])
    kind = TooOld if response.status == 410 else ClusterError
    raise kind(f"{what}: {response.status} {message}", status=response.status)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (
        client.ApiException,
        config.ConfigException,
        aiohttp.ClientError,
        OSError,  # TimeoutError is one too
        ValueError,
        KeyError,
    ) as error:
        raise ClusterError(f"{what}: {error!r}") from error
