"""Inferences from their heads to their answers: admission, body, call, batch, answer, body.

Nothing of HTTP goes further in. One coroutine takes the same steps for every kind of request. It
waits where it must: for its batch, and for what streams, is large or is compressed. A small request
whose body has a known form waits for nothing but its batch.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_http.response import Response, size_of
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.batching.pending_request import invalid, of_now
from batchedmodel_sidecar.codec.codec import Codec
from batchedmodel_sidecar.errors import CallError, Rejected, TooLate
from batchedmodel_sidecar.http.admission import Admission, share_of_call
from batchedmodel_sidecar.http.body_reader import SMALL, BodyReader, Received, Source, let_go, view
from batchedmodel_sidecar.http.passthrough import GoesAlone
from batchedmodel_sidecar.http.request import Request, RequestHead, Route
from batchedmodel_sidecar.http.responses import Refusals, timing_headers, unread_bug
from batchedmodel_sidecar.http.time_out import within
from batchedmodel_sidecar.protocols.headers import (
    BATCH_HEADER,
    NO_OPTIONS,
    combined,
    limit_of,
)
from batchedmodel_sidecar.protocols.protocol import Parsed
from batchedmodel_sidecar.telemetry.ledger import RecentArrivals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InferenceHandler:
    """Answers the inferences of one model."""

    admission: Admission
    batcher: Batcher
    recorder: RecentArrivals
    refusals: Refusals
    bodies: BodyReader
    codec: Codec
    clock: Callable[[], float]
    """In monotonic seconds."""

    async def infer(self, head: RequestHead, route: Route, source: Source, caller: str) -> Response:
        """The answer to any inference; raises `CallError`, `InvalidInput` or `GoesAlone`."""
        share, arrived = self.admission.share(caller, head.headers), self.clock()
        request = Request(head, route, arrived, self.bodies.hold(share))
        try:
            await self._read(request, source)
            parsed, hold = request.parsed, request.hold
            share = share_of_call(parsed.call, share, self.batcher.settings.tenants)
            pending = self.batcher.offer(parsed.call, arrived, request.options, share)
            pending.hold = hold
            answer = await pending
            # What the answer takes is held until it leaves.
            size = answer.size
            self.bodies.hold_answer(size, hold)
            try:
                if self.codec.renders_here(request.protocol, parsed, answer, size):
                    body = request.protocol.render(parsed, answer, request.model)
                else:
                    body = await self.codec.render(
                        request.protocol, parsed, answer, request.model, hold.share
                    )
            except InvalidInput as error:
                # The model's answer has no form in which the caller asked for it.
                raise CallError(str(error), status=400, field=error.mistake.field) from error
            headers = body.headers
            if request.options.timing and answer.timing is not None:
                headers = (*headers, *timing_headers(answer.timing))
            response = Response((body.data, *body.tail), body.content_type, headers=headers)
            options = head.header_options
            if options is not None and options.accepted and size_of(response.parts) >= SMALL:
                response = await self.bodies.compressed(response, options.accepted, hold)
        finally:
            request.release()
        return self.bodies.unread.admitted(response, caller)

    async def _read(self, request: Request, source: Source) -> None:
        """Fill in all that comes before the batcher decides; raises `Rejected` or `GoesAlone`.

        A request that leaves or fails here is counted as rejected.
        """
        head, hold, admission = request.head, request.hold, self.admission
        body: Received = b""
        limit = 0.0
        try:
            whole = isinstance(source, bytes)
            chosen = admission.admit(request, None if whole else head.declared)
            header_options = head.header_options or admission.options(head)
            request.options = header_options.options
            if isinstance(source, bytes):
                body = self.bodies.whole(source, head, hold, request.route.json_length)
            else:
                seconds, length = self._limit(request), request.route.json_length
                body = await self.bodies.read(head, source, hold, seconds, length)
                # The model may have been restarted while the body arrived.
                request.model = admission.model_of(request)
            if admission.passes_on and admission.declines_batching(head):
                raise Unbatchable(BATCH_HEADER, "is off")
            # This version answers from now on, even if another takes its place meanwhile.
            request.lease.turn_to(request.model.users)
            at_once = self._parsed_at_once(request, body)
            if at_once is not None:
                parsed = at_once
            else:
                limit = self._limit(request)
                left = limit - (self.clock() - request.arrived)
                parsed, waited = await within(left, self._parsed(request, body))
                if waited:
                    admission.open_for_work()
            if at_once is None or not whole:
                # The version of its adapter that is served now, and not when its body began.
                chosen = admission.adapter(request, parsed.named)
            request.parsed = parsed if chosen is None else parsed.for_adapter(chosen)
        except asyncio.CancelledError:
            # Nothing was promised, but the ledger counts every request that came.
            self.refusals.abandoned()
            raise
        except InvalidInput as error:
            if isinstance(error, Unbatchable) and admission.passes_on:
                seconds = self._limit(request)
                raise GoesAlone(view(body), seconds, in_turn=True) from error
            raise self._unread(invalid(error)) from error
        except TimeoutError as error:
            raise self._unread(TooLate(limit)) from error
        except Rejected as error:
            refused = of_now(error, hold.share, self.batcher)
            raise self._unread(refused) from None
        except GeneratorExit:
            raise
        except BaseException as bug:
            raise self._unread(unread_bug(bug)) from bug
        finally:
            let_go(body)
        if request.options is NO_OPTIONS:
            request.options = parsed.options
        else:
            request.options = combined(request.options, parsed.options)

    def _limit(self, request: Request) -> float:
        """Seconds from its arrival that the headers of a request leave it."""
        return limit_of(request.options, self.batcher.settings)

    def _parsed_at_once(self, request: Request, body: Received) -> Parsed | None:
        """The call in a small body of a known form; None for any other."""
        protocol = request.route.at_once
        if protocol is None or not isinstance(body, bytes):
            return None
        most_rows = partial(self.codec.most_rows, request.hold.share)
        parsed = protocol.parse_at_once(body, request.model, most_rows)
        if parsed is not None:
            self.bodies.charge_rows(body, parsed.call, request.hold)
        return parsed

    async def _parsed(self, request: Request, body: Received) -> Parsed:
        plain, hold, length = body, request.hold, request.route.json_length
        options = request.head.header_options
        if options is not None and options.encoding is not None:
            plain = await self.bodies.decoded(body, options.encoding, hold, length)
        try:
            parsed = await self.codec.parse(request.protocol, plain, length, request.model, hold)
            self.bodies.charge_rows(plain, parsed.call, hold, parsed.kept)
        finally:
            if plain is not body:
                let_go(plain)
        return parsed

    def _unread(self, refused: Rejected) -> Rejected:
        """Note a request that was refused before it was understood."""
        self.recorder.refused_unread(refused.reason, refused.rows, self.clock())
        return refused
