"""The data port: admission, reading, parsing, submitting, answering, for every public protocol.

Nothing of HTTP goes further in. A refusal comes as early as it can be known: for the lifecycle and
the queue before the body is read, for the body's size before it is parsed.
"""

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.http import HttpVersion11

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.tenants import NOBODY, share_of
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.connection import Reply, Running
from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.ports.local_hosts import refused_locally
from batchedmodel_http.response import Response, StreamedResponse, size_of
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.discovery.discovery import Discovery
from batchedmodel_sidecar.errors import RETRY_SOON, CallError, Rejected
from batchedmodel_sidecar.generation.handler import GenerationHandler
from batchedmodel_sidecar.generation.live_text import Answer
from batchedmodel_sidecar.helper.shared_memory import SharedMemory
from batchedmodel_sidecar.http.admission import Admission
from batchedmodel_sidecar.http.body_reader import BodyReader, Source, answer_expectation
from batchedmodel_sidecar.http.inference import InferenceHandler
from batchedmodel_sidecar.http.passthrough import GoesAlone, Passthrough, Sent
from batchedmodel_sidecar.http.refusals import Refusals, ours
from batchedmodel_sidecar.http.responses import (
    as_web,
    info_response,
    named,
)
from batchedmodel_sidecar.http.routed_head import RequestHead, Route
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.lora.naming import AdapterNames
from batchedmodel_sidecar.model import MAX_ORDER_BYTES, Link, Repository
from batchedmodel_sidecar.protocols.adapter import Adapter
from batchedmodel_sidecar.protocols.headers import (
    declines_batching,
    limit_of,
    options_of_headers,
    unmet_expectation,
)
from batchedmodel_sidecar.protocols.routes import Endpoint, Found, Lost, Routes
from batchedmodel_sidecar.protocols.v2 import V2Adapter
from batchedmodel_sidecar.telemetry.ledger import Ledger

logger: Final = logging.getLogger(__name__)

_GOING_ALONE: Final = (Endpoint.PASSED_ON, Endpoint.ALONE)
_DISCOVERED: Final = (Endpoint.ABOUT, Endpoint.OPENAPI)
_SMALL: Final = 64 * 1024
"""Bytes of an answer that is written at once, whoever reads it."""


