"""The admin port: probes, metrics, settings, profile, recent arrivals, the drain hook, versions.

Called by the kubelet, the autoscaler, the operator and people; never exposed by the Service.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from batchedmodel_contract.processes import server_api, sidecar_api
from batchedmodel_sidecar.backends.base import Link
from batchedmodel_sidecar.backends.native.repository import MOST_BYTES, Repository, Told
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.telemetry.arrivals import RecentArrivals

Handler = Callable[[web.Request], Awaitable[web.Response]]
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Admin:
    """Handlers of the admin port."""

    def __init__(
        self,
        name: str,
        *,
        batcher: Batcher,
        link: Link,
        lifecycle: Lifecycle,
        registry: CollectorRegistry,
        recorder: RecentArrivals,
        repository: Repository | None,
        token: str,
        pod_uid: str = "",
    ) -> None:
        """`repository`: of a model server of ours; others keep theirs to themselves.

        `token`: what commands must be given with; empty: nobody may give any.
        """
        self._name = name
        self._pod_uid = pod_uid
        self._batcher = batcher
        self._link = link
        self._lifecycle = lifecycle
        self._registry = registry
        self._recorder = recorder
        self._repository = repository
        self._token = token

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(client_max_size=MOST_BYTES)
        application.on_response_prepare.append(self._say_who_answers)
        application.router.add_get(sidecar_api.LIVE, self._live)
        application.router.add_get(sidecar_api.READY, self._ready)
        application.router.add_get(sidecar_api.METRICS, self._metrics)
        application.router.add_get(sidecar_api.SETTINGS, self._settings)
        application.router.add_post(sidecar_api.DRAIN, self._guarded(self._drain))
        application.router.add_get(sidecar_api.DRAINED, self._drained)
        application.router.add_get(sidecar_api.STATS, self._stats)
        application.router.add_get(sidecar_api.ARRIVALS, self._arrivals)
        application.router.add_get(server_api.profile_path(self._name), self._profile)
        application.router.add_get(sidecar_api.MODEL_STARTUP, self._model_startup)
        application.router.add_get(sidecar_api.MODEL_LIVE, self._model_live)
        if self._repository is not None:
            application.router.add_post(server_api.INDEX, _told_by(self._repository.index))
            commands = {
                server_api.load_path(self._name): self._repository.load,
                server_api.unload_path(self._name): self._repository.unload,
            }
            for path, command in commands.items():
                application.router.add_post(path, self._guarded(_told_by(command)))
        return application

    async def _live(self, request: web.Request) -> web.Response:
        ailment = self._batcher.ailment()
        if ailment is not None:
            return web.Response(status=503, text=f"{ailment}\n")
        return web.Response(text="live\n")

    async def _ready(self, request: web.Request) -> web.Response:
        if self._lifecycle.draining:
            return web.Response(status=503, text="draining\n")
        if self._link.status.model is None:
            return web.Response(status=503, text=f"{self._link.status.reason}\n")
        if self._batcher.closed is not None:
            return web.Response(status=503, text=f"{self._batcher.closed}\n")
        return web.Response(text="ready\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": _METRICS_TYPE})

    async def _settings(self, request: web.Request) -> web.Response:
        settings = self._batcher.settings
        document = {"hash": settings.digest(), "settings": asdict(settings)}
        return web.Response(body=orjson.dumps(document), content_type="application/json")

    async def _stats(self, request: web.Request) -> web.Response:
        stats = self._batcher.stats(draining=self._lifecycle.draining)
        return web.Response(body=orjson.dumps(stats.to_mapping()), content_type="application/json")

    async def _arrivals(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/csv; charset=utf-8"})
        await response.prepare(request)
        for piece in self._recorder.csv():
            await response.write(piece)
            # A reader that keeps up would never make the line above wait, and callers come first.
            await asyncio.sleep(0)
        return response

    async def _profile(self, request: web.Request) -> web.Response:
        # At the model server's own path, so that whoever asks need not know which of the two it is.
        model = self._link.status.model
        if model is None:
            return web.Response(status=503, text=f"{self._link.status.reason}\n")
        if model.profile is None:
            return web.Response(status=404, text="the server behind measures no profile\n")
        body = orjson.dumps(model.profile.to_mapping())
        return web.Response(body=body, content_type="application/json")

    async def _model_startup(self, request: web.Request) -> web.Response:
        status = self._link.status
        if status.model is None:
            return web.Response(status=503, text=f"{status.reason}\n")
        return web.Response(text="ready\n")

    async def _model_live(self, request: web.Request) -> web.Response:
        # Ignorance is no verdict: a sidecar that was just restarted must not restart the model.
        if self._link.status.stuck:
            return web.Response(status=503, text="the model server answers nothing\n")
        return web.Response(text="not known to be dead\n")

    async def _drain(self, request: web.Request) -> web.Response:
        self._lifecycle.begin_drain()
        return web.Response(status=202, text="draining\n")

    async def _drained(self, request: web.Request) -> web.Response:
        return web.Response(text=f"{await self._lifecycle.drained()}\n")

    async def _say_who_answers(self, request: web.Request, response: web.StreamResponse) -> None:
        # The pod that had this address before may be the one that is asked.
        response.headers[sidecar_api.MODEL_HEADER] = self._name
        if self._pod_uid:
            response.headers[sidecar_api.POD_HEADER] = self._pod_uid

    def _guarded(self, handler: Handler) -> Handler:
        """What takes a pod out of service is not for everybody who reaches the port."""

        async def guarded(request: web.Request) -> web.Response:
            return self._refusal(request) or await handler(request)

        return guarded

    def _refusal(self, request: web.Request) -> web.Response | None:
        if not self._token:
            return web.Response(status=403, text="there is no token, so nobody may do this\n")
        given = request.headers.get(sidecar_api.TOKEN_HEADER, "")
        # As bytes: a header may hold what a comparison of texts refuses.
        expected = self._token.encode()
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected):
            return web.Response(status=403, text=f"{sidecar_api.TOKEN_HEADER} is wrong\n")
        return None


def _told_by(ask: Callable[[bytes], Awaitable[Told]]) -> Handler:
    """What the model server answers, as it is."""

    async def told(request: web.Request) -> web.Response:
        try:
            answer = await ask(await request.read())
        except Unserved as error:
            body = orjson.dumps({"error": error.message})
            return web.Response(status=error.status, body=body, content_type="application/json")
        return web.Response(status=answer.status, body=answer.body, content_type="application/json")

    return told
