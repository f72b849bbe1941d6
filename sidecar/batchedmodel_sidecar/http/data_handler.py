"""The data port: each request to who answers it, whichever protocol it is of.

The router says what a head means; an inference, a generated text,
what is passed on to an upstream server, and what is said of the model are answered elsewhere.
"""

import asyncio
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataHandler:
    """Answers the requests for one model."""

    router: Router
    admission: Admission
    bodies: BodyReader
    refusals: Refusals
    inferences: InferenceHandler
    texts: TextHandler | None
    passthrough: Passthrough | None
    """Of a server of one's own."""
    discovery: Discovery
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def closing(self) -> bool:
        """Whether connections should end behind their answers."""
        return self.admission.closing

    @property
    def refusing(self) -> bool:
        """Whether a call that comes now is refused."""
        return self.admission.refusing

    def is_call(self, head: RequestHead) -> bool:
        """Whether `answer` will answer with an inference or a text, or say why not."""
        route = head.route or self.router.route(head)
        return route.protocol is not None or route.generates

    def left_early(self) -> None:
        """Count a caller that left while its call was still arriving."""
        self.refusals.abandoned()

    def unreadable(self, status: int, rule: str) -> Response:
        """The answer to bytes that are no request, or to one for which there is no room (429)."""
        return self.refusals.unreadable(status, rule)

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
                return named(self.refusals.response(head, error), head.request_id)

    def answer(self, head: RequestHead, source: bytes, caller: str, reply: Reply) -> Running:
        """Begin to answer an inference, or a request for text."""
        return EagerCoroutine(self.respond(head, source, caller), reply, self.loop)

    async def respond(self, head: RequestHead, source: Source, caller: str = "") -> Answer:
        """Answer one request, whose body comes from `source`, to the address `caller`.

        Raises nothing but `GoesAlone`. No task is needed before it has to wait.
        """
        route = head.route or self.router.route(head)
        match = route.match
        response: Response
        try:
            if route.generates:
                return await self._generated(head, source, caller)
            if isinstance(match, NoRoute):
                response = self.refusals.lost(head, match)
            elif self.passthrough is not None and (
                match.endpoint in _GOING_ALONE
                or (route.protocol is None and self.admission.declines_batching(head))
            ):
                raise GoesAlone(in_turn=match.endpoint is Endpoint.ALONE)
            elif route.protocol is not None:
                response = await self.inferences.infer(head, route, source, caller)
            elif match.endpoint is Endpoint.INDEX:
                response = await self._index(head, source)
            else:
                admission = self.admission
                response = self.discovery.answer(match, admission.status, works=admission.works)
        except GoesAlone:
            raise
        except (CallError, InvalidInput) as error:
            response = self.refusals.response(head, error)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as bug:
            response = self.refusals.response(head, CallError(ours("answering", bug), status=500))
        return response if head.request_id is None else named(response, head.request_id)

    async def _generated(self, head: RequestHead, source: Source, caller: str) -> Answer:
        """The answer to a request for generated text; raises `CallError` or `InvalidInput`."""
        assert self.texts is not None, "nothing is generated here: our bug"
        hold = self.bodies.hold(self.admission.share(caller, head.headers))
        try:
            if not isinstance(source, bytes):
                self.texts.refuse_full(hold.share)
            seconds = self.admission.timeout_seconds
            body = await self._received(head, source, hold, seconds)
        except BaseException:
            hold.release()
            raise
        return await self.texts.answer(head, body or b"", hold)

    async def _forwarded(
        self, head: RequestHead, request: web.BaseRequest, alone: GoesAlone
    ) -> StreamedResponse:
        """The upstream server's own answer; raises `CallError` or `InvalidInput`."""
        assert self.passthrough is not None, "there is nowhere to go to: our bug"
        hold = self.bodies.hold(self.admission.share(request.remote or "", request.headers))
        seconds, body = alone.seconds, alone.body
        try:
            if body is not None:
                hold.regain(len(body))
            else:
                seconds = self.admission.limit(head)
                self.admission.require_open()
                self.passthrough.refuse_full(hold.share)
                body = await self._received(head, request, hold, seconds)
            # A drain may have ended while the body was read.
            self.admission.require_open()
            return await self.passthrough.forward(
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
            return await self.bodies.read_whole(head, source, hold, seconds)
        except asyncio.CancelledError:
            self.left_early()
            raise

    async def _index(self, head: RequestHead, source: Source) -> Response:
        """The model server's list of versions; raises `CallError`. Not counted as a call."""
        self.discovery.refuse_large_order(head.declared)
        with self.bodies.hold() as hold:
            body = await self.bodies.read(head, source, hold, self.admission.timeout_seconds)
            return await self.discovery.index(body if isinstance(body, bytes) else b"")
