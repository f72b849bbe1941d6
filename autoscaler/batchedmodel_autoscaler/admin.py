"""The admin port: probes for the kubelet and the autoscaler's own metrics, plain HTTP."""

from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def admin_application(
    registry: CollectorRegistry, missing: Callable[[], list[str]]
) -> web.Application:
    """The routes. `missing`: what must still come before questions can be answered."""

    async def live(request: web.Request) -> web.Response:
        return web.Response(text="live\n")

    async def ready(request: web.Request) -> web.Response:
        awaited = missing()
        if awaited:
            return web.Response(status=503, text=f"not there yet: {', '.join(awaited)}\n")
        return web.Response(text="ready\n")

    async def metrics(request: web.Request) -> web.Response:
        body = generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": _METRICS_TYPE})

    application = web.Application()
    application.router.add_get("/livez", live)
    application.router.add_get("/readyz", ready)
    application.router.add_get("/metrics", metrics)
    return application
