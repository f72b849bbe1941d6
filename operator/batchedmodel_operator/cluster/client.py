"""The Kubernetes API server. The only module that talks to it, and that knows its client.

Objects go in and out as JSON: the client's typed models would cost memory and drop what they do not
know. Kopf watches by itself and only says that something happened.
"""

import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from batchedmodel_contract.kubernetes.names import NAME_LABEL
from batchedmodel_contract.kubernetes.object_text import (
    LARGEST_OBJECT,
    ItemSplitter,
    Unreadable,
    parsed,
)
from batchedmodel_operator.cluster.objects import apart, items_of, reader_of
from batchedmodel_operator.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    QuotaExceeded,
    Refused,
    Unreachable,
)
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import RESOURCES, Kind

_log: Final = logging.getLogger(__name__)
_TIMEOUT_SECONDS: Final = 30
_UNBOUNDED: Final = 0
"""Connections at a time, in the words of the client's transport."""
_LONGEST_COMPLAINT: Final = 1000
_NOT_PRINTED: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PAGE: Final = "100"
_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
"""With its parameter the client sends a text as it is."""
_TWO_ESCAPES: Final = re.compile(r"\\\\|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
"""An escaped backslash, or a character that JSON escapes as two."""
_CHUNK: Final = 65_536
_LARGEST_REFUSAL: Final = 524_288
"""Bytes. It quotes every value that it complains of, twice."""
_MERGE: Final = "application/merge-patch+json"
_MOST_LISTED: Final = {Kind.CONTROLLER_REVISION: 524_288, Kind.POD: 16_777_216}
"""Bytes as JSON of all objects with a model's label that are read in one look."""
_LEAST_COUNTED: Final = 5_592
"""Bytes that each counts for: three thousand pods."""


class KubernetesCluster:
    """An API server as the operator's account sees it."""

    def __init__(self, configuration: Configuration) -> None:
        # Who asks is bounded by the workers and the namespaces. With the client's own bound of 100
        # the namespaces of a long list would queue behind looks that wait for a slow API server.
        configuration.connection_pool_maxsize = _UNBOUNDED
        self._client = ApiClient(configuration)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """The object, or None when it, its namespace or its kind is not there."""
        try:
            return await self._request("GET", _path(kind, namespace, name), read=reader_of(kind))
        except Gone:
            return None

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server lists the kind among those that can be asked for."""
        resource = RESOURCES[kind]
        return resource.plural in await self.served(resource.group, resource.version)

    async def served(self, group: str, version: str) -> frozenset[str]:
        """The resources that the API server lists of a group's version; none where it has none."""
        try:
            found = await self._request("GET", f"/apis/{group}/{version}")
        except Gone:
            return frozenset()
        return frozenset(one.get("name", "") for one in found.get("resources") or ())

    async def may_list(self, kind: Kind, namespace: str) -> bool:
        """Whether the objects of a kind can be listed in a namespace."""
        try:
            await self._request("GET", _path(kind, namespace), {"limit": "1"}, read=_unread)
        except (Forbidden, Gone):
            return False
        return True

    async def each(self, kind: Kind, namespace: str) -> AsyncIterator[Body]:
        """The objects of a kind, a page at a time; those of all namespaces where none is named.

        What cannot be read is left out.
        """
        async for body, _ in self._listed(kind, namespace, {}):
            yield body

    async def labelled(self, kind: Kind, namespace: str, model: str) -> Sequence[Body]:
        """The objects of a kind that carry a BatchedModel's label; what cannot be read is not."""
        query = {"labelSelector": f"{NAME_LABEL}={model}"}
        held, found = 0, []
        async with aclosing(self._listed(kind, namespace, query)) as listed:
            async for body, size in listed:
                if not body["metadata"].get("ownerReferences"):
                    # Nobody's, whatever its label says.
                    continue
                held += max(size, _LEAST_COUNTED)
                if held > _MOST_LISTED[kind]:
                    what = f"{namespace}: there is more of {kind} with the label of {model}"
                    _log.warning("%s than the %d bytes that are read", what, _MOST_LISTED[kind])
                    break
                found.append(body)
        return found

    async def apply(self, manifest: Body, *, manager: str, subresource: str = "") -> Body:
        """Server-side apply as `manager`, with force; the object as it then is."""
        metadata = manifest["metadata"]
        path = _path(Kind(manifest["kind"]), metadata["namespace"], metadata["name"], subresource)
        query = {"fieldManager": manager, "force": "true"}
        read = reader_of(Kind(manifest["kind"]))
        body = as_yaml(manifest)
        return await self._request("PATCH", path, query, body, content_type=_APPLY, read=read)

    async def replace(self, manifest: Body) -> Body:
        """Write the whole object, if it still has the manifest's version; the object as it then is.

        Without a version it must not be there yet, which only some kinds allow.
        """
        metadata = manifest["metadata"]
        path = _path(Kind(manifest["kind"]), metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, body=manifest)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this object; nothing to do when it is gone."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            await self._request("DELETE", _path(kind, namespace, name), body=options, read=_unread)
        except Gone:
            return

    async def annotate(self, pod: str, namespace: str, uid: str, annotation: Body) -> None:
        """Set annotations of exactly this pod; nothing to do when it is gone."""
        patch = {"metadata": {"uid": uid, "annotations": dict(annotation)}}
        try:
            path = _path(Kind.POD, namespace, pod)
            await self._request("PATCH", path, body=patch, content_type=_MERGE, read=_unread)
        except Gone:
            return

    async def _listed(
        self, kind: Kind, namespace: str, query: Mapping[str, str]
    ) -> AsyncGenerator[tuple[Body, int], None]:
        """Each object with its size in bytes."""
        path, following = _path(kind, namespace), ""
        while True:
            more = {"limit": _PAGE, **query, **({"continue": following} if following else {})}
            splitter = ItemSplitter()
            try:
                async with (
                    aclosing(self._chunks("GET", path, more)) as chunks,
                    aclosing(items_of(chunks, splitter)) as items,
                ):
                    async for item in items:
                        body = await apart(item, partial(_read_item, kind=kind, path=path))
                        if body is not None:
                            yield body, len(item)
                following = (splitter.rest().get("metadata") or {}).get("continue", "")
            except Unreadable as error:
                raise Unreachable(f"GET {path}: the answer {error}") from error
            if not following:
                return

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Body | str | None = None,
        *,
        content_type: str = _JSON,
        read: Callable[[bytes], Body] = parsed,
    ) -> Body:
        text = b""
        asked = self._chunks(method, path, query, body, content_type=content_type)
        async with aclosing(asked) as chunks:
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
        body: Body | str | None = None,
        *,
        content_type: str = _JSON,
    ) -> AsyncGenerator[bytes, None]:
        """The body of a good answer as it arrives."""
        try:
            call = await self._client.param_serialize(
                method,
                path,
                query_params=dict(query or {}),
                header_params={"Accept": _JSON, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*call, _request_timeout=_TIMEOUT_SECONDS)
            async with answer.response as response:
                if not 200 <= response.status <= 299:
                    chunks = response.content.iter_chunked(_CHUNK)
                    raise await _refusal(response.status, chunks)
                async for chunk in response.content.iter_chunked(_CHUNK):
                    yield chunk
        except ClusterError:
            raise
        except Exception as error:
            # The client lets the exceptions of whatever transport it uses through.
            raise Unreachable(f"{method} {path}: {str(error) or type(error).__name__}") from error


def as_yaml(manifest: Body) -> str:
    """JSON that is YAML too: characters such as emoji have no two escapes there but a long one."""
    text = json.dumps(manifest)
    return _TWO_ESCAPES.sub(_one_escape, text) if "\\ud" in text else text


def _one_escape(found: re.Match[str]) -> str:
    if found[1] is None:
        return found[0]
    high, low = int(found[1], 16), int(found[2], 16)
    return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08X}"


