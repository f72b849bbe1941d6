"""Requests for text in front of our own engine: prepared here or in a process for that."""

from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.body.encodings import encoding_of
from batchedmodel_sidecar.errors import RETRY_SOON, ModelNotFound, Rejected
from batchedmodel_sidecar.generation.live_text import Draft
from batchedmodel_sidecar.generation.native.engine_text import ServedTexts, draft_of
from batchedmodel_sidecar.generation.native.engines import Engines
from batchedmodel_sidecar.generation.native.preparer import (
    PREPARE,
    TextEndpoint,
    TextPreparer,
    TextRequest,
    prepare,
)
from batchedmodel_sidecar.helper.client import HelperClient
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.routes import Found

_HERE: Final = 2048
"""Bytes of a body without a template that is prepared in the loop: about 0.3 ms."""
_LONGEST: Final = 2 << 20
"""Bytes of any body: half a million tokens."""
_PLACES: Final = 1024
_LARGE_BYTES: Final = 32 * 1024  # which take about 20 ms
_SMALL_AT_ONCE: Final = 2
"""So that the process has the next one when it has answered."""
_STUCK_SECONDS: Final = 20.0
"""A body that takes longer hangs: a template is ended by itself after a second of CPU."""
_ENDPOINTS: Final = {
    "/chat/completions": TextEndpoint.CHAT,
    "/v1/completions": TextEndpoint.COMPLETIONS,
    "/generate": TextEndpoint.GENERATE,
    "/generate_stream": TextEndpoint.GENERATE_STREAM,
}


class Preparing:
    """Prepares requests in one process, and large ones in another, which starts when needed.

    A large body takes seconds, so small ones never wait for it.
    """

    def __init__(self, stuck_seconds: float = _STUCK_SECONDS) -> None:
        """Starts nothing yet."""
        small, large = (
            HelperClient(
                "requests for text",
                prepare.__module__,
                places=_PLACES,
                at_once=at_once,
                stuck_seconds=stuck_seconds,
            )
            for at_once in (_SMALL_AT_ONCE, 1)
        )
        self._small, self._large = small, large

    def begin(self) -> None:
        """Have the process for small bodies there before the first one."""
        self._small.begin()

    async def prepare(
        self, texts: TextPreparer, endpoint: TextEndpoint, body: Buffer, held: Hold
    ) -> TextRequest:
        """The request in a body; raises `InvalidInput` and `Rejected`."""
        helper = self._large if len(body) > _LARGE_BYTES else self._small
        helper.check_place(held.share)
        request: TextRequest
        request, _ = await helper.do(PREPARE[endpoint], body, texts.pickled, share=held.share)
        return request

    async def close(self) -> None:
        """End the processes; what is with them fails."""
        await self._small.close()
        await self._large.close()


class NativeTexts:
    """The engine of the model that is ready."""

    def __init__(
        self, engines: Engines, preparing: Preparing, bodies: BodyReader, adapters: ServedAdapters
    ) -> None:
        """`preparing` does what takes long."""
        self._adapters = adapters
        self._engines = engines
        self._preparing = preparing
        self._bodies = bodies
        self.model: ReadyModel | None = None
        """The one that is served now."""
        self.preparer: TextPreparer | None = None
        """That model's; None where it generates no text."""

    async def read(self, asked: RequestHead, body: Buffer, held: Hold) -> Draft:
        """See `TextServer`."""
        model = self.model
        if model is None:
            raise Rejected(Rejection.NOT_READY, "the model is not ready", retry_after=RETRY_SOON)
        texts, description = self.preparer, model.description
        if texts is None:
            raise ModelNotFound(f"model: {description.name} generates no text")
        on_path = _adapter_on_path(asked)
        self._adapters.chosen(asked.headers, on_path)  # refused before it is read
        if asked.packed or len(body) > _LONGEST:
            body = await self._plain(asked, body, held)
        endpoint = _endpoint(asked.path)
        if endpoint is not TextEndpoint.CHAT and len(body) <= _HERE:
            request = texts.prepare(endpoint, body)
        else:
            request = await self._preparing.prepare(texts, endpoint, body, held)
        adapter = self._adapters.chosen(asked.headers, on_path or request.adapter)
        served = ServedTexts(
            self._engines.start, texts, description.version, self._engines.max_sequences
        )
        return draft_of(served, request, adapter)

    async def _plain(self, asked: RequestHead, body: Buffer, held: Hold) -> Buffer:
        encoding = encoding_of(asked.headers.get("Content-Encoding")) if asked.packed else None
        plain = await self._bodies.decoded(body, encoding, held, most=_LONGEST)
        if not isinstance(plain, bytes | bytearray | memoryview):
            view = plain.view()
            plain.close()
            plain = view
        if len(plain) > _LONGEST:
            message = f"the body has {len(plain)} bytes; of one for text {_LONGEST} are taken"
            raise Rejected(Rejection.TOO_LARGE, message)
        return plain


def _adapter_on_path(asked: RequestHead) -> str | None:
    found = None if asked.route is None else asked.route.found
    return found.adapter if isinstance(found, Found) else None


def _endpoint(path: str) -> TextEndpoint:
    return next(endpoint for end, endpoint in _ENDPOINTS.items() if path.endswith(end))
