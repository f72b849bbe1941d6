"""The engines of our model server: which one makes texts, and which texts wait for the next one.

They have numbers on the link. A step of one is one frame, and one callback here tells all texts of
it. While the model is ready, texts go to the engine of its version, once that has said how it is.

When an engine is lost, each of its texts may be the reason. They are sent to the next engine one
behind the other: the next one once there is a token of the one before. So an engine that is lost
again is lost over one text, which ends, and others come when all have been sent.
"""

import logging
from collections import deque
from typing import Final, Protocol

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.generation.frames import (
    Configure,
    Finish,
    Refusal,
    Refused,
    StepReport,
    Submit,
    Token,
    read_refused,
    read_step,
    write_cancel,
    write_configure,
    write_submit,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.kinds import Kind
from batchedmodel_contract.link.model_frames import read_engine
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.generation.admission import EngineLimits, EngineStep, EngineView
from batchedmodel_scheduling.latency.step_times import StepCost
from batchedmodel_sidecar.errors import Busy, Unserved
from batchedmodel_sidecar.generation.live_text import Draft
from batchedmodel_sidecar.generation.native.engine_text import EngineText, ServedTexts, draft_of
from batchedmodel_sidecar.generation.native.preparer import TextPreparer, TextRequest
from batchedmodel_sidecar.lora.served import ChosenAdapter
from batchedmodel_sidecar.model import FrameChannel

logger: Final = logging.getLogger(__name__)

_MAX_ENGINES: Final = 16
"""At the same time: each version that serves or is being replaced has one."""
_OTHER_TOKENIZER: Final = (
    "a model with another tokenizer serves now, to which these tokens mean nothing"
)
_STATUS: Final[dict[Refusal, int]] = {
    Refusal.INVALID: 400,
    Refusal.LATE: 504,
    Refusal.FAILED: 500,
}


class EngineListener(Protocol):
    """Who sends texts, and hears of the engine that takes them."""

    def open(self) -> None:
        """It takes texts."""
        ...

    def close(self) -> None:
        """It takes none at present."""
        ...

    def step_ends(self) -> None:
        """Texts get the tokens of a step next, and then `stepped` comes."""
        ...

    def was_cached(self, request_id: int, tokens: int) -> None:
        """The engine had so many tokens of a request's prompts; its first tokens come next."""
        ...

    def stepped(self, view: EngineView, preemptions: int) -> None:
        """How the engine is behind a step; `preemptions`: see `StepReport`."""
        ...


def engine_limits(engine: GenerationDescription, settings: BatchSettings) -> EngineLimits:
    """What such an engine takes under these settings."""
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


class Engine:
    """One engine: what goes to it, and what comes from it."""

    def __init__(
        self, channel: FrameChannel, number: int, version: str, listener: EngineListener
    ) -> None:
        """`version`: of the model whose texts it makes."""
        self._channel = channel
        self._listener = listener
        self._texts: dict[int, EngineText] = {}
        """By the id of each submit; one text may have several."""
        self.number: Final = number
        self.version: Final = version
        self.worked = False
        """Whether the engine has said how it is."""

    def submit(self, text: EngineText, submit: Submit) -> None:
        """See `Submits`."""
        self._texts[submit.id] = text
        self._channel.send(Kind.SUBMIT, submit.id, write_submit(submit, self.number))

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """See `Submits`."""
        if choice is None:
            self._texts.pop(request_id, None)
        self._channel.send(Kind.CANCEL, request_id, [write_cancel(self.number, choice)])

    def forget(self, request_id: int) -> None:
        """All texts of a submit have ended."""
        self._texts.pop(request_id, None)

    def next_id(self) -> int:
        """See `Submits`."""
        return self._channel.next_id()

    def configure(self, bounds: Configure) -> None:
        """Have these bounds hold from its next step on."""
        self._channel.send(Kind.CONFIGURE, self.number, [write_configure(bounds)])

    def leave(self) -> list[EngineText]:
        """Take all texts from it, each once."""
        texts = list(dict.fromkeys(self._texts.values()))
        for request_id in list(self._texts):
            self.cancel(request_id)
        return texts

    def hand_out(self, report: StepReport) -> None:
        """Hand each text its tokens of a step."""
        self.worked = True
        for number, cached in report.cached:
            if (text := self._texts.get(number)) is not None:
                text.was_cached(cached)
                self._listener.was_cached(text.request.id, cached)
        by_text: dict[EngineText, list[Token]] = {}
        for token in report.tokens:
            text = self._texts.get(token.id)
            if text is None:
                continue
            tokens = by_text.get(text)
            if tokens is None:
                by_text[text] = [token]
            else:
                tokens.append(token)
        for text, tokens in by_text.items():
            try:
                text.took(tokens)
            except Exception as bug:
                # The other texts of this step must hear of their tokens.
                logger.error("telling a text", exc_info=bug)
                text.refused(Unserved("error in the sidecar while telling a text", status=500))

    def refused(self, refused: Refused) -> bool:
        """Whether it is a text of this engine that it did not take."""
        text = self._texts.get(refused.id)
        if text is None:
            return False
        if refused.why is Refusal.BUSY:
            text.refused(Busy(refused.message))
        else:
            status = _STATUS[refused.why]
            text.refused(Unserved(refused.message, status=status, answered=True))
        return True


class Engines:
    """Has one engine make the texts while the model is ready."""

    listener: EngineListener
    """Set once, before the model is ready."""

    def __init__(self, channel: FrameChannel, settings: BatchSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._preparer: TextPreparer | None = None
        self._version = ""
        self._tokenizer = b""
        """Of the model that is ready, or was last."""
        self._engines: dict[int, Engine] = {}
        """Those that there are, by number: of each version that serves."""
        self._current: Engine | None = None
        """That which gets new texts."""
        self._waiting: deque[EngineText] = deque()
        """Texts whose engine was lost, and that were not sent to the next one."""
        self._tried: EngineText | None = None
        """The last of them that was."""
        self._is_open = False
        """Whether others are sent."""
        self.max_sequences = 1
        """Texts that the engine runs at once, as it was told last."""
        self._prefilled = 0
        """Tokens of prompts that the engine has computed since its start, by its last report."""

    def ready(self, version: str, texts: TextPreparer) -> None:
        """The model is ready; another version of it has an engine of its own."""
        is_known = texts is self._preparer and version == self._version
        if is_known and self._current is not None:
            return
        self._version = version
        self._preparer, self._tokenizer = texts, texts.tokenizer_json
        self._bounds(texts)
        self._leave()
        self._take()

    def lost(self) -> None:
        """The model is not ready."""
        self._preparer = None
        current = self._current
        if current is not None:
            self._ended(current)

    def configure(self, settings: BatchSettings) -> None:
        """Tell the engine of other bounds."""
        self._settings = settings
        if self._preparer is not None:
            bounds = self._bounds(self._preparer)
            if self._current is not None:
                self._current.configure(bounds)

    async def close(self) -> None:
        """Take all texts from the engines."""
        self.lost()
        waiting, self._waiting = self._waiting, deque()
        for text in waiting:
            reason = "this pod is stopping"
            text.broke_off(Unserved(reason, status=503, retry_after=1.0))

    def draft(
        self,
        texts: TextPreparer,
        version: str,
        request: TextRequest,
        adapter: ChosenAdapter | None,
    ) -> Draft:
        """A request that was read, as the engine is now."""
        served = ServedTexts(self.start, texts, version, self.max_sequences)
        return draft_of(served, request, adapter)

    def start(self, text: EngineText) -> None:
        """Start a text at the engine that takes texts; raises `Busy` where none does."""
        if self._current is None or not self._is_open:
            raise Busy("the engine cannot be reached")
        self._submit(text, self._current)

    def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
        """See `TextFrames`."""
        if kind == Kind.STEP:
            engine = self._engines.get(frame_id)
            if engine is not None:
                self._stepped(engine, read_step(content))
        elif kind == Kind.REFUSED:
            refused = read_refused(frame_id, content)
            if any(engine.refused(refused) for engine in self._engines.values()):
                self._send_waiting()
        elif kind == Kind.ENGINE:
            if frame_id in self._engines or len(self._engines) >= _MAX_ENGINES:
                rule = f"has the number of another one, or is beside {_MAX_ENGINES}"
                raise InvalidInput("engine", rule, frame_id)
            self._engines[frame_id] = Engine(
                self._channel, frame_id, read_engine(content), self.listener
            )
            if self._current is None:
                self._take()
        else:
            ended = self._engines.pop(frame_id, None)
            if ended is not None:
                self._ended(ended)

    def disconnected(self) -> None:
        """See `TextFrames`."""
        engines, self._engines = self._engines, {}
        for engine in engines.values():
            self._ended(engine)

    def _take(self) -> None:
        """Send texts to the newest engine of the version that is ready, if there is one."""
        if self._preparer is None:
            return
        for engine in self._engines.values():
            if engine.version == self._version:
                self._current = engine
        if self._current is not None:
            self._current.configure(self._bounds(self._preparer))
            self._send_waiting()

    def _send_waiting(self) -> None:
        """Send the next of the texts that wait, if the one before it may not be to blame."""
        engine = self._current
        if engine is None or not engine.worked:
            return
        while self._tried is None or not self._tried.suspect:
            if not self._waiting:
                self._tried = None
                self._open()
                return
            self._tried = self._waiting.popleft()
            self._submit(self._tried, engine)

    def _submit(self, text: EngineText, engine: Engine) -> None:
        """Submit a text, unless it was read for a model with another tokenizer."""
        if text.tokenizer_json == self._tokenizer:
            text.start(engine)
        else:
            text.broke_off(Unserved(_OTHER_TOKENIZER, status=503, retry_after=1.0))

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self.listener.open()

    def _shut(self) -> None:
        if self._is_open:
            self._is_open = False
            self.listener.close()

    def _leave(self) -> None:
        """Send nothing more to the engine that there is; it goes on with what it has."""
        self._shut()
        self._tried = self._current = None

    def _bounds(self, texts: TextPreparer) -> Configure:
        settings = self._settings
        bounds = texts.description.bounds(settings.max_sequences, settings.max_tokens_per_step)
        self.max_sequences = bounds.sequences
        return Configure(
            max_sequences=bounds.sequences,
            max_tokens_per_step=bounds.tokens,
            token_seconds=settings.target_token_seconds,
        )

    def _stepped(self, engine: Engine, report: StepReport) -> None:
        if engine is not self._current:
            # How that engine is says nothing of the one that takes texts now.
            engine.hand_out(report)
            return
        self.listener.step_ends()
        try:
            engine.hand_out(report)
        finally:
            self._tell_how_it_is(report)
            self._send_waiting()

    def _tell_how_it_is(self, report: StepReport) -> None:
        prefilled, self._prefilled = self._prefilled, report.prefill_tokens
        step = EngineStep(
            seconds=report.seconds,
            running=report.running,
            waiting=report.waiting,
            free_blocks=report.free_blocks,
            backlog=report.backlog,
            # A new engine begins to count anew.
            prefill_tokens=max(0, report.prefill_tokens - prefilled),
            tokens=len(report.tokens),
            ended=sum([token.finish is not Finish.NONE for token in report.tokens]),
        )
        usage = 1.0 - report.free_blocks / max(1, report.blocks)
        self.listener.stepped(EngineView(cache_usage=usage, step=step), report.preemptions)

    def _ended(self, engine: Engine) -> None:
        """An engine is gone, or no more of use: its texts go on at the next one."""
        was_current = engine is self._current
        if was_current:
            self._leave()
        texts = engine.leave()
        if texts:
            self._shut()
        # In front of the others, as most of them had tokens: an engine that makes some is none that
        # fails whatever it is sent.
        self._waiting.extendleft(reversed([text for text in texts if text.lost()]))
        if was_current:
            self._take()
        self._send_waiting()
