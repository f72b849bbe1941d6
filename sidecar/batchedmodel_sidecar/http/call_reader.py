"""Requests into calls: admission, body, parsing, each bounded in memory and in time.

Every kind of request takes the same steps. A small one whose body has a known form waits nowhere.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from batchedmodel_contract.invalid_input import InvalidInput, Unbatchable
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.batching.pending_request import invalid, of_now
from batchedmodel_sidecar.body.encodings import Encoding
from batchedmodel_sidecar.codec.codec import Codec
from batchedmodel_sidecar.errors import Rejected, TooLate
from batchedmodel_sidecar.helper.shared_memory import SharedMemory
from batchedmodel_sidecar.http.admission import Admission
from batchedmodel_sidecar.http.body_reader import BodyReader, Received, Source
from batchedmodel_sidecar.http.passthrough import GoesAlone
from batchedmodel_sidecar.http.refusals import ours
from batchedmodel_sidecar.http.routed_head import Request
from batchedmodel_sidecar.http.time_out import within
from batchedmodel_sidecar.lora.naming import AdapterNames
from batchedmodel_sidecar.protocols.adapter import Parsed
from batchedmodel_sidecar.protocols.headers import (
    BATCH_HEADER,
    NO_OPTIONS,
    combined,
    declines_batching,
    limit_of,
)
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.telemetry.ledger import Ledger
from batchedmodel_sidecar.telemetry.offered_work import RecentArrivals


class CallReader:
    """Reads the requests for one model."""

    def __init__(
        self,
        *,
        admission: Admission,
        batcher: Batcher,
        ledger: Ledger,
        recorder: RecentArrivals,
        bodies: BodyReader,
        codec: Codec,
        adapters: AdapterNames,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: in monotonic seconds."""
        self._clock = clock
        self._admission = admission
        self._batcher = batcher
        self._ledger = ledger
        self._recorder = recorder
        self._bodies = bodies
        self._codec = codec
        self._adapters = adapters

    async def read(self, request: Request, source: Source) -> None:
        """Fill in all that comes before the batcher decides; raises `Rejected` or `GoesAlone`.

        A request that leaves or fails here is counted as rejected.
        """
        asked, held, admission = request.asked, request.held, self._admission
        # How long the JSON at the body's beginning is, where not all of it is JSON.
        v2 = request.found.endpoint is Endpoint.V2_INFER
        head = asked.header_length if v2 else None
        body: Received = b""
        limit = 0.0
        try:
            whole = isinstance(source, bytes)
            admission.admit(request, head, None if whole else asked.declared)
            header_options = asked.header_options or admission.options(asked)
            request.options = header_options.options
            if isinstance(source, bytes):
                body = self._bodies.whole(source, asked, held, head)
            else:
                body = await self._bodies.read(asked, source, held, self._limit(request), head)
                # The model may have been restarted while the body arrived.
                request.model = admission.model_of(request)
            if admission.passes_on and declines_batching(asked.headers):
                raise Unbatchable(BATCH_HEADER, "is off")
            # This version answers from now on, even if another takes its place meanwhile.
            request.lease.turn_to(request.model.users)
            at_once = self._parsed_at_once(request, body)
            if at_once is not None:
                parsed = at_once
            else:
                limit = self._limit(request)
                left = limit - (self._clock() - request.arrived)
                parsing = self._parsed(request, body, header_options.encoding, head)
                parsed, waited = await within(left, parsing)
                if waited:
                    admission.open_for_work()
            request.parsed = self._adapters.applied(asked.headers, request.found.adapter, parsed)
        except asyncio.CancelledError:
            # Nothing was promised, but the ledger counts every request that came.
            self._ledger.rejected[Rejection.ABANDONED] += 1
            raise
        except InvalidInput as error:
            if isinstance(error, Unbatchable) and admission.passes_on:
                sent = body.view() if isinstance(body, SharedMemory) else body
                seconds = self._limit(request)
                raise GoesAlone(sent, seconds, held.share, in_turn=True) from error
            raise self._unread(invalid(error)) from error
        except TimeoutError as error:
            raise self._unread(TooLate(limit)) from error
        except Rejected as error:
            refused = of_now(error, held.share, self._batcher)
            raise self._unread(refused) from None
        except GeneratorExit:
            raise
        except BaseException as bug:
            refused = Rejected(Rejection.INVALID, ours("reading", bug), status=500)
            raise self._unread(refused) from bug
        finally:
            if isinstance(body, SharedMemory):
                body.close()
        if request.options is NO_OPTIONS:
            request.options = parsed.options
        else:
            request.options = combined(request.options, parsed.options)

    def _limit(self, request: Request) -> float:
        """Seconds from its arrival that the headers of a request leave it."""
        return limit_of(request.options, self._batcher.settings)

    def _parsed_at_once(self, request: Request, body: Received) -> Parsed | None:
        """The call in a small body of a known form; None for any other."""
        route = request.asked.route
        if route is None or route.at_once is None or not isinstance(body, bytes):
            return None
        most_rows = partial(self._codec.most_rows, request.held.share)
        parsed = route.at_once.parse_at_once(body, request.model, most_rows)
        if parsed is not None:
            self._bodies.settled(body, parsed.call, request.held)
        return parsed

    async def _parsed(
        self, request: Request, body: Received, encoding: Encoding | None, head: str | None
    ) -> Parsed:
        plain, held = body, request.held
        if encoding is not None:
            plain = await self._bodies.decoded(body, encoding, held, head)
        try:
            parsed = await self._codec.parse(request.adapter, plain, head, request.model, held)
            self._bodies.settled(plain, parsed.call, held, parsed.kept)
        finally:
            if plain is not body and isinstance(plain, SharedMemory):
                plain.close()
        return parsed

    def _unread(self, refused: Rejected) -> Rejected:
        """Note a request that was refused before it was understood."""
        self._recorder.refused_unread(refused.reason, refused.rows, self._clock())
        return refused
