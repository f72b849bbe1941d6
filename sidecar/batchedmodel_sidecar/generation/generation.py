"""Generated text in one sidecar: its handler, and who follows the engine behind it."""

from collections.abc import Callable
from typing import Final, Protocol

from batchedmodel_contract.generation.frames import Finish, StepReport
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.spec import ServerProtocol
from batchedmodel_contract.processes.environment import SidecarSettings
from batchedmodel_contract.processes.server_api import engine_socket_path
from batchedmodel_scheduling.engine.step_cost import StepCost
from batchedmodel_scheduling.generation.admission import EngineLimits, EngineStep, EngineView
from batchedmodel_sidecar.adapters.naming import AdapterNames
from batchedmodel_sidecar.backends.foreign.client import Client
from batchedmodel_sidecar.generation.engine_client import EngineClient
from batchedmodel_sidecar.generation.engine_gauges import EngineGauges
from batchedmodel_sidecar.generation.foreign_texts import ForeignTexts
from batchedmodel_sidecar.generation.handler import GenerationHandler
from batchedmodel_sidecar.generation.native.engine_link import EngineLink
from batchedmodel_sidecar.generation.native.requests.preparer import TextPreparer
from batchedmodel_sidecar.generation.native.requests.preparing import Preparing
from batchedmodel_sidecar.generation.native.texts import NativeTexts
from batchedmodel_sidecar.generation.text_server import TextServer
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.model import ReadyModel

MakeHandler = Callable[[TextServer], GenerationHandler]


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


class ForeignGeneration:
    """In front of a server of one's own that speaks OpenAI's protocol."""

    def __init__(self, url: str, gauges: Client, make: MakeHandler) -> None:
        """`gauges`: how the server's metrics are read."""
        self.handler: Final = make(ForeignTexts(EngineClient(url)))
        self.gauges: Final = EngineGauges(gauges, busy=self.handler.busy, told=self.handler.engine)

    def model_ready(self, model: ReadyModel) -> None:
        """See `Generation`."""
        self.handler.open()

    def model_lost(self) -> None:
        """See `Generation`."""
        self.handler.close()

    def configure(self, settings: BatchSettings) -> None:
        """See `Generation`."""
        self.handler.configure(settings)

    async def close(self) -> None:
        """See `Generation`."""


def generation_of(
    settings: SidecarSettings,
    batching: BatchSettings,
    *,
    gauges: Client | None,
    bodies: BodyReader,
    model: Callable[[], ReadyModel | None],
    make: MakeHandler,
    adapters: AdapterNames,
) -> Generation | None:
    """What the server behind this sidecar needs; None for one that generates nothing.

    `gauges`: how the metrics of a server of one's own are read; None in front of ours. `model`: the
    one that is served now.
    """
    if gauges is None:
        return NativeGeneration(settings, batching, bodies, model, make, adapters)
    if settings.upstream_protocol is ServerProtocol.OPENAI:
        return ForeignGeneration(settings.upstream_url, gauges, make)
    return None


class NativeGeneration:
    """In front of our model server, whose model may generate text or not."""

    def __init__(
        self,
        settings: SidecarSettings,
        batching: BatchSettings,
        bodies: BodyReader,
        model: Callable[[], ReadyModel | None],
        make: MakeHandler,
        adapters: AdapterNames,
    ) -> None:
        """`model`: the one that is served now."""
        self._preparing = Preparing()
        self._batching = batching
        self._texts: TextPreparer | None = None
        self._prefilled = 0
        """Tokens of prompts that the engine has computed since its start, by its last report."""
        self._link = EngineLink(engine_socket_path(settings.model_socket), self, batching)
        texts = NativeTexts(self._link, self._preparing, bodies, model, adapters)
        self.handler: Final = make(texts)

    def model_ready(self, model: ReadyModel) -> None:
        """See `Generation`."""
        if model.texts is None:
            self._link.lost()
            self.handler.open()  # whoever asks is told that there is no text here
            return
        self._texts = model.texts
        self.handler.engine_is(self._limits(model.texts))
        self._link.ready(model.description.version, model.texts)
        if model.texts.description.chat_template is not None:
            # The first chat should not wait for a process that starts.
            self._preparing.begin()

    def model_lost(self) -> None:
        """See `Generation`."""
        self._link.lost()
        self.handler.close()

    def configure(self, settings: BatchSettings) -> None:
        """See `Generation`."""
        self._batching = settings
        self.handler.configure(settings)
        if self._texts is not None:
            self.handler.engine_is(self._limits(self._texts))
        self._link.configure(settings)

    def open(self) -> None:
        """From the link: the engine takes texts."""
        self.handler.open()

    def close_engine(self) -> None:
        """From the link: it takes none at present."""
        self.handler.close()

    def found(self, request_id: int, tokens: int) -> None:
        """From the link: the engine had so many tokens of a request's prompts."""
        self.handler.found(request_id, tokens)

    def step_ends(self) -> None:
        """From the link: its tokens are told next, and then what it did."""
        self.handler.step_ends()

    def stepped(self, report: StepReport) -> None:
        """From the link: what the engine did."""
        prefilled = report.prefill_tokens - self._prefilled
        self._prefilled = report.prefill_tokens
        step = EngineStep(
            seconds=report.seconds,
            running=report.running,
            waiting=report.waiting,
            free_blocks=report.free_blocks,
            backlog=report.backlog,
            # A new engine begins to count anew.
            prefill_tokens=max(0, prefilled),
            tokens=len(report.tokens),
            ended=sum([token.finish is not Finish.NONE for token in report.tokens]),
        )
        usage = 1.0 - report.free_blocks / max(1, report.blocks)
        self.handler.preempted(report.preemptions)
        self.handler.engine(EngineView(cache_usage=usage, step=step))

    def _limits(self, texts: TextPreparer) -> EngineLimits:
        settings, engine = self._batching, texts.description
        seconds = engine.step_seconds
        bounds = engine.bounds(settings.max_sequences, settings.max_tokens_per_step)
        return EngineLimits(
            max_sequences=bounds.sequences,
            max_tokens_per_step=bounds.tokens,
            blocks=engine.blocks,
            block_tokens=engine.block_tokens,
            cost=StepCost(
                base=seconds.base,
                prefill_token=seconds.prefill_token,
                sequence=seconds.sequence,
                context_token=seconds.context_token,
            ),
        )

    async def close(self) -> None:
        """See `Generation`."""
        await self._link.close()
        await self._preparing.close()
