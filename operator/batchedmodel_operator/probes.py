"""The port for the kubelet's probes and for the operator's own metrics, plain HTTP.

Opened before the election: an operator that waits for the Lease answers too, as Kopf's own probes
would not.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from aiohttp import web

from batchedmodel_contract.processes.listening import EVERY_ADDRESS
from batchedmodel_http.ports.listener import Bounds, Listener

STUCK_SECONDS: Final = 180.0
"""A reconcile that takes longer will never end: the process is to be started anew."""
_BOUNDS: Final = Bounds(connections=32, head_bytes=8_192)
"""Each connection has a descriptor, of which the operator needs some itself."""
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What is told of the process."""

    leads: bool
    longest_reconcile_seconds: float
    keys: int
    """BatchedModels in the queue, those that rest included."""
    reconciles: Mapping[str, int]
    """How many reconciles ended, by result."""


def probes(port: int, vitals: Callable[[], Vitals]) -> Listener:
    """The port, which listens from `use` on. Raises `CannotListen`."""

    async def healthz(request: web.Request) -> web.Response:
        status, text = health(vitals())
        return web.Response(status=status, text=text, content_type="application/json")

    async def metrics(request: web.Request) -> web.Response:
        body = exposition(vitals()).encode()
        return web.Response(body=body, headers={"Content-Type": _METRICS_TYPE})

    application = web.Application()
    application.router.add_get("/healthz", healthz, allow_head=False)
    application.router.add_get("/metrics", metrics, allow_head=False)
    return Listener(application, EVERY_ADDRESS, port, _BOUNDS)


def health(vitals: Vitals) -> tuple[HTTPStatus, str]:
    """Whether the process does its work, or waits as it should; and a JSON text about it."""
    stuck = vitals.longest_reconcile_seconds > STUCK_SECONDS
    text = {
        "leads": vitals.leads,
        "longest_reconcile_seconds": round(vitals.longest_reconcile_seconds, 1),
    }
    return (HTTPStatus.SERVICE_UNAVAILABLE if stuck else HTTPStatus.OK), f"{json.dumps(text)}\n"


def exposition(vitals: Vitals) -> str:
    """The metrics, in the text format of Prometheus."""
    prefix = "batchedmodel_operator"
    lines = [
        f"# HELP {prefix}_leader 1 for the operator that works, 0 for one that waits.",
        f"# TYPE {prefix}_leader gauge",
        f"{prefix}_leader {int(vitals.leads)}",
        f"# HELP {prefix}_keys BatchedModels that the operator keeps an eye on.",
        f"# TYPE {prefix}_keys gauge",
        f"{prefix}_keys {vitals.keys}",
        f"# HELP {prefix}_longest_reconcile_seconds Age of the longest reconcile that runs.",
        f"# TYPE {prefix}_longest_reconcile_seconds gauge",
        f"{prefix}_longest_reconcile_seconds {vitals.longest_reconcile_seconds:.3f}",
        f"# HELP {prefix}_reconcile_total Reconciles that ended, by result.",
        f"# TYPE {prefix}_reconcile_total counter",
    ]
    for outcome, count in sorted(vitals.reconciles.items()):
        lines.append(f'{prefix}_reconcile_total{{result="{outcome}"}} {count}')
    return "\n".join(lines) + "\n"
