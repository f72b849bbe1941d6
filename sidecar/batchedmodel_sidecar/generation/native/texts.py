"""Texts of our model server: requests are prepared here or in a process, and go to its engine."""

from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import RETRY_SOON, ModelNotFound, Rejected
from batchedmodel_sidecar.generation.live_text import Draft
from batchedmodel_sidecar.generation.native.engines import Engines, engine_limits
from batchedmodel_sidecar.generation.native.preparer import (
    PREPARE,
    TextEndpoint,
    TextPreparer,
    TextRequest,
    prepare,
)
from batchedmodel_sidecar.generation.text_queue import TextQueue
from batchedmodel_sidecar.helper.client import HelperClient
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import ReadyModel

_HERE: Final = 2048
"""Bytes of a body without a template that is prepared in the loop: about 0.3 ms."""
_LONGEST: Final = 2 << 20
"""Bytes of any body: half a million tokens."""
_PLACES: Final = 1024
_LARGE_BYTES: Final = 16 * 1024  # which take about 10 ms
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
        self, texts: TextPreparer, endpoint: TextEndpoint, body: Buffer, hold: Hold
    ) -> TextRequest:
        """The request in a body; raises `InvalidInput` and `Rejected`."""
        helper = self._large if len(body) > _LARGE_BYTES else self._small
        helper.check_place(hold.share)
        request: TextRequest
        request, _ = await helper.do(PREPARE[endpoint], body, texts.pickled, share=hold.share)
        return request

    async def close(self) -> None:
        """End the processes; what is with them fails."""
        await self._small.close()
        await self._large.close()


class NativeGeneration:
    """In front of our model server, whose model may generate text or not."""

    def __init__(
        self,
        name: str,
        queue: TextQueue,
        link: NativeLink,
        bodies: BodyReader,
        adapters: ServedAdapters,
    ) -> None:
        """`name`: the model's. `link` carries the texts."""
        self._name = name
        self.queue: Final = queue
        queue.server = self
        self._bodies = bodies
        self._adapters = adapters
        self._preparing = Preparing()
        self._engines = link.texts = Engines(link, queue.settings)
        self._engines.listener = queue
        self.model: ReadyModel | None = None
        """The one that is served now."""
        self.preparer: TextPreparer | None = None
        """Of the last model that generates. Most versions have the tokenizer of the one before, and
        to read a large one stops the loop for a second, in which others are served."""

    def model_ready(self, model: ReadyModel) -> None:
        """The model can be asked. Raises `InvalidInput` for a tokenizer that cannot be read."""
        described, preparer = model.generation, self.preparer
        if described is None:
            self.model = model
            self._engines.lost()
            self.queue.open()  # requests are told that there is no text here
            return
        if preparer is None or not preparer.is_of(described, model.tokenizer_json):
            preparer = TextPreparer(self._name, described, model.tokenizer_json)
        self.model, self.preparer = model, preparer
        self.queue.engine_is(engine_limits(described, self.queue.settings))
        self._engines.ready(model.description.version, preparer)
        if described.chat_template is not None:
            # The first chat should not wait for a process that starts.
            self._preparing.begin()

    def model_lost(self) -> None:
        """It cannot, at present."""
        self.model = None
        self._engines.lost()
        self.queue.close()

    def configure(self, settings: BatchSettings) -> None:
        """Use other settings from now on."""
        self.queue.configure(settings)
        if self.model is not None and self.model.generation is not None:
            self.queue.engine_is(engine_limits(self.model.generation, settings))
        self._engines.configure(settings)

    async def close(self) -> None:
        """Let go of everything."""
        await self._engines.close()
        await self._preparing.close()

    async def read(self, head: RequestHead, body: Buffer, hold: Hold) -> Draft:
        """See `TextServer`."""
        model, texts = self.model, self.preparer
        if model is None:
            raise Rejected(Rejection.NOT_READY, "the model is not ready", retry_after=RETRY_SOON)
        description = model.description
        if texts is None or model.generation is None:
            raise ModelNotFound(f"model: {description.name} generates no text")
        on_path = None if head.route is None else head.route.match.adapter
        self._adapters.chosen(head.headers, on_path)  # refused before it is read
        if head.packed or len(body) > _LONGEST:
            body = await self._bodies.decoded_text(head, body, hold, _LONGEST)
        endpoint = _endpoint(head.path)
        if endpoint is not TextEndpoint.CHAT and len(body) <= _HERE:
            request = texts.prepare(endpoint, body)
        else:
            request = await self._preparing.prepare(texts, endpoint, body, hold)
        adapter = self._adapters.chosen(head.headers, on_path or request.adapter)
        return self._engines.draft(texts, description.version, request, adapter)


def _endpoint(path: str) -> TextEndpoint:
    return next(endpoint for end, endpoint in _ENDPOINTS.items() if path.endswith(end))
