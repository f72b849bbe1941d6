"""The data port: admission, reading, parsing, submitting, answering, for every public protocol.

Nothing of HTTP goes further in. A refusal comes as early as it can be known: for the lifecycle and
the queue before the body is read, for the body's size before it is parsed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_contract.manifest.tenants import NOBODY, Share, address_group, share_of
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.response import LARGE, Response, size_of
from batchedmodel_sidecar.backends.base import Link
from batchedmodel_sidecar.backends.foreign.catalogue import Foreign
from batchedmodel_sidecar.backends.native.repository import MOST_BYTES, Repository
from batchedmodel_sidecar.backends.native.version_lease import VersionLease
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.batching.rejections import invalid
from batchedmodel_sidecar.body.buffers import json_bytes
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.body.encodings import Encoding, wants_gzip
from batchedmodel_sidecar.codec.codec import Codec
from batchedmodel_sidecar.codec.process.shared_memory import SharedMemory
from batchedmodel_sidecar.errors import RETRY_SOON, CallError, Rejected, TooLate
from batchedmodel_sidecar.http.body_reader import BodyReader, Received, Source
from batchedmodel_sidecar.http.passthrough import GoesAlone, Passthrough
from batchedmodel_sidecar.http.responses import (
    as_web,
    error_response,
    gzipped,
    info_response,
    model_response,
    other_version,
)
from batchedmodel_sidecar.http.routed_head import HeaderOptions, RequestHead, Route, options_of
from batchedmodel_sidecar.http.time_out import within
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Adapter, Parsed
from batchedmodel_sidecar.protocols.headers import (
    BATCH_HEADER,
    REQUEST_ID_HEADER,
    RequestOptions,
    combined,
    declines_batching,
    limit_of,
    options_of_headers,
)
from batchedmodel_sidecar.protocols.routes import Endpoint, Found, Lost, Routes
from batchedmodel_sidecar.telemetry.arrivals import RecentArrivals
from batchedmodel_sidecar.telemetry.ledger import Ledger

logger: Final = logging.getLogger(__name__)


class DataHandler:
    """Answers the requests for one model."""

    def __init__(
        self,
        name: str,
        *,
        batcher: Batcher,
        link: Link,
        lifecycle: Lifecycle,
        ledger: Ledger,
        recorder: RecentArrivals,
        bodies: BodyReader,
        codec: Codec,
        foreign: Foreign | None,
        passthrough: Passthrough | None,
        repository: Repository | None,
        clock: Callable[[], float],
    ) -> None:
        """`foreign` and `passthrough` are those of a server of one's own, `repository` of ours."""
        self._name = name
        self._batcher = batcher
        self._link = link
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._recorder = recorder
        self._bodies = bodies
        self._foreign = foreign
        self._passthrough = passthrough
        self._repository = repository
        self._clock = clock
        self._routes = Routes(name) if foreign is None else foreign.routes
        self._codec = codec
        self._adapters = codec.adapters

    @property
    def closing(self) -> bool:
        """Whether connections should end behind their answers."""
        return self._lifecycle.draining

    def is_call(self, asked: RequestHead) -> bool:
        """Whether `respond` will answer with an inference, or say why not."""
        return (asked.route or self._route(asked)).adapter is not None

    def left_early(self) -> None:
        """Count a caller that left while its inference was still arriving."""
        self._ledger.rejected[Rejection.ABANDONED] += 1

    def unreadable(self, status: int, rule: str) -> Response:
        """The answer to bytes that are no request, which breaks that rule of HTTP."""
        nowhere = RequestHead(method="", target="", headers={}, declared=0)
        return self._refused(nowhere, Rejected(Rejection.INVALID, rule, status=status))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request whose body streams."""
        asked = RequestHead(
            method=request.method,
            target=request.raw_path,
            headers=request.headers,
            declared=request.content_length or 0,
        )
        try:
            response = await self.respond(asked, request, request.remote or "")
        except GoesAlone as alone:
            try:
                return await self._forwarded(request, alone)
            except (CallError, InvalidInput) as error:
                response = self._named(asked, self._refused(asked, error))
        return as_web(response)

    async def respond(self, asked: RequestHead, source: Source, caller: str = "") -> Response:
        """Answer one request, whose body comes from `source`, to the address `caller`.

        Raises nothing but `GoesAlone`. No task is needed before it has to wait.
        """
        route = asked.route or self._route(asked)
        try:
            if isinstance(route.found, Lost):
                response = self._lost(asked, route.found)
            elif self._passthrough is not None and (
                route.found.endpoint is Endpoint.PASSED_ON or declines_batching(asked.headers)
            ):
                raise GoesAlone
            elif route.found.endpoint is Endpoint.INDEX and self._repository is not None:
                response = await self._index(self._repository, asked, source)
            elif route.adapter is None:
                works = self._batcher.closed is None and not self._lifecycle.draining
                status = self._link.status
                response = info_response(self._name, route.found, status, open_for_work=works)
            else:
                response = await self._infer(asked, route.found, route.adapter, source, caller)
        except GoesAlone:
            raise
        except (CallError, InvalidInput) as error:
            response = self._refused(asked, error)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as bug:
            response = self._refused(asked, CallError(_ours("answering", bug), status=500))
        return self._named(asked, response)

    def _route(self, asked: RequestHead) -> Route:
        """The route of a request, found once for all that have the same head."""
        found = self._routes.find(asked.method, asked.path)
        asked.route = Route(found, self._adapter(asked, found))
        return asked.route

    def _adapter(self, asked: RequestHead, found: Found | Lost) -> Adapter | None:
        if isinstance(found, Lost):
            return None
        if self._foreign is None:
            return self._adapters.get(found.endpoint)
        if found.endpoint is not self._foreign.endpoint:
            return None
        return self._foreign.adapter(asked.path, asked.query, asked.headers)

    def _named(self, asked: RequestHead, response: Response) -> Response:
        """The response with the name that its caller gave the request."""
        if asked.request_id is None:
            return response
        return response.with_header(REQUEST_ID_HEADER, asked.request_id)

    def _refused(self, asked: RequestHead, error: CallError | InvalidInput) -> Response:
        if isinstance(error, InvalidInput):
            error = invalid(error)
        if isinstance(error, Rejected):
            self._ledger.rejected[error.reason] += 1
            # Not in the words that its caller reads, which may quote the body.
            logger.debug("refused: %s, %d", error.reason, error.status)
        adapter = asked.route.adapter if asked.route else None
        if adapter is None:
            # The path is no protocol's own: the error has the form that such callers expect.
            path = asked.path
            family = Endpoint.V1_PREDICT if path.endswith(":predict") else Endpoint.EMBEDDINGS
            adapter = self._adapters[family if path.startswith("/v1/") else Endpoint.V2_INFER]
        return error_response(error, adapter.error(error))

    async def _infer(
        self, asked: RequestHead, found: Found, adapter: Adapter, source: Source, caller: str
    ) -> Response:
        arrived = self._clock()
        share = share_of(caller, asked.headers, self._batcher.settings.tenants)
        with self._bodies.hold(share) as held, VersionLease() as need:
            try:
                understood = await self._understood(
                    asked, found, adapter, held, need, arrived, source
                )
            except Rejected as refused:
                self._recorder.refused_unread(refused.reason, self._clock())
                raise
            parsed, model, options = understood
            answer = await self._batcher.submit(parsed.call, arrived, options, share)
            self._bodies.hold_answer(answer.size, held)
            try:
                body = await self._codec.render(adapter, parsed, answer, model, share)
            except InvalidInput as error:
                # The model's answer has no form in which the caller asked for it.
                raise CallError(str(error), status=400, field=error.mistake.field) from error
        timing = answer.timing if options.timing else None
        response = model_response(body, timing)
        accepted = asked.header_options.accepted if asked.header_options else None
        if accepted is not None and wants_gzip(accepted, size_of(response.parts)):
            response = await gzipped(response, self._bodies.compression, share)
        return self._bodies.unread.admitted(response, address_group(caller))

    async def _understood(
        self,
        asked: RequestHead,
        found: Found,
        adapter: Adapter,
        held: Hold,
        need: VersionLease,
        arrived: float,
        source: Source,
    ) -> tuple[Parsed, ReadyModel, RequestOptions]:
        """All that comes before the batcher decides.

        Who leaves or fails here is counted as rejected.
        """
        body: Received = b""
        limit = 0.0
        head = asked.header_length if found.endpoint is Endpoint.V2_INFER else None
        try:
            # Versions of a foreign server are its own business, and a part of the key.
            version = found.version if self._foreign is None else None
            declared = None if isinstance(source, bytes) else asked.declared
            model = self._admit(declared, head, version, held.share)
            header_options = asked.header_options or self._header_options(asked)
            options = header_options.options
            limit = limit_of(options, self._batcher.settings)
            if isinstance(source, bytes):
                body = self._bodies.whole(source, asked, held, head)
            else:
                body = await self._bodies.read(asked, source, held, limit, head)
                # The model may have been restarted while the body arrived.
                model = self._open_for_work()
                if other := other_version(version, model):
                    raise other
            # This version answers from now on, even if another takes its place meanwhile.
            need.turn_to(model.users)
            parsed, waited = await within(
                limit - (self._clock() - arrived),
                self._parsed(adapter, body, header_options.encoding, held, head, model),
            )
            if waited:
                self._open_for_work()
        except asyncio.CancelledError:
            # Nothing was promised, but the ledger counts everyone who came.
            self._ledger.rejected[Rejection.ABANDONED] += 1
            raise
        except InvalidInput as error:
            if isinstance(error, Unbatchable) and self._passthrough is not None:
                sent = body.view() if isinstance(body, SharedMemory) else body
                raise GoesAlone(sent, limit, held.share) from error
            raise invalid(error) from error
        except TimeoutError as error:
            raise TooLate(limit) from error
        except (Rejected, GeneratorExit):
            raise
        except BaseException as bug:
            raise Rejected(Rejection.INVALID, _ours("reading", bug), status=500) from bug
        finally:
            if isinstance(body, SharedMemory):
                body.close()
        return parsed, model, combined(options, parsed.options)

    async def _parsed(
        self,
        adapter: Adapter,
        body: Received,
        encoding: Encoding | None,
        held: Hold,
        head: str | None,
        model: ReadyModel,
    ) -> Parsed:
        plain = body
        if encoding is not None:
            plain = await self._bodies.decoded(body, encoding, held, head)
        try:
            parsed = await self._codec.parse(adapter, plain, head, model, held.share)
            self._bodies.settled(plain, parsed.call, held)
        finally:
            if plain is not body and isinstance(plain, SharedMemory):
                plain.close()
        return parsed

    def _header_options(self, asked: RequestHead) -> HeaderOptions:
        """What the headers ask for, read once for all requests that have the same head.

        Raises `InvalidInput`, and `Rejected` for an encoding that is not known.
        """
        if self._passthrough is None and declines_batching(asked.headers):
            raise InvalidInput(BATCH_HEADER, "is taken only in front of a foreign server", "off")
        asked.header_options = options_of(asked.headers, traced=logger.isEnabledFor(logging.DEBUG))
        return asked.header_options

    def _open_for_work(self) -> ReadyModel:
        """The model, if calls are taken and it is there; raises `Rejected`."""
        self._require_open()
        model = self._batcher.model
        if model is None:
            reason = self._link.status.reason
            raise Rejected(Rejection.NOT_READY, reason, retry_after=RETRY_SOON)
        if self._batcher.closed is not None:
            raise Rejected(Rejection.NOT_READY, self._batcher.closed, retry_after=RETRY_SOON)
        return model

    def _require_open(self) -> None:
        if self._lifecycle.refusing:
            message = "this pod is stopping; another one will answer"
            raise Rejected(Rejection.DRAINING, message, retry_after=RETRY_SOON)

    def _admit(
        self, declared: int | None, head: str | None, version: str | None, by: Share
    ) -> ReadyModel:
        """The model, if nothing forbids to read the body; raises `Rejected`.

        `declared` is the body's size; None for a small one that is here.
        """
        model = self._open_for_work()
        if version is not None and (other := other_version(version, model)):
            raise other
        if declared is not None:
            self._bodies.refuse_declared(declared, by)
            if json_bytes(declared, head) > LARGE:
                self._codec.refuse_large(by)
        refusal = self._batcher.refusal(by)
        if refusal is not None:
            raise refusal
        return model

    async def _forwarded(self, request: web.BaseRequest, alone: GoesAlone) -> web.StreamResponse:
        """The foreign server's own answer; raises `CallError` or `InvalidInput`."""
        assert self._passthrough is not None, "there is nowhere to go to: our bug"
        # A drain may have ended while the body was read.
        self._require_open()
        settings = self._batcher.settings
        share = share_of(request.remote or "", request.headers, settings.tenants)
        if alone.body is not None:
            with self._bodies.hold(alone.share) as held:
                held.regain(len(alone.body))
                return await self._passthrough.forward(request, alone.seconds, share, alone.body)
        limit = limit_of(options_of_headers(request.headers), settings)
        return await self._passthrough.forward(request, limit, share)

    def _lost(self, asked: RequestHead, lost: Lost) -> Response:
        error = CallError(lost.message, status=lost.status)
        if asked.method == "POST":
            error = Rejected(Rejection.INVALID, lost.message, status=lost.status)
        response = self._refused(asked, error)
        return response if lost.allow is None else response.with_header("Allow", lost.allow)

    async def _index(self, repository: Repository, asked: RequestHead, source: Source) -> Response:
        """The model server's list of versions; raises `CallError`. Not counted as a call."""
        if asked.declared > MOST_BYTES:
            raise CallError(f"the body is larger than {MOST_BYTES} bytes", status=413)
        with self._bodies.hold(NOBODY) as held:
            seconds = self._batcher.settings.request_timeout_seconds
            body = await self._bodies.read(asked, source, held, seconds)
            answer = await repository.index(body if isinstance(body, bytes) else b"")
        return Response([answer.body], status=answer.status)


def _ours(doing: str, bug: BaseException) -> str:
    """What a caller is told of an error of ours; the log has all of it."""
    logger.error("error while %s a call", doing, exc_info=bug)
    return f"error in the sidecar while {doing} this call: {type(bug).__name__}"
