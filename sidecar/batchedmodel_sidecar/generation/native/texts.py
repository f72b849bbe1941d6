"""Requests for text in front of our own engine: prepared here or in a process for that."""

import secrets
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.generation.admission import GenerationRequest
from batchedmodel_sidecar.adapters.naming import AdapterNames
from batchedmodel_sidecar.adapters.served import ChosenAdapter
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.body.encodings import encoding_of
from batchedmodel_sidecar.errors import RETRY_SOON, ModelNotFound, Rejected
from batchedmodel_sidecar.generation.engine_client import AnswerListener, Exchange
from batchedmodel_sidecar.generation.fields import Fields
from batchedmodel_sidecar.generation.native.answers.answer_form import AnswerForm
from batchedmodel_sidecar.generation.native.answers.openai_answers import ChatForm, CompletionForm
from batchedmodel_sidecar.generation.native.answers.triton_answers import GenerateForm
from batchedmodel_sidecar.generation.native.engine_link import EngineLink
from batchedmodel_sidecar.generation.native.exchange import NativeExchange
from batchedmodel_sidecar.generation.native.requests.preparer import TextPreparer
from batchedmodel_sidecar.generation.native.requests.preparing import Preparing
from batchedmodel_sidecar.generation.native.requests.text_request import TextEndpoint, TextRequest
from batchedmodel_sidecar.generation.text_server import Draft
from batchedmodel_sidecar.helper.shared_memory import SharedMemory
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.http.routed_head import RequestHead
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.routes import Found

_HERE: Final = 2048
"""Bytes of a body without a template that is prepared in the loop: about 0.3 ms."""
_LONGEST: Final = 2 << 20
"""Bytes of any body: half a million tokens."""
_SEED_BITS: Final = 63
_ENDPOINTS: Final = {
    "/chat/completions": TextEndpoint.CHAT,
    "/v1/completions": TextEndpoint.COMPLETIONS,
    "/generate": TextEndpoint.GENERATE,
    "/generate_stream": TextEndpoint.GENERATE_STREAM,
}


class NativeTexts:
    """The engine of the model that is ready."""

    def __init__(
        self,
        link: EngineLink,
        preparing: Preparing,
        bodies: BodyReader,
        model: Callable[[], ReadyModel | None],
        adapters: AdapterNames,
    ) -> None:
        """`preparing` does what takes long; `model`: the one that is served now."""
        self._adapters = adapters
        self._link = link
        self._preparing = preparing
        self._bodies = bodies
        self._model = model

    async def read(self, asked: RequestHead, body: Buffer, held: Hold) -> Draft:
        """See `TextServer`."""
        model = self._model()
        if model is None:
            raise Rejected(Rejection.NOT_READY, "the model is not ready", retry_after=RETRY_SOON)
        if model.texts is None:
            name = model.description.name
            raise ModelNotFound(f"model: {name} generates no text")
        told = _named_by(asked)
        self._adapters.chosen(asked.headers, told)  # refused before it is read
        body = await self._plain(asked, body, held)
        endpoint = _endpoint(asked.path)
        if endpoint is not TextEndpoint.CHAT and len(body) <= _HERE:
            request = model.texts.prepare(endpoint, body)
        else:
            request = await self._preparing.prepare(model.texts, endpoint, body, held.share)
        chosen = self._adapters.chosen(asked.headers, told or request.adapter)
        at_once = request.at_once(model.texts.description, self._link.sequences(model.texts))
        fields = Fields(
            model=model.description.name if chosen is None else chosen.name,
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            choices=request.texts,
            # Its tokens are seen as they come, whatever its caller gets.
            streams=True,
            adapter=None if chosen is None else chosen.name,
            at_once=at_once,
            whole=not request.streams,
            least_tokens=request.least_tokens,
        )
        version = model.description.version
        ask = partial(self._ask, version, model.texts, request, chosen, held.keep)
        return Draft(fields, ask)

    async def _plain(self, asked: RequestHead, body: Buffer, held: Hold) -> Buffer:
        encoding = encoding_of(asked.headers.get("Content-Encoding")) if asked.packed else None
        plain = await self._bodies.decoded(body, encoding, held, most=_LONGEST)
        if isinstance(plain, SharedMemory):
            view = plain.view()
            plain.close()
            plain = view
        if len(plain) > _LONGEST:
            message = f"the body has {len(plain)} bytes; of one for text {_LONGEST} are taken"
            raise Rejected(Rejection.TOO_LARGE, message)
        return plain

    def _ask(
        self,
        version: str,
        texts: TextPreparer,
        request: TextRequest,
        adapter: ChosenAdapter | None,
        keep: Callable[[int], bool],
        listener: AnswerListener,
        queued: GenerationRequest,
    ) -> Exchange:
        sampling = request.sampling
        if not request.seeded:
            sampling = sampling._replace(seed=secrets.randbits(_SEED_BITS))
        exchange = NativeExchange(
            listener,
            request,
            self._form(version, texts, request, sampling, queued),
            texts.tokenizer,
            sampling,
            int(queued.priority),
            lambda: queued.deadline - time.monotonic(),
            keep,
            # How fast a prompt is read would tell one tenant what another has asked.
            salt=queued.share.tenant,
            adapter=adapter,
            weight=queued.share.weight,
            request_id=queued.id,
        )
        self._link.start(exchange)
        return exchange

    def _form(
        self,
        version: str,
        texts: TextPreparer,
        request: TextRequest,
        sampling: Sampling,
        queued: GenerationRequest,
    ) -> AnswerForm:
        model = str(queued.key)
        if request.endpoint in (TextEndpoint.GENERATE, TextEndpoint.GENERATE_STREAM):
            named = {"model_name": model, "model_version": version}
            return GenerateForm(named if request.id is None else {"id": request.id, **named})
        chat = request.endpoint is TextEndpoint.CHAT
        prefix, form = ("chatcmpl", ChatForm) if chat else ("cmpl", CompletionForm)
        known: dict[str, Any] = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        return form(
            known,
            texts.tokenizer,
            include_usage=request.include_usage,
            logprobs=sampling.logprobs is not None,
        )


def _named_by(asked: RequestHead) -> str | None:
    """The adapter that its path names."""
    found = None if asked.route is None else asked.route.found
    return found.adapter if isinstance(found, Found) else None


def _endpoint(path: str) -> TextEndpoint:
    return next(found for end, found in _ENDPOINTS.items() if path.endswith(end))