class DataHandler:
    """Answers the requests for one model."""

    def __init__(
        self,
        name: str,
        *,
        admission: Admission,
        inferences: InferenceHandler,
        refusals: Refusals,
        batcher: Batcher,
        link: Link,
        lifecycle: Lifecycle,
        ledger: Ledger,
        bodies: BodyReader,
        adapters: Mapping[Endpoint, Adapter],
        upstream: Upstream | None,
        passthrough: Passthrough | None,
        generation: GenerationHandler | None,
        repository: Repository | None,
        names: AdapterNames,
        local_to: str = "",
    ) -> None:
        """`upstream`, `passthrough` and `generation` are of a server of one's own, `repository` of
        ours.

        `adapters` are those of our server's protocols, `names` finds those of its model.
        `local_to`: see `SidecarSettings`.
        """
        self._name = name
        self._local_to = local_to
        self._admission = admission
        self._inferences = inferences
        self._refusals = refusals
        self._batcher = batcher
        self._link = link
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._bodies = bodies
        self._adapters = adapters
        self._upstream = upstream
        self._passthrough = passthrough
        self._generation = generation
        self._repository = repository
        self._served = names.served
        own = Routes(name, adapters=names.are_known)
        self._routes = own if upstream is None else upstream.routes
        self._discovery = Discovery(name, self._routes.find, upstream=upstream is not None)
        self._loop = asyncio.get_running_loop()

    @property
    def closing(self) -> bool:
        """Whether connections should end behind their answers: another pod may answer the next."""
        return self._lifecycle.draining or self.refusing

    @property
    def refusing(self) -> bool:
        """Whether a call that comes now is refused, as the model is away or the pod stops."""
        batcher = self._batcher
        return self._lifecycle.refusing or batcher.model is None or batcher.closed is not None

    def is_call(self, asked: RequestHead) -> bool:
        """Whether `answer` will answer with an inference, or say why not."""
        route = asked.route or self._route(asked)
        return route.adapter is not None or route.generates

    def left_early(self) -> None:
        """Count a caller that left while its inference was still arriving."""
        self._ledger.rejected[Rejection.ABANDONED] += 1

    def unreadable(self, status: int, rule: str) -> Response:
        """The answer to bytes that are no request, which break that rule of HTTP; 429: to one for
        which there is no room.
        """
        nowhere = RequestHead(method="", target="", headers={}, declared=0)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            full = Rejected(Rejection.QUEUE_FULL, rule, retry_after=RETRY_SOON)
            return self._refusals.response(nowhere, full)
        return self._refusals.response(nowhere, Rejected(Rejection.INVALID, rule, status=status))

    async def handle(
        self, request: web.BaseRequest
    ) -> web.StreamResponse | StreamedResponse | Response:
        """Answer a request whose body streams."""
        asked = RequestHead(
            method=request.method,
            target=request.raw_path,
            headers=request.headers,
            declared=request.content_length or 0,
        )
        response: Response | StreamedResponse
        try:
            if self._route(asked).generates:
                response = await self._streamed(asked, request)
            else:
                response = await self.respond(asked, request, request.remote or "")
        except GoesAlone as alone:
            try:
                return await self._forwarded(asked, request, alone)
            except (CallError, InvalidInput) as error:
                response = named(self._refusals.response(asked, error), asked.request_id)
        if isinstance(response, StreamedResponse):
            return response
        at_once = request.method == "POST" and request.version == HttpVersion11
        return response if at_once and size_of(response.parts) <= _SMALL else as_web(response)

    def answer(self, asked: RequestHead, source: bytes, caller: str, reply: Reply) -> Running:
        """Begin to answer an inference."""
        route = asked.route or self._route(asked)
        if route.generates:
            return EagerCoroutine(self._generated(asked, source, caller), reply, self._loop)
        return EagerCoroutine(self.respond(asked, source, caller), reply, self._loop)

    async def respond(self, asked: RequestHead, source: Source, caller: str = "") -> Response:
        """Answer one request, whose body comes from `source`, to the address `caller`.

        Raises nothing but `GoesAlone`. No task is needed before it has to wait.
        """
        route = asked.route or self._route(asked)
        try:
            if isinstance(route.found, Lost):
                response = self._lost(asked, route.found)
            elif self._passthrough is not None and (
                route.found.endpoint in _GOING_ALONE
                or (route.adapter is None and declines_batching(asked.headers))
            ):
                raise GoesAlone(in_turn=route.found.endpoint is Endpoint.ALONE)
            elif route.found.endpoint is Endpoint.INDEX and self._repository is not None:
                response = await self._index(self._repository, asked, source)
            elif route.adapter is None:
                works = self._batcher.closed is None and not self._lifecycle.draining
                status = self._link.status
                if route.found.endpoint in _DISCOVERED:
                    response = self._discovery.answer(route.found.endpoint, status, works=works)
                else:
                    response = info_response(
                        self._name, route.found, status, self._served, open_for_work=works
                    )
            else:
                response = await self._inferences.infer(
                    asked, route.found, route.adapter, source, caller
                )
        except GoesAlone:
            raise
        except (CallError, InvalidInput) as error:
            response = self._refusals.response(asked, error)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as bug:
            response = self._refusals.response(asked, CallError(ours("answering", bug), status=500))
        return named(response, asked.request_id)

    def _route(self, asked: RequestHead) -> Route:
        """The route of a request, found once for all that have the same head."""
        found: Found | Lost = self._routes.find(asked.method, asked.path)
        if (rule := refused_locally(asked.headers, self._local_to)) is not None:
            found = Lost(403, rule)
        elif (rule := unmet_expectation(asked.headers)) is not None:
            found = Lost(417, rule)
        adapter = self._adapter(asked, found)
        plain = asked.header_length is None and not asked.packed
        own = plain and self._upstream is None
        at_once = adapter if own and isinstance(adapter, V2Adapter) else None
        generates = isinstance(found, Found) and found.endpoint is Endpoint.GENERATES
        asked.route = Route(found, adapter, at_once, generates and self._generation is not None)
        return asked.route

    def _adapter(self, asked: RequestHead, found: Found | Lost) -> Adapter | None:
        if isinstance(found, Lost):
            return None
        if self._upstream is None:
            return self._adapters.get(found.endpoint)
        if found.endpoint is not self._upstream.endpoint:
            return None
        return self._upstream.adapter(asked.path, asked.query, asked.headers)

    async def _forwarded(
        self, asked: RequestHead, request: web.BaseRequest, alone: GoesAlone
    ) -> web.StreamResponse:
        """The upstream server's own answer; raises `CallError` or `InvalidInput`."""
        assert self._passthrough is not None, "there is nowhere to go to: our bug"
        settings = self._batcher.settings
        share = share_of(request.remote or "", request.headers, settings.tenants)
        seconds = alone.seconds
        with self._bodies.hold(share) as held:
            body = alone.body
            if body is not None:
                held.regain(len(body))
            else:
                seconds = limit_of(options_of_headers(request.headers), settings)
                self._admission.require_open()
                self._passthrough.refuse_full(share)
                body = await self._received(asked, request, held, seconds)
            # A drain may have ended while the body was read.
            self._admission.require_open()
            sent = Sent(body, held)
            return await self._passthrough.forward(
                request, seconds, share, sent, in_turn=alone.in_turn
            )

    async def _received(
        self, asked: RequestHead, request: web.BaseRequest, held: Hold, seconds: float
    ) -> Buffer | None:
        """The body of a request that goes on whole; None where it has none. Raises `Rejected`."""
        if not request.body_exists:
            return None
        self._bodies.refuse_declared(asked.declared, held.share)
        if request.content.is_eof():
            answer_expectation(request)  # of others the reader sees to it
        try:
            body = await self._bodies.read(asked, request, held, seconds)
        except asyncio.CancelledError:
            self.left_early()
            raise
        if not isinstance(body, SharedMemory):
            return body
        try:
            return body.view()
        finally:
            body.close()

    async def _generated(self, asked: RequestHead, body: bytes, caller: str) -> Answer:
        """The answer to a request for generated text that came whole."""
        assert self._generation is not None, "nothing is generated here: our bug"
        held = self._bodies.hold(share_of(caller, asked.headers, self._batcher.settings.tenants))
        try:
            self._bodies.whole(body, asked, held, None)
        except CallError as error:
            return named(self._refusals.response(asked, error), asked.request_id)
        return await self._generation.answer(asked, body, held)

    async def _streamed(self, asked: RequestHead, request: web.BaseRequest) -> Answer:
        """The answer to such a request whose body streams."""
        assert self._generation is not None, "nothing is generated here: our bug"
        settings = self._batcher.settings
        share = share_of(request.remote or "", request.headers, settings.tenants)
        held = self._bodies.hold(share)
        try:
            self._generation.refuse_full(share)
            body = await self._received(asked, request, held, settings.request_timeout_seconds)
        except (CallError, InvalidInput) as error:
            held.release()
            return named(self._refusals.response(asked, error), asked.request_id)
        except BaseException:
            held.release()
            raise
        return await self._generation.answer(asked, body or b"", held)

    def _lost(self, asked: RequestHead, lost: Lost) -> Response:
        error = CallError(lost.message, status=lost.status)
        if asked.method == "POST":
            error = Rejected(Rejection.INVALID, lost.message, status=lost.status)
        response = self._refusals.response(asked, error)
        return response if lost.allow is None else response.with_header("Allow", lost.allow)

    async def _index(self, repository: Repository, asked: RequestHead, source: Source) -> Response:
        """The model server's list of versions; raises `CallError`. Not counted as a call."""
        if asked.declared > MAX_ORDER_BYTES:
            raise CallError(f"the body is larger than {MAX_ORDER_BYTES} bytes", status=413)
        with self._bodies.hold(NOBODY) as held:
            seconds = self._batcher.settings.request_timeout_seconds
            body = await self._bodies.read(asked, source, held, seconds)
            answer = await repository.index(body if isinstance(body, bytes) else b"")
        return Response([answer.body], status=answer.status)
