"""The admin port: probes, metrics, settings, profile, recent arrivals, the drain hook, versions.

Called by the kubelet, the autoscaler, the operator and people; never exposed by the Service.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Final

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from batchedmodel_contract.inference.profile import extent_of
from batchedmodel_contract.link.model_frames import Answer
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_http.ports.listener import Bounds
from batchedmodel_http.ports.local_hosts import refused_locally
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.compiled import is_compiled
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import MAX_ORDER_BYTES, Link
from batchedmodel_sidecar.telemetry.ledger import RecentArrivals

Handler = Callable[[web.Request], Awaitable[web.Response]]
ADMIN_BOUNDS: Final = Bounds(
    connections=128,
    of_address=64,
    idle_seconds=sidecar_api.IDLE_SECONDS,
    head_bytes=16_384 + MAX_ORDER_BYTES,
)
"""Each connection has a descriptor, which the data port has not."""
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Admin:
    """Handlers of the admin port."""

    name: str
    batcher: Batcher
    link: Link
    lifecycle: Lifecycle
    registry: CollectorRegistry
    recorder: RecentArrivals
    repository: NativeLink | None
    """Of a model server of ours; others keep theirs to themselves."""
    stats: Callable[[bool], SidecarStats]
    """Given whether the pod drains."""
    adapters: ServedAdapters
    token: str
    """What commands must be given with; empty: nobody may give any."""
    pod_uid: str = ""
    local_to: str = ""
    """See `SidecarSettings`."""

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(client_max_size=MAX_ORDER_BYTES, middlewares=[self._for_here])
        application.on_response_prepare.append(self._say_who_answers)
        get, post = application.router.add_get, application.router.add_post
        get(sidecar_api.LIVE, self._live)
        get(sidecar_api.READY, self._ready)
        get(sidecar_api.METRICS, self._metrics)
        get(sidecar_api.SETTINGS, self._settings)
        get(sidecar_api.ADAPTERS, self._adapter_states)
        get(sidecar_api.DRAINED, self._drained)
        get(sidecar_api.STATS, self._stats)
        get(sidecar_api.ARRIVALS, self._arrivals)
        get(sidecar_api.profile_path(self.name), self._profile)
        get(sidecar_api.generation_path(self.name), self._generation)
        get(sidecar_api.MODEL_STARTUP, self._model_startup)
        get(sidecar_api.MODEL_LIVE, self._model_live)
        post(sidecar_api.DRAIN, self._guarded(self._drain))
        if self.repository is not None:
            load, unload = self.repository.load, self.repository.unload
            post(sidecar_api.INDEX, _asking(self.repository.index))
            post(sidecar_api.load_path(self.name), self._guarded(_asking(load)))
            post(sidecar_api.unload_path(self.name), self._guarded(_asking(unload)))
        return application

    @web.middleware
    async def _for_here(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        rule = refused_locally(request.headers, self.local_to)
        return await handler(request) if rule is None else _json({"error": rule}, 403)

    async def _live(self, request: web.Request) -> web.Response:
        return _verdict("live", self.batcher.ailment())

    async def _ready(self, request: web.Request) -> web.Response:
        if self.lifecycle.draining:
            return _verdict("ready", "draining")
        status = self.link.status
        return _verdict("ready", status.reason if status.model is None else self.batcher.closed)

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self.registry)
        return web.Response(body=body, headers={"Content-Type": _METRICS_TYPE})

    async def _settings(self, request: web.Request) -> web.Response:
        settings, status = self.batcher.settings, self.link.status
        document = {
            "hash": settings.digest(),
            "settings": asdict(settings),
            "compiled": is_compiled(),
            "profile": extent_of(None if status.model is None else status.model.profile),
            "link_version": status.link_version,
            "startup": "ready" if status.model is not None else status.reason,
            "adapters": self._adapters_told(),
        }
        return _json(document)

    async def _adapter_states(self, request: web.Request) -> web.Response:
        return _json({"adapters": self._adapters_told()})

    def _adapters_told(self) -> list[dict[str, object]]:
        return [state.to_mapping() for state in self.adapters.states]

    async def _stats(self, request: web.Request) -> web.Response:
        return _json(self.stats(self.lifecycle.draining).to_mapping())

    async def _arrivals(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/csv; charset=utf-8"})
        await response.prepare(request)
        for piece in self.recorder.csv():
            await response.write(piece)
            # The line above never waits for a reader that keeps up, and callers come first.
            await asyncio.sleep(0)
        return response

    async def _profile(self, request: web.Request) -> web.Response:
        model = self.link.status.model
        if model is None:
            return _verdict("", self.link.status.reason)
        if model.profile is None:
            return web.Response(status=404, text="the server behind measures no profile\n")
        return _json(model.profile.to_mapping())

    async def _generation(self, request: web.Request) -> web.Response:
        model = self.link.status.model
        if model is None:
            return _verdict("", self.link.status.reason)
        if model.generation is None:
            return web.Response(status=404, text="the engine of this model is not known here\n")
        return _json(model.generation.to_mapping())

    async def _model_startup(self, request: web.Request) -> web.Response:
        status = self.link.status
        return _verdict("ready", status.reason if status.model is None else None)

    async def _model_live(self, request: web.Request) -> web.Response:
        # A sidecar that was just restarted knows nothing, and must not restart the model.
        stuck = "the model server answers nothing" if self.link.status.stuck else None
        return _verdict("not known to be dead", stuck)

    async def _drain(self, request: web.Request) -> web.Response:
        self.lifecycle.begin_drain()
        return web.Response(status=202, text="draining\n")

    async def _drained(self, request: web.Request) -> web.Response:
        return web.Response(text=f"{await self.lifecycle.drained()}\n")

    async def _say_who_answers(self, request: web.Request, response: web.StreamResponse) -> None:
        # Whoever asks may take this pod for the one that had its address before.
        response.headers[sidecar_api.MODEL_HEADER] = self.name
        if self.pod_uid:
            response.headers[sidecar_api.POD_HEADER] = self.pod_uid

    def _guarded(self, handler: Handler) -> Handler:
        """The handler, for those who have the token."""

        async def guarded(request: web.Request) -> web.Response:
            if not self.token:
                return web.Response(status=403, text="there is no token, so nobody may do this\n")
            given = request.headers.get(sidecar_api.TOKEN_HEADER, "")
            # As bytes: a header may hold what a comparison of texts refuses.
            given_bytes = given.encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given_bytes, self.token.encode()):
                return web.Response(status=403, text=f"{sidecar_api.TOKEN_HEADER} is wrong\n")
            return await handler(request)

        return guarded


def _asking(ask: Callable[[bytes], Awaitable[Answer]]) -> Handler:
    """A handler that gives what the model server answers, as it is."""

    async def asked(request: web.Request) -> web.Response:
        try:
            answer = await ask(await request.read())
        except Unserved as error:
            return _json({"error": error.message}, error.status)
        return web.Response(status=answer.status, body=answer.body, content_type="application/json")

    return asked


def _verdict(fine: str, trouble: str | None) -> web.Response:
    """The answer to a probe: 503 with what is wrong, if anything is."""
    if trouble is None:
        return web.Response(text=f"{fine}\n")
    return web.Response(status=503, text=f"{trouble}\n")


def _json(document: object, status: int = 200) -> web.Response:
    body = orjson.dumps(document)
    return web.Response(status=status, body=body, content_type="application/json")
