"""Kopf as an informer: which objects are watched, and how. Nobody else tells Kopf what to do.

Every event becomes a key in the work queue and nothing else. Event handlers put no finalizer and no
annotation on anything. A missed event costs a delay, and never correctness.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, cast

import kopf

from batchedmodel_contract.processes.proxy import proxy_to
from batchedmodel_kube.names import (
    CLASS_PLURAL,
    GROUP,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    PLURAL,
    VERSION,
)
from batchedmodel_operator.cluster.watched_text import bounded
from batchedmodel_operator.cluster.watching import until_all_end
from batchedmodel_operator.interfaces import LOOKED_AT
from batchedmodel_operator.kinds import CHILDREN, RESOURCES, Kind
from batchedmodel_operator.observed.state import Key, condition, is_news, keys_of

_DEFINITIONS: Final = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_WATCHED: Final = (*CHILDREN, Kind.CONTROLLER_REVISION, Kind.POD)
"""Those that carry our label."""
_SERVER_SECONDS: Final = 240
_CLIENT_SECONDS: Final = 250
_CONNECT_SECONDS: Final = 10
_REQUEST_SECONDS: Final = 30
_CHUNK: Final = 50
"""Objects of a page. A page of each kind is held as JSON at the same time, and the worst objects
that an API server takes are read within `_REQUEST_SECONDS`."""
_IDLE_SECONDS: Final = 0.05
_FIRST_BACKOFFS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class Add(Protocol):
    """Takes events; the workers do."""

    def __call__(
        self, key: Key, *, awaited: bool = False, version: str = "", autoscaler: str = ""
    ) -> None:
        """Something happened to the BatchedModel; `awaited`: its manifest is news.

        `version`: its own, where the event is of itself. `autoscaler`: the digest of an HPA that is
        there, where the event is of one.
        """
        ...


def registry(
    add: Add,
    definition_changed: Callable[[bool], None] | None,
    class_changed: Callable[[str], None] | None = None,
) -> kopf.OperatorRegistry:
    """Handlers that call `add` for each event.

    `definition_changed` hears of the custom resource: whether it is there and established. None:
    the account may not look at definitions. `class_changed` hears the name of a class that was
    edited, made or deleted. None: the account may not look at classes, or there is no such kind.
    """
    found = kopf.OperatorRegistry()

    @kopf.on.login(registry=found)
    async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
        account = kopf.login_with_service_account(**kwargs)
        if account is not None:
            account = replace(account, server=_server(os.environ, account.server))
        else:
            account = kopf.login_with_kubeconfig(**kwargs)
        if account is None:
            return None
        proxy = account.proxy_url or proxy_to(account.server, os.environ)
        return bounded(replace(account, proxy_url=proxy), os.environ.get("SSL_CERT_FILE"))

    @kopf.on.startup(registry=found)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        _configure(settings)
        # Kopf would list namespaces and definitions.
        settings.scanning.disabled = definition_changed is None

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=found)
    async def model_changed(namespace: str | None, name: str, body: kopf.Body, **_: Any) -> None:
        if namespace is not None:
            key, version = Key(namespace=namespace, name=name), body.metadata.get("resourceVersion")
            add(key, awaited=is_news(body), version=version or "")

    if class_changed is not None:

        @kopf.on.event(GROUP, VERSION, CLASS_PLURAL, registry=found)
        async def class_seen(name: str, **_: Any) -> None:
            class_changed(name)

    if definition_changed is not None:

        @kopf.on.event(*_DEFINITIONS, registry=found)
        async def definition_seen(type: str | None, body: kopf.Body, **_: Any) -> None:
            status = condition(body.get("status") or {}, "Established").get("status")
            definition_changed(type != "DELETED" and status == "True")

    # An object that loses the watched label comes as deleted, with the labels it had before.
    async def child_changed(type: str | None, body: kopf.Body, **_: Any) -> None:
        looked_at = "" if type == "DELETED" else body.get(LOOKED_AT, "")
        for key in keys_of(body):
            add(key, autoscaler=looked_at)

    for kind in _WATCHED:
        group, version, plural = _named(kind)
        kopf.on.event(group, version, plural, id=plural, registry=found)(child_changed)

    return found


async def watch(
    found: kopf.OperatorRegistry,
    *,
    namespaces: Sequence[str] = (),
    stop: asyncio.Event,
    take_signals: Callable[[], None],
) -> None:
    """Watch until `stop`. No `namespaces` means all of them. Raises what Kopf gives up for.

    Kopf takes SIGTERM and SIGINT and keeps them when it has ended, so that nobody hears them.
    `take_signals` takes them back.
    """
    others = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=found,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
    )
    # Kopf took them just before it returned, and the loop has not run since: no signal is lost.
    take_signals()
    await until_all_end(kopf.run_tasks(tasks, ignored=others), tasks, others)


def _server(environ: Mapping[str, str], named: str) -> str:
    """The API server's address from the environment of a pod: its name needs a cluster DNS."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        return named
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class _Backoffs:
    """Delays between attempts at the API server, without an end: an outage must not end us."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(_FIRST_BACKOFFS, itertools.repeat(30.0))


class _NoDifferences(kopf.DiffBaseStorage):
    """Keeps Kopf from telling what an event changed: it would copy every object three times."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return cast(kopf.BodyEssence, {})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        """Keep nothing."""


class _NoProgress(kopf.ProgressStorage):
    """Handlers of events have none."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        """Keep nothing."""

    def purge(self, **_: Any) -> None:
        """Nothing was kept."""

    def touch(self, **_: Any) -> None:
        """Nothing was kept."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


def _configure(settings: kopf.OperatorSettings) -> None:
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.persistence.progress_storage = _NoProgress()
    # For so long each object has a task that holds its last event. A thousand models are ten
    # thousand objects, and a new leader sees them all at once.
    settings.queueing.idle_timeout = _IDLE_SECONDS
    # Kopf would kill the process so long after its end, which is not ours: we watch anew. Whoever
    # stops us has a grace period and a SIGKILL.
    settings.process.ultimate_exiting_timeout = None
    settings.peering.standalone = True
    settings.posting.enabled = False
    # Load balancers drop idle connections without a word; no watch may outlive its silence.
    settings.watching.server_timeout = _SERVER_SECONDS
    settings.watching.client_timeout = _CLIENT_SECONDS
    settings.watching.connect_timeout = _CONNECT_SECONDS
    settings.networking.request_timeout = _REQUEST_SECONDS
    settings.networking.connect_timeout = _CONNECT_SECONDS
    settings.networking.error_backoffs = _Backoffs()
    settings.watching.chunk_size = _CHUNK
    # Of the definitions only ours, so that the right to watch it is enough.
    settings.watching.field_selectors[_DEFINITIONS] = f"metadata.name={PLURAL}.{GROUP}"
    for kind in _WATCHED:
        # Otherwise all pods of the cluster would come by.
        settings.watching.label_selectors[_named(kind)] = f"{MANAGED_BY_LABEL}={MANAGED_BY}"


def _named(kind: Kind) -> tuple[str, str, str]:
    resource = RESOURCES[kind]
    return resource.group, resource.version, resource.plural
