"""Generated text in one sidecar: its queue, and what follows the server behind it."""

from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.environment import SidecarSettings
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.backends.upstream.client import Client
from batchedmodel_sidecar.generation.engine_gauges import EngineGauges
from batchedmodel_sidecar.generation.native.engines import Engines, engine_limits
from batchedmodel_sidecar.generation.native.preparer import TextPreparer
from batchedmodel_sidecar.generation.native.texts import NativeTexts, Preparing
from batchedmodel_sidecar.generation.text_queue import TextQueue
from batchedmodel_sidecar.generation.upstream_texts import UpstreamTexts
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import ReadyModel


class UpstreamGeneration:
    """In front of an upstream that speaks OpenAI's protocol."""

    def __init__(self, queue: TextQueue, client: Client) -> None:
        """`client` carries the texts, and reads the server's metrics."""
        self.queue: Final = queue
        queue.server = UpstreamTexts(client.ask_text)
        self.gauges: Final = EngineGauges(client, busy=queue.busy, told=queue.engine)

    def model_ready(self, model: ReadyModel) -> None:
        """The model can be asked."""
        self.queue.open()

    def model_lost(self) -> None:
        """It cannot, at present."""
        self.queue.close()

    def configure(self, settings: BatchSettings) -> None:
        """Use other settings from now on."""
        self.queue.configure(settings)

    async def close(self) -> None:
        """Let go of everything."""


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
        self._preparing = Preparing()
        self._engines = link.texts = Engines(link, queue.settings)
        self._engines.listener = queue
        self._texts = queue.server = NativeTexts(self._engines, self._preparing, bodies, adapters)
        self._preparer: TextPreparer | None = None
        """Of the last model that generates. Most versions have the tokenizer of the one before, and
        to read a large one stops the loop for a second, in which others are served."""

    def model_ready(self, model: ReadyModel) -> None:
        """The model can be asked. Raises `InvalidInput` for a tokenizer that cannot be read."""
        described, preparer = model.generation, self._preparer
        if described is None:
            self._texts.model, self._texts.preparer = model, None
            self._engines.lost()
            self.queue.open()  # requests are told that there is no text here
            return
        if preparer is None or not preparer.is_of(described, model.tokenizer_json):
            preparer = TextPreparer(self._name, described, model.tokenizer_json)
        self._preparer = self._texts.preparer = preparer
        self._texts.model = model
        self.queue.engine_is(engine_limits(described, self.queue.settings))
        self._engines.ready(model.description.version, preparer)
        if described.chat_template is not None:
            # The first chat should not wait for a process that starts.
            self._preparing.begin()

    def model_lost(self) -> None:
        """It cannot, at present."""
        self._texts.model = None
        self._engines.lost()
        self.queue.close()

    def configure(self, settings: BatchSettings) -> None:
        """Use other settings from now on."""
        self.queue.configure(settings)
        model = self._texts.model
        if model is not None and model.generation is not None:
            self.queue.engine_is(engine_limits(model.generation, settings))
        self._engines.configure(settings)

    async def close(self) -> None:
        """Let go of everything."""
        await self._engines.close()
        await self._preparing.close()


Generation = UpstreamGeneration | NativeGeneration


def generation_of(
    settings: SidecarSettings,
    queue: TextQueue,
    *,
    link: NativeLink | None,
    client: Client | None,
    bodies: BodyReader,
    adapters: ServedAdapters,
) -> Generation | None:
    """What the server behind this sidecar needs; None for one that generates nothing.

    `link`: to our model server. `client`: to an upstream server.
    """
    if link is not None:
        return NativeGeneration(settings.model_name, queue, link, bodies, adapters)
    if client is not None and settings.upstream_protocol is ServerProtocol.OPENAI:
        return UpstreamGeneration(queue, client)
    return None
