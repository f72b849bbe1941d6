"""Inferences from their heads to their answers: admission, body, call, batch, answer.

Nothing of HTTP goes further in. A refusal comes as early as it can be known: for the lifecycle and
the queue before the body is read, for the body's size before it is parsed.

A small call whose body has a known form waits for nothing but its batch: `Exchange` is such a
call, and no coroutine runs for it. All others are coroutines of the same steps.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_contract.manifest.tenants import Share, share_of
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.interfaces import Reply, unheard
from batchedmodel_http.response import LARGE, Response, size_of
from batchedmodel_sidecar.adapters.naming import AdapterNames, share_of_call
from batchedmodel_sidecar.answers import Answer
from batchedmodel_sidecar.backends.base import Link
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.batching.pending_request import PendingRequest
from batchedmodel_sidecar.batching.rejections import invalid, most_ever
from batchedmodel_sidecar.batching.submit import submit
from batchedmodel_sidecar.body.buffers import json_bytes
from batchedmodel_sidecar.body.encodings import Encoding, wants_gzip
from batchedmodel_sidecar.codec.codec import Codec
from batchedmodel_sidecar.errors import RETRY_SOON, CallError, Rejected, TooLate, too_many
from batchedmodel_sidecar.helper.shared_memory import SharedMemory
from batchedmodel_sidecar.http.body_reader import BodyReader, Received, Source
from batchedmodel_sidecar.http.exchange import Exchange
from batchedmodel_sidecar.http.passthrough import GoesAlone
from batchedmodel_sidecar.http.refusals import Refusals, ours
from batchedmodel_sidecar.http.responses import gzipped, model_response, other_version
from batchedmodel_sidecar.http.routed_head import HeaderOptions, RequestHead, options_of
from batchedmodel_sidecar.http.time_out import within
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Adapter, Body, Parsed
from batchedmodel_sidecar.protocols.headers import (
    BATCH_HEADER,
    NO_OPTIONS,
    RequestOptions,
    combined,
    declines_batching,
    limit_of,
)
from batchedmodel_sidecar.protocols.routes import Endpoint, Found
from batchedmodel_sidecar.protocols.v2 import V2Adapter
from batchedmodel_sidecar.telemetry.arrivals import RecentArrivals
from batchedmodel_sidecar.telemetry.ledger import Ledger

logger: Final = logging.getLogger(__name__)


class InferenceHandler:
    """Answers the inferences of one model."""

    def __init__(
        self,
        *,
        batcher: Batcher,
        link: Link,
        lifecycle: Lifecycle,
        ledger: Ledger,
        recorder: RecentArrivals,
        bodies: BodyReader,
        codec: Codec,
        is_foreign: bool,
        passes_on: bool,
        clock: Callable[[], float],
        refusals: Refusals,
        adapters: AdapterNames,
    ) -> None:
        """`is_foreign`: the server is one of one's own. `passes_on`: it also gets single calls."""
        self._batcher = batcher
        self._link = link
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._recorder = recorder
        self._bodies = bodies
        self._codec = codec
        self._is_foreign = is_foreign
        self._passes_on = passes_on
        self._clock = clock
        self._refusals = refusals
        self._adapters = adapters

    def begin(
        self,
        asked: RequestHead,
        found: Found,
        adapter: V2Adapter,
        body: bytes,
        caller: str,
        reply: Reply,
    ) -> Exchange | None:
        """Begin to answer a small call, if that needs to wait for nothing but its batch.

        None for any other, of which nothing has come so far.
        """
        arrived = self._clock()
        share = share_of(caller, asked.headers, self._batcher.settings.tenants)
        exchange = Exchange(self, asked, adapter, caller, self._bodies.hold(share), reply)
        try:
            options = self._read_at_once(exchange, adapter, found, body)
            if options is None:
                exchange.release()
                return None
            call = exchange.parsed.call
            share = share_of_call(call, share, self._batcher.settings.tenants)
            told, keep = exchange.settled, exchange.held.keep
            exchange.accepted(self._batcher.offer(call, arrived, options, share, told, keep))
        except CallError as error:
            exchange.settled(error)
        except BaseException as bug:
            exchange.settled(CallError(ours("reading", bug), status=500))
        return exchange

    def _read_at_once(
        self, exchange: Exchange, adapter: V2Adapter, found: Found, body: bytes
    ) -> RequestOptions | None:
        """As `_understood`, without waiting; None where that cannot be."""
        asked, held = exchange.asked, exchange.held
        try:
            model = exchange.model = self._admit(asked, found, None, held.share)
            header_options = asked.header_options or self._header_options(asked)
            self._bodies.whole(body, asked, held, None)
            parsed = adapter.parse_at_once(body, model, partial(self._codec.most_rows, held.share))
            if parsed is None:
                return None
            self._bodies.settled(body, parsed.call, held)
            exchange.parsed = self._adapters.applied(asked.headers, found.adapter, parsed)
            exchange.lease.turn_to(model.users)
            options = header_options.options
            exchange.timed = options.timing
            return parsed.options if options is NO_OPTIONS else combined(options, parsed.options)
        except InvalidInput as error:
            raise self._unread(invalid(error)) from error
        except Rejected as error:
            raise self._unread(self._of_now(error, held.share)) from None
        except BaseException as bug:
            told = ours("reading", bug)
            raise self._unread(Rejected(Rejection.INVALID, told, status=500)) from bug

    def _of_now(self, refused: Rejected, share: Share) -> Rejected:
        """What a call is told whose rows were only counted: there may be room for so many later."""
        if refused.reason is not Rejection.TOO_LARGE or refused.rows == 1:
            return refused
        ever = most_ever(self._batcher.settings)
        if refused.rows > ever:
            return too_many(refused.rows, ever)
        # Where there is room after all, it has come while the helper read.
        return self._batcher.refusal(share, refused.rows) or Rejected(
            Rejection.QUEUE_FULL, refused.message, retry_after=RETRY_SOON, rows=refused.rows
        )

    def _unread(self, refused: Rejected) -> Rejected:
        """Note a call that was refused before it was understood."""
        self._recorder.refused_unread(refused.reason, refused.rows, self._clock())
        return refused

    def withdraw(self, pending: PendingRequest) -> None:
        """The caller of an accepted call has left."""
        self._batcher.withdraw(pending)

    def settled(self, exchange: Exchange, result: Answer | CallError) -> None:
        """Answer a call that the batcher is done with; raises nothing."""
        try:
            if not isinstance(result, Answer):
                response = self._refusals.response(exchange.asked, result)
            elif self._codec.renders_here(exchange.adapter, exchange.parsed, result):
                self._bodies.hold_answer(result.size, exchange.held)
                body = exchange.adapter.render(exchange.parsed, result, exchange.model)
                response = self._response(exchange, body, result)
                if self._compresses(exchange, response):
                    exchange.goes_on(self._sent(exchange, response))
                    return
                response = self._bodies.unread.admitted(response, exchange.caller)
            else:
                exchange.goes_on(self._answer(exchange, result))
                return
        except InvalidInput as error:
            self.finished(exchange, None, _inexpressible(error))
        except BaseException as error:
            self.finished(exchange, None, error)
        else:
            exchange.end(response)

    def finished(
        self, exchange: Exchange, response: Response | None, error: BaseException | None
    ) -> None:
        """An answer is made, or could not be made."""
        if response is None:
            response = self._failed(exchange.asked, error)
        exchange.end(response)

    def _failed(self, asked: RequestHead, error: BaseException | None) -> Response:
        if isinstance(error, (CallError, InvalidInput)):
            return self._refusals.response(asked, error)
        told = RuntimeError("no answer") if error is None else error
        return self._refusals.response(asked, CallError(ours("answering", told), status=500))

    async def infer(
        self, asked: RequestHead, found: Found, adapter: Adapter, source: Source, caller: str
    ) -> Response:
        """The answer to any inference; raises `CallError`, `InvalidInput` or `GoesAlone`."""
        arrived = self._clock()
        share = share_of(caller, asked.headers, self._batcher.settings.tenants)
        hold = self._bodies.hold(share)
        with Exchange(self, asked, adapter, caller, hold, unheard) as exchange:
            try:
                options = await self._understood(exchange, found, arrived, source)
            except Rejected as refused:
                raise self._unread(self._of_now(refused, share)) from None
            call = exchange.parsed.call
            share = share_of_call(call, share, self._batcher.settings.tenants)
            answer = await submit(self._batcher, call, arrived, options, share, hold.keep)
            return await self._answer(exchange, answer)

    async def _answer(self, exchange: Exchange, answer: Answer) -> Response:
        """What the caller gets; raises `CallError` or `InvalidInput`."""
        held = exchange.held
        self._bodies.hold_answer(answer.size, held)
        try:
            body = await self._codec.render(
                exchange.adapter, exchange.parsed, answer, exchange.model, held.share
            )
        except InvalidInput as error:
            raise _inexpressible(error) from error
        return await self._sent(exchange, self._response(exchange, body, answer))

    async def _sent(self, exchange: Exchange, response: Response) -> Response:
        """The response as it leaves: compressed, if its caller wants that of a large one.

        While it waits for that it is held. What does not fit leaves as it is.
        """
        held = exchange.held
        if self._compresses(exchange, response) and held.grow(size_of(response.parts)):
            response = await gzipped(response, self._bodies.compression, held.share)
        exchange.release()
        return self._bodies.unread.admitted(response, exchange.caller)

    def _compresses(self, exchange: Exchange, response: Response) -> bool:
        options = exchange.asked.header_options
        accepted = None if options is None else options.accepted
        return accepted is not None and wants_gzip(accepted, size_of(response.parts))

    def _response(self, exchange: Exchange, body: Body, answer: Answer) -> Response:
        return model_response(body, answer.timing if exchange.timed else None)

    async def _understood(
        self, exchange: Exchange, found: Found, arrived: float, source: Source
    ) -> RequestOptions:
        """All that comes before the batcher decides; what was agreed in headers and body.

        Who leaves or fails here is counted as rejected.
        """
        asked, held = exchange.asked, exchange.held
        body: Received = b""
        limit = 0.0
        head = _head_length(asked, found)
        try:
            declared = None if isinstance(source, bytes) else asked.declared
            exchange.model = self._admit(asked, found, declared, held.share)
            header_options = asked.header_options or self._header_options(asked)
            options = header_options.options
            limit = limit_of(options, self._batcher.settings)
            if isinstance(source, bytes):
                body = self._bodies.whole(source, asked, held, head)
            else:
                body = await self._bodies.read(asked, source, held, limit, head)
                # The model may have been restarted while the body arrived.
                exchange.model = self.open_for_work()
                self._require_version(found, exchange.model)
            if self._passes_on and declines_batching(asked.headers):
                raise Unbatchable(BATCH_HEADER, "is off")
            # This version answers from now on, even if another takes its place meanwhile.
            exchange.lease.turn_to(exchange.model.users)
            exchange.parsed, waited = await within(
                limit - (self._clock() - arrived),
                self._parsed(exchange, body, header_options.encoding, head, exchange.model),
            )
            if waited:
                self.open_for_work()
            exchange.parsed = self._adapters.applied(asked.headers, found.adapter, exchange.parsed)
        except asyncio.CancelledError:
            # Nothing was promised, but the ledger counts everyone who came.
            self._ledger.rejected[Rejection.ABANDONED] += 1
            raise
        except InvalidInput as error:
            if isinstance(error, Unbatchable) and self._passes_on:
                sent = body.view() if isinstance(body, SharedMemory) else body
                raise GoesAlone(sent, limit, held.share, in_turn=True) from error
            raise invalid(error) from error
        except TimeoutError as error:
            raise TooLate(limit) from error
        except (Rejected, GeneratorExit):
            raise
        except BaseException as bug:
            raise Rejected(Rejection.INVALID, ours("reading", bug), status=500) from bug
        finally:
            if isinstance(body, SharedMemory):
                body.close()
        exchange.timed = options.timing
        return combined(options, exchange.parsed.options)

    async def _parsed(
        self,
        exchange: Exchange,
        body: Received,
        encoding: Encoding | None,
        head: str | None,
        model: ReadyModel,
    ) -> Parsed:
        plain, held = body, exchange.held
        if encoding is not None:
            plain = await self._bodies.decoded(body, encoding, held, head)
        try:
            parsed = await self._codec.parse(exchange.adapter, plain, head, model, held)
            self._bodies.settled(plain, parsed.call, held, parsed.kept)
        finally:
            if plain is not body and isinstance(plain, SharedMemory):
                plain.close()
        return parsed

    def _header_options(self, asked: RequestHead) -> HeaderOptions:
        """What the headers ask for, read once for all requests that have the same head.

        Raises `InvalidInput`, and `Rejected` for an encoding that is not known.
        """
        if not self._passes_on and declines_batching(asked.headers):
            raise InvalidInput(BATCH_HEADER, "is taken only in front of a foreign server", "off")
        asked.header_options = options_of(asked.headers, traced=logger.isEnabledFor(logging.DEBUG))
        return asked.header_options

    def open_for_work(self) -> ReadyModel:
        """The model, if calls are taken and it is there; raises `Rejected`."""
        self.require_open()
        model = self._batcher.model
        if model is None:
            reason = self._link.status.reason
            raise Rejected(Rejection.NOT_READY, reason, retry_after=RETRY_SOON)
        if self._batcher.closed is not None:
            raise Rejected(Rejection.NOT_READY, self._batcher.closed, retry_after=RETRY_SOON)
        return model

    def require_open(self) -> None:
        """Raise `Rejected` while the pod is stopping."""
        if not self._lifecycle.takes_calls():
            message = "this pod is stopping; another one will answer"
            raise Rejected(Rejection.DRAINING, message, retry_after=RETRY_SOON)

    def _admit(
        self, asked: RequestHead, found: Found, declared: int | None, by: Share
    ) -> ReadyModel:
        """The model, if nothing forbids to read the body; raises `Rejected`.

        `declared` is the body's size; None for a small one that is here.
        """
        model = self.open_for_work()
        self._require_version(found, model)
        self._adapters.chosen(asked.headers, found.adapter)  # refused before it is read
        if declared is not None:
            self._bodies.refuse_declared(declared, by)
            if json_bytes(declared, _head_length(asked, found)) > LARGE:
                self._codec.refuse_large(by)
        refusal = self._batcher.refusal(by)
        if refusal is not None:
            raise refusal
        return model

    def _require_version(self, found: Found, model: ReadyModel) -> None:
        """Raise `Rejected` where another version is asked for.

        Versions of a foreign server are its own business, and a part of the key.
        """
        if found.version is not None and not self._is_foreign:
            other = other_version(found.version, model)
            if other is not None:
                raise other


def _head_length(asked: RequestHead, found: Found) -> str | None:
    """How long the JSON at the body's beginning is, where not all of it is JSON: a header."""
    return asked.header_length if found.endpoint is Endpoint.V2_INFER else None


def _inexpressible(error: InvalidInput) -> CallError:
    """The model's answer has no form in which the caller asked for it."""
    return CallError(str(error), status=400, field=error.mistake.field)
