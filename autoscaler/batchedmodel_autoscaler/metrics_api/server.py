"""Serves the two metrics APIs to the API server: paths, trust, and one error form.

Both tell the same: `custom.metrics.k8s.io` of the model that the path names,
`external.metrics.k8s.io` of the one that a label names. The numbers come from the cluster's state
and the formula, and `documents` makes the documents.
"""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from aiohttp import web

from batchedmodel_autoscaler.cluster.objects import FrontProxy, ModelKey
from batchedmodel_autoscaler.cluster.resources import METRICS_VERSIONS
from batchedmodel_autoscaler.errors import MetricsUnavailable, NotFound, RefusedAnswer, Untrusted
from batchedmodel_autoscaler.metrics_api import documents
from batchedmodel_autoscaler.metrics_api.documents import Document
from batchedmodel_autoscaler.replicas.formula import (
    ModelObservation,
    Target,
    Unseen,
    Verdict,
    outstanding,
    queue_length,
    queue_wait,
    required_replicas,
)
from batchedmodel_autoscaler.replicas.windows import GAUGE_SECONDS, WINDOW_SECONDS
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_autoscaler.telemetry import Telemetry
from batchedmodel_kube.errors import ENDINGS
from batchedmodel_kube.names import (
    BLIND,
    CONCURRENCY_METRIC,
    EXTERNAL_METRICS_GROUP,
    METRICS_GROUP,
    MODEL_METRIC_LABEL,
    QUEUE_LENGTH_METRIC,
    QUEUE_TIME_METRIC,
    REQUIRED_REPLICAS_METRIC,
)

logger: Final = logging.getLogger(__name__)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_AGGREGATED: Final = "as=apigroupdiscoverylist"
_DECISIONS: Final[dict[str, tuple[Callable[[ModelObservation, Target], Verdict], float, float]]] = {
    REQUIRED_REPLICAS_METRIC: (required_replicas, WINDOW_SECONDS, 1e9),
    QUEUE_LENGTH_METRIC: (queue_length, GAUGE_SECONDS, 1e9),
    CONCURRENCY_METRIC: (outstanding, GAUGE_SECONDS, 1e9),
    QUEUE_TIME_METRIC: (queue_wait, GAUGE_SECONDS, 1e6),
}
"""By metric: what decides, over which time, and the largest value that is given. An HPA counts pods
in 32 bits, and a larger value, divided by the least target there is, would overflow to a negative
number."""


class MetricsApi:
    """Handlers of the TLS port."""

    def __init__(
        self, state: ClusterState, telemetry: Telemetry, *, calendar: Callable[[], datetime]
    ) -> None:
        """Needs a running loop. `calendar`: the time for people, with its zone."""
        self._state = state
        self._telemetry = telemetry
        self._calendar = calendar
        self._clock = asyncio.get_running_loop().time
        self.front_proxy = FrontProxy()
        """Whom to believe; written by `service`."""

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(middlewares=[self._guard], client_max_size=65_536)
        router = application.router
        router.add_get("/livez", _ok)
        router.add_get("/readyz", _ok)
        router.add_get("/apis", _groups)
        handlers = {
            METRICS_GROUP: (f"{documents.RESOURCE}/{{name}}/{{metric}}", self._metric),
            EXTERNAL_METRICS_GROUP: ("{metric}", self._external_metric),
        }
        for group, (path, handler) in handlers.items():
            router.add_get(f"/apis/{group}", _always(documents.group(group)))
            for version in METRICS_VERSIONS[group]:
                resources = _always(documents.resource_list(group, version))
                router.add_get(f"/apis/{group}/{version}", resources)
            versions = "|".join(METRICS_VERSIONS[group])
            base = f"/apis/{group}/{{version:{versions}}}/namespaces/{{namespace}}"
            router.add_get(f"{base}/{path}", handler)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            require_front_proxy(
                self.front_proxy, request.get_extra_info("peercert"), request.headers
            )
            return await handler(request)
        except RefusedAnswer as error:
            refused = error
        except web.HTTPNotFound:
            refused = NotFound(f"the path {request.path} is not served here")
        except web.HTTPMethodNotAllowed:
            message = f"{request.method} is not allowed: metrics can only be read"
            refused = RefusedAnswer(message, 405, "MethodNotAllowed")
        except (web.HTTPException, *ENDINGS):
            raise
        except BaseException:
            # Our bug, met by this question only.
            logger.exception("%s could not be answered", request.path)
            message = "an error of the autoscaler's own; its log says more"
            refused = RefusedAnswer(message, 500, "InternalError")
        logger.debug("%s %s: %s", request.method, request.path, refused)
        return _json(documents.status(refused), refused.code)

    async def _metric(self, request: web.Request) -> web.Response:
        name = known_metric(request.match_info["metric"])
        if request.query.get("metricLabelSelector"):
            message = f"{name} has no labels that metricLabelSelector could select by"
            raise RefusedAnswer(message, 400, "BadRequest")
        return self._answer(request, documents.metric_values, request.match_info["name"], name)

    async def _external_metric(self, request: web.Request) -> web.Response:
        name = known_metric(request.match_info["metric"])
        model = selected_model(request.query.get("labelSelector", ""))
        return self._answer(request, documents.external_values, model, name)

    def _answer(
        self,
        request: web.Request,
        document: Callable[[str, ModelKey, str, float, datetime, int], Document],
        model: str,
        name: str,
    ) -> web.Response:
        version, namespace = request.match_info["version"], request.match_info["namespace"]
        key = ModelKey(namespace, model)
        _, seconds, most = _DECISIONS[name]
        value = min(most, self._value(key, name))
        return _json(document(version, key, name, value, self._calendar(), round(seconds)))

    def _value(self, key: ModelKey, name: str) -> float:
        decide, _, _ = _DECISIONS[name]
        answers = self._telemetry.answers
        try:
            target = self._state.target(key)
            verdict = decide(self._state.observation(key, self._clock()), target)
        except NotFound:
            answers.labels(name, NotFound.__name__).inc()
            raise
        except Unseen as unseen:
            answers.labels(name, MetricsUnavailable.__name__).inc()
            raise MetricsUnavailable(f"{BLIND}: {unseen}") from unseen
        answers.labels(name, verdict.reason).inc()
        logger.debug(
            "%s/%s %s = %s, %s: %s",
            *(key.namespace, key.name, name, verdict.value, verdict.reason, verdict.sentence),
            extra=key.fields(reason=verdict.reason),
        )
        return verdict.value


