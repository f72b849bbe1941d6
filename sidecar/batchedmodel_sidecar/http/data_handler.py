"""The data port: each request to who answers it, whichever protocol it is of.

The router says what a head means; an inference, a generated text,
what is passed on to an upstream server, and what is said of the model are answered elsewhere.
"""

import asyncio
from typing import Final

from aiohttp import web

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_http.connection import Running
from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.response import Answer, Reply, Response, StreamedResponse
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.discovery.discovery import Discovery
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.http.admission import Admission
from batchedmodel_sidecar.http.body_reader import BodyReader, Source
from batchedmodel_sidecar.http.inference import InferenceHandler
from batchedmodel_sidecar.http.passthrough import GoesAlone, Passthrough
from batchedmodel_sidecar.http.request import RequestHead, Router, TextHandler
from batchedmodel_sidecar.http.responses import Refusals, named, ours
from batchedmodel_sidecar.protocols.routes import Endpoint, NoRoute

_GOING_ALONE: Final = (Endpoint.PASSED_ON, Endpoint.ALONE)


class DataHandler:
    """Answers the requests for one model."""

    def __init__(
        self,
        *,
        router: Router,
        admission: Admission,
        bodies: BodyReader,
        refusals: Refusals,
        inferences: InferenceHandler,
        texts: TextHandler | None,
        passthrough: Passthrough | None,
        discovery: Discovery,
    ) -> None:
        """`passthrough` is of a server of one's own. Needs a running loop."""
        self._router = router
        self._admission = admission
        self._bodies = bodies
        self._refusals = refusals
        self._inferences = inferences
        self._texts = texts
        self._passthrough = passthrough
        self._discovery = discovery
        self._loop = asyncio.get_running_loop()

    @property
    def closing(self) -> bool:
        """Whether connections should end behind their answers."""
        return self._admission.closing

    @property
    def refusing(self) -> bool:
        """Whether a call that comes now is refused."""
        return self._admission.refusing

    def is_call(self, head: RequestHead) -> bool:
        """Whether `answer` will answer with an inference or a text, or say why not."""
        route = head.route or self._router.route(head)
        return route.protocol is not None or route.generates

    def left_early(self) -> None:
        """Count a caller that left while its call was still arriving."""
        self._refusals.abandoned()

    def unreadable(self, status: int, rule: str) -> Response:
        """The answer to bytes that are no request, or to one for which there is no room (429)."""
        return self._refusals.unreadable(status, rule)

    async def handle(self, request: web.BaseRequest) -> Answer:
        """Answer a request whose body streams."""
        head = RequestHead(
            method=request.method,
            target=request.raw_path,
            headers=request.headers,
            declared=request.content_length or 0,
        )
        try:
            return await self.respond(head, request, request.remote or "")
        except GoesAlone as alone:
            try:
                return await self._forwarded(head, request, alone)
            except (CallError, InvalidInput) as error:
                return named(self._refusals.response(head, error), head.request_id)

    def answer(self, head: RequestHead, source: bytes, caller: str, reply: Reply) -> Running:
        """Begin to answer an inference, or a request for text."""
        return EagerCoroutine(self.respond(head, source, caller), reply, self._loop)

    async def respond(self, head: RequestHead, source: Source, caller: str = "") -> Answer:
        """Answer one request, whose body comes from `source`, to the address `caller`.

        Raises nothing but `GoesAlone`. No task is needed before it has to wait.
        """
        route = head.route or self._router.route(head)
        match = route.match
        response: Response
        try:
            if route.generates:
                return await self._generated(head, source, caller)
            if isinstance(match, NoRoute):
                response = self._refusals.lost(head, match)
            elif self._passthrough is not None and (
                match.endpoint in _GOING_ALONE
                or (route.protocol is None and self._admission.declines_batching(head))
            ):
                raise GoesAlone(in_turn=match.endpoint is Endpoint.ALONE)
            elif route.protocol is not None:
                response = await self._inferences.infer(head, route, source, caller)
            elif match.endpoint is Endpoint.INDEX:
                response = await self._index(head, source)
            else:
                admission = self._admission
                response = self._discovery.answer(match, admission.status, works=admission.works)
        except GoesAlone:
            raise
        except (CallError, InvalidInput) as error:
            response = self._refusals.response(head, error)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as bug:
            response = self._refusals.response(head, CallError(ours("answering", bug), status=500))
        return response if head.request_id is None else named(response, head.request_id)

    async def _generated(self, head: RequestHead, source: Source, caller: str) -> Answer:
        """The answer to a request for generated text; raises `CallError` or `InvalidInput`."""
        assert self._texts is not None, "nothing is generated here: our bug"
        hold = self._bodies.hold(self._admission.share(caller, head.headers))
        try:
            if not isinstance(source, bytes):
                self._texts.refuse_full(hold.share)
            seconds = self._admission.timeout_seconds
            body = await self._received(head, source, hold, seconds)
        except BaseException:
            hold.release()
            raise
        return await self._texts.answer(head, body or b"", hold)

    async def _forwarded(
        self, head: RequestHead, request: web.BaseRequest, alone: GoesAlone
    ) -> StreamedResponse:
        """The upstream server's own answer; raises `CallError` or `InvalidInput`."""
        assert self._passthrough is not None, "there is nowhere to go to: our bug"
        hold = self._bodies.hold(self._admission.share(request.remote or "", request.headers))
        seconds, body = alone.seconds, alone.body
        try:
            if body is not None:
                hold.regain(len(body))
            else:
                seconds = self._admission.limit(head)
                self._admission.require_open()
                self._passthrough.refuse_full(hold.share)
                body = await self._received(head, request, hold, seconds)
            # A drain may have ended while the body was read.
            self._admission.require_open()
            return await self._passthrough.forward(
                request, body, hold, seconds, in_turn=alone.in_turn
            )
        except BaseException:
            hold.release()
            raise

    async def _received(
        self, head: RequestHead, source: Source, hold: Hold, seconds: float
    ) -> Buffer | None:
        """The body of a request that goes on as it is; None where it has none."""
        try:
            return await self._bodies.read_whole(head, source, hold, seconds)
        except asyncio.CancelledError:
            self.left_early()
            raise

    async def _index(self, head: RequestHead, source: Source) -> Response:
        """The model server's list of versions; raises `CallError`. Not counted as a call."""
        self._discovery.refuse_large_order(head.declared)
        with self._bodies.hold() as hold:
            body = await self._bodies.read(head, source, hold, self._admission.timeout_seconds)
            return await self._discovery.index(body if isinstance(body, bytes) else b"")
