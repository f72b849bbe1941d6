"""Requests for text in front of our own engine: prepared here or in a process for that."""

from functools import partial
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.body.encodings import encoding_of
from batchedmodel_sidecar.errors import RETRY_SOON, ModelNotFound, Rejected
from batchedmodel_sidecar.generation.live_text import Draft
from batchedmodel_sidecar.generation.native.engine_link import EngineLink
from batchedmodel_sidecar.generation.native.engine_text import EngineText, ServedTexts
from batchedmodel_sidecar.generation.native.requests.preparing import Preparing
from batchedmodel_sidecar.generation.native.requests.text_request import TextEndpoint
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.routes import Found

_HERE: Final = 2048
"""Bytes of a body without a template that is prepared in the loop: about 0.3 ms."""
_LONGEST: Final = 2 << 20
"""Bytes of any body: half a million tokens."""
_ENDPOINTS: Final = {
    "/chat/completions": TextEndpoint.CHAT,
    "/v1/completions": TextEndpoint.COMPLETIONS,
    "/generate": TextEndpoint.GENERATE,
    "/generate_stream": TextEndpoint.GENERATE_STREAM,
}


class NativeTexts:
    """The engine of the model that is ready."""

    def __init__(
        self, link: EngineLink, preparing: Preparing, bodies: BodyReader, adapters: ServedAdapters
    ) -> None:
        """`preparing` does what takes long."""
        self._adapters = adapters
        self._link = link
        self._preparing = preparing
        self._bodies = bodies
        self.model: ReadyModel | None = None
        """The one that is served now."""

    async def read(self, asked: RequestHead, body: Buffer, held: Hold) -> Draft:
        """See `TextServer`."""
        model = self.model
        if model is None:
            raise Rejected(Rejection.NOT_READY, "the model is not ready", retry_after=RETRY_SOON)
        texts, description = model.texts, model.description
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
            request = await self._preparing.prepare(texts, endpoint, body, held.share)
        adapter = self._adapters.chosen(asked.headers, on_path or request.adapter)
        fields = request.fields(
            description.name,
            None if adapter is None else adapter.name,
            texts.description,
            self._link.max_sequences,
        )
        served = ServedTexts(self._link, texts, description.version)
        return Draft(fields, partial(EngineText, served, request, adapter))

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
