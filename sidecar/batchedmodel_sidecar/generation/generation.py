"""Generated text in one sidecar: its queue, and what follows the server behind it."""

from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.environment import SidecarSettings
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.backends.upstream.client import Client
from batchedmodel_sidecar.generation.engine_gauges import EngineGauges
from batchedmodel_sidecar.generation.native.texts import NativeGeneration
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
        self.gauges: Final = EngineGauges(client=client, busy=queue.busy, listener=queue.engine)

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
