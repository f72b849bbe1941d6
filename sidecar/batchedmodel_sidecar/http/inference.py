"""Inferences from their heads to their answers: call, batch, answer, body.

Nothing of HTTP goes further in. One coroutine takes the same steps for every kind of request. It
waits where it must: for its batch, and for what streams, is large or is compressed.
"""

from collections.abc import Callable

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.tenants import share_of
from batchedmodel_http.response import Response, size_of
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.body.encodings import wants_gzip
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.codec.codec import Codec
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.http.body_reader import BodyReader, Source
from batchedmodel_sidecar.http.call_reader import CallReader
from batchedmodel_sidecar.http.responses import gzipped, model_response
from batchedmodel_sidecar.http.routed_head import Request, RequestHead
from batchedmodel_sidecar.lora.naming import share_of_call
from batchedmodel_sidecar.protocols.adapter import Adapter
from batchedmodel_sidecar.protocols.routes import Found


class InferenceHandler:
    """Answers the inferences of one model."""

    def __init__(
        self,
        reader: CallReader,
        batcher: Batcher,
        bodies: BodyReader,
        codec: Codec,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: in monotonic seconds."""
        self._reader = reader
        self._batcher = batcher
        self._bodies = bodies
        self._codec = codec
        self._clock = clock

    async def infer(
        self, asked: RequestHead, found: Found, adapter: Adapter, source: Source, caller: str
    ) -> Response:
        """The answer to any inference; raises `CallError`, `InvalidInput` or `GoesAlone`."""
        tenants = self._batcher.settings.tenants
        share, arrived = share_of(caller, asked.headers, tenants), self._clock()
        request = Request(asked, found, adapter, caller, arrived, self._bodies.hold(share))
        try:
            await self._reader.read(request, source)
            call = request.parsed.call
            share = share_of_call(call, share, tenants)
            answer = await self._batcher.offer(call, arrived, request.options, share, request.held)
            response = await self._response(request, answer)
        finally:
            request.release()
        return self._bodies.unread.admitted(response, caller)

    async def _response(self, request: Request, answer: Answer) -> Response:
        """The answer as it leaves; what it takes is held until then.

        Raises `CallError` and `InvalidInput`.
        """
        held, parsed = request.held, request.parsed
        self._bodies.hold_answer(answer.size, held)
        try:
            if self._codec.renders_here(request.adapter, parsed, answer):
                body = request.adapter.render(parsed, answer, request.model)
            else:
                body = await self._codec.render(
                    request.adapter, parsed, answer, request.model, held.share
                )
        except InvalidInput as error:
            # The model's answer has no form in which the caller asked for it.
            raise CallError(str(error), status=400, field=error.mistake.field) from error
        response = model_response(body, answer.timing if request.options.timing else None)
        size = size_of(response.parts)
        options = request.asked.header_options
        if options is not None and wants_gzip(options.accepted, size) and held.grow(size):
            return await gzipped(response, self._bodies.compression, held.share)
        return response