def _unread(text: bytes) -> Body:
    return {}


def _read_item(text: bytes, *, kind: Kind, path: str) -> Body | None:
    try:
        return reader_of(kind)(text)
    except Unreadable as error:
        _log.warning("%s: an object is left out, as it %s", path, error)
        return None


async def load_configuration() -> Configuration:
    """How to reach the API server: a pod's service account, or else KUBECONFIG.

    Raises `Unreachable` when there is neither.
    """
    # Or it would look for proxies and a .netrc in threads at each request. Kopf heeds none either.
    configuration = Configuration(client_session_kwargs={"trust_env": False})
    try:
        config.load_incluster_config(  # type: ignore[no-untyped-call]
            client_configuration=configuration
        )
    except config.ConfigException:
        try:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration
            )
        except (config.ConfigException, OSError) as error:
            raise Unreachable(f"no way to an API server is configured: {error}") from error
    return configuration


async def _refusal(status: int, chunks: AsyncIterator[bytes]) -> ClusterError:
    """The error behind a refusal, which quotes what users wrote and comes in several parts."""
    text = b""
    async for chunk in chunks:
        text += chunk
        if len(text) > _LARGEST_REFUSAL:
            break
    return await apart(text, partial(translated, status))


def translated(status: int, text: bytes) -> ClusterError:
    """The error behind an answer of the API server that is none of success."""
    answer = _status_object(text)
    message = str(answer.get("message") or f"the API server answered {status}")
    # It quotes what users wrote, and goes into the log, where a line must be one of ours.
    message = _NOT_PRINTED.sub(" ", message[:_LONGEST_COMPLAINT])
    details = answer.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    reasons = {cause.get("reason") for cause in causes or () if isinstance(cause, dict)}
    if status == 404 or "NamespaceTerminating" in reasons:
        return Gone(message)
    if status == 409:
        return Conflict(message)
    if status == 403:
        return QuotaExceeded(message) if "exceeded quota" in message else _forbidden(message)
    # What a server-side apply cannot even parse is answered like a fault of the server.
    if status in (400, 413, 415, 422) or "failed to create typed patch object" in message:
        return Invalid(message)
    if status in (401, 408, 429) or status >= 500:
        return Unreachable(message)
    return Refused(message)


def _forbidden(message: str) -> ClusterError:
    # RBAC names the user and the verb; whatever else says 403 is an admission policy, and it is
    # the object that it does not like.
    return Forbidden(message) if " cannot " in message else Invalid(message)


def _status_object(text: bytes) -> Mapping[str, Any]:
    try:
        answer = parsed(text)
    except Unreadable:
        return {}
    return answer if isinstance(answer, dict) else {}


def _path(kind: Kind, namespace: str, name: str = "", subresource: str = "") -> str:
    resource = RESOURCES[kind]
    root = f"/apis/{resource.group}" if resource.group else "/api"
    within = ["namespaces", quote(namespace, safe="")] if namespace else []
    parts = [root, resource.version, *within, resource.plural]
    if name:
        parts.append(quote(name, safe=""))
    if subresource:
        parts.append(subresource)
    return "/".join(parts)
