"""Generated text in one sidecar: its handler, and who follows the engine behind it."""

from typing import Final, Protocol

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.spec import ServerProtocol
from batchedmodel_contract.processes.environment import SidecarSettings
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.backends.upstream.client import Client
from batchedmodel_sidecar.generation.engine_client import EngineClient
from batchedmodel_sidecar.generation.engine_gauges import EngineGauges
from batchedmodel_sidecar.generation.handler import GenerationHandler, MakeHandler
from batchedmodel_sidecar.generation.native.engine_link import EngineLink, engine_limits
from batchedmodel_sidecar.generation.native.requests.preparing import Preparing
from batchedmodel_sidecar.generation.native.texts import NativeTexts
from batchedmodel_sidecar.generation.upstream_texts import UpstreamTexts
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import ReadyModel


class Generation(Protocol):
    """What the service does with it."""

    @property
    def handler(self) -> GenerationHandler:
        """Who answers requests for text."""
        ...

    def model_ready(self, model: ReadyModel) -> None:
        """The model can be asked."""
        ...

    def model_lost(self) -> None:
        """It cannot, at present."""
        ...

    def configure(self, settings: BatchSettings) -> None:
        """Use other settings from now on."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class UpstreamGeneration:
    """In front of a server of one's own that speaks OpenAI's protocol."""

    def __init__(self, url: str, gauges: Client, make: MakeHandler) -> None:
        """`gauges`: how the server's metrics are read."""
        self.handler: Final = make(UpstreamTexts(EngineClient(url)))
        self.gauges: Final = EngineGauges(
            gauges, busy=self.handler.queue.busy, told=self.handler.queue.engine
        )

    def model_ready(self, model: ReadyModel) -> None:
        """See `Generation`."""
        self.handler.queue.open()

    def model_lost(self) -> None:
        """See `Generation`."""
        self.handler.queue.close()

    def configure(self, settings: BatchSettings) -> None:
        """See `Generation`."""
        self.handler.configure(settings)

    async def close(self) -> None:
        """See `Generation`."""


def generation_of(
    settings: SidecarSettings,
    batching: BatchSettings,
    *,
    link: NativeLink | None,
    gauges: Client | None,
    bodies: BodyReader,
    make: MakeHandler,
    adapters: ServedAdapters,
) -> Generation | None:
    """What the server behind this sidecar needs; None for one that generates nothing.

    `link`: to our model server. `gauges`: how the metrics of an upstream are read.
    """
    if link is not None:
        return NativeGeneration(link, batching, bodies, make, adapters)
    if gauges is not None and settings.upstream_protocol is ServerProtocol.OPENAI:
        return UpstreamGeneration(settings.upstream_url, gauges, make)
    return None


class NativeGeneration:
    """In front of our model server, whose model may generate text or not."""

    def __init__(
        self,
        link: NativeLink,
        batching: BatchSettings,
        bodies: BodyReader,
        make: MakeHandler,
        adapters: ServedAdapters,
    ) -> None:
        """`link` carries the texts."""
        self._preparing = Preparing()
        self._batching = batching
        self._link = link.texts = EngineLink(link, batching)
        self._texts = NativeTexts(self._link, self._preparing, bodies, adapters)
        self.handler: Final = make(self._texts)
        self._link.listener = self.handler.queue

    def model_ready(self, model: ReadyModel) -> None:
        """See `Generation`."""
        self._texts.model = model
        if model.texts is None:
            self._link.lost()
            self.handler.queue.open()  # requests are told that there is no text here
            return
        self.handler.queue.engine_is(engine_limits(model.texts.description, self._batching))
        self._link.ready(model.description.version, model.texts)
        if model.texts.description.chat_template is not None:
            # The first chat should not wait for a process that starts.
            self._preparing.begin()

    def model_lost(self) -> None:
        """See `Generation`."""
        self._texts.model = None
        self._link.lost()
        self.handler.queue.close()

    def configure(self, settings: BatchSettings) -> None:
        """See `Generation`."""
        self._batching = settings
        self.handler.configure(settings)
        model = self._texts.model
        if model is not None and model.texts is not None:
            self.handler.queue.engine_is(engine_limits(model.texts.description, settings))
        self._link.configure(settings)

    async def close(self) -> None:
        """See `Generation`."""
        await self._link.close()
        await self._preparing.close()