def known_metric(name: str) -> str:
    """The same; raises `NotFound` unless it is served."""
    if name not in _DECISIONS:
        known = ", ".join(_DECISIONS)
        raise NotFound(f'the metric "{name}" is not known; there are {known}')
    return name


def selected_model(selector: str) -> str:
    """The one model that a label selector names; raises `RefusedAnswer` for any other selector.

    An HPA would sum the values of several models.
    """
    label, _, name = selector.partition("=")
    if label != MODEL_METRIC_LABEL or not _NAME.fullmatch(name):
        message = (
            f'labelSelector "{selector}" does not name one model: '
            f"it must be {MODEL_METRIC_LABEL}=NAME"
        )
        raise RefusedAnswer(message, 400, "BadRequest")
    return name


def require_front_proxy(
    front: FrontProxy, peer: Mapping[str, Any] | None, headers: Mapping[str, str]
) -> None:
    """Raises `Untrusted` unless a request came through the API server's aggregation layer.

    The API server asks who the caller is and what he may before it passes a request on, and shows
    a certificate of its own. Nobody else is answered, so no token and no right is looked up here.

    `peer`: a client's certificate as the ssl module shows one that it has verified; empty or None
    for a client that showed none.
    """
    if not front.authority:
        raise Untrusted("this cluster's API server does not pass requests on")
    if not peer:
        raise Untrusted("only the API server may ask here, with its client certificate")
    name = _common_name(peer)
    if front.allowed_names and name not in front.allowed_names:
        raise Untrusted(f'the client certificate\'s name "{name}" is not allowed')
    if not any(headers.get(header) for header in front.user_headers):
        raise Untrusted("the request does not say for which user it is passed on")


def _common_name(peer: Mapping[str, Any]) -> str:
    names = dict(pair for part in peer.get("subject", ()) for pair in part)
    return str(names.get("commonName", ""))


async def _ok(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _groups(request: web.Request) -> web.Response:
    # A plain document in answer to this would be read as a group without any resource.
    if _AGGREGATED in request.headers.get("Accept", "").lower():
        raise RefusedAnswer("aggregated discovery is not served here", 406, "NotAcceptable")
    return _json(documents.group_list())


def _always(document: Document) -> _Handler:
    async def answer(request: web.Request) -> web.Response:
        return _json(document)

    return answer


def _json(document: Document, code: int = 200) -> web.Response:
    return web.Response(
        status=code, body=json.dumps(document).encode(), content_type="application/json"
    )
