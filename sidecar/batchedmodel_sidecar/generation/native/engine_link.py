"""Which engine of our model server takes texts, and which texts wait for the next one.

A step of the engine is one frame, and one callback here tells all texts of it. The link follows the
model: while it is ready there is a connection. Texts are sent once the engine has said how it is.

When a connection ends, each of its texts may be the reason. They are sent to the next engine one
behind the other: the next one once there is a token of the one before. So an engine that is lost
again is lost over one text, which ends, and others come when all have been sent.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Finish,
    Frame,
    Refusal,
    Refused,
    StepReport,
    Submit,
    Token,
)
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.engine.step_cost import StepCost
from batchedmodel_scheduling.generation.admission import EngineLimits, EngineStep, EngineView
from batchedmodel_sidecar.errors import Busy, Unserved
from batchedmodel_sidecar.generation.native.engine_connection import EngineConnection, connect
from batchedmodel_sidecar.generation.native.engine_text import EngineText
from batchedmodel_sidecar.generation.native.requests.preparer import TextPreparer

logger: Final = logging.getLogger(__name__)

_STATUS: Final[Mapping[Refusal, int]] = {
    Refusal.INVALID: 400,
    Refusal.LATE: 504,
    Refusal.FAILED: 500,
}
_OTHER_TOKENIZER: Final = (
    "a model with another tokenizer serves now, to which these tokens mean nothing"
)


class EngineListener(Protocol):
    """Who hears of the engine that takes texts."""

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


class EngineLink:
    """Keeps a connection while the model is ready."""

    listener: EngineListener
    """Set once, before the model is ready: it sends texts by this link."""

    def __init__(self, socket_path: str, settings: BatchSettings) -> None:
        """Needs a running loop."""
        self._socket_path = socket_path
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._texts: TextPreparer | None = None
        self._version = ""
        self._tokenizer = b""
        """Of the model that is ready, or was last."""
        self._session: _Session | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[EngineText] = deque()
        """Texts whose engine was lost, and that were not sent to the next one."""
        self._tried: EngineText | None = None
        """The last of them that was."""
        self._is_open = False
        """Whether others are sent."""
        self._failures = 0
        """Connections in a row that could not be made, or ended before the engine said anything."""
        self._next_id = 0
        self.max_sequences = 1
        """Texts that the engine runs at once, as it was told last."""
        self._prefilled = 0
        """Tokens of prompts that the engine has computed since its start, by its last report."""

    def ready(self, version: str, texts: TextPreparer) -> None:
        """The model is ready; another version of it has a connection of its own."""
        is_known = texts is self._texts and version == self._version
        if is_known and (self._session or self._connecting):
            return
        self._version = version
        if texts.tokenizer_json != self._tokenizer:
            self._drop_waiting(_OTHER_TOKENIZER)
        self._texts, self._tokenizer = texts, texts.tokenizer_json
        self._bounds(texts)
        before = self._leave()
        if before is not None:
            before.retire()
        self._connect()

    def lost(self) -> None:
        """The model is not ready."""
        self._texts = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        session = self._leave()
        if session is not None:
            session.abort()

    def configure(self, settings: BatchSettings) -> None:
        """Tell the engine of other bounds."""
        self._settings = settings
        if self._texts is not None:
            bounds = self._bounds(self._texts)
            if self._session is not None:
                self._session.send(bounds)

    async def close(self) -> None:
        """Hang up."""
        self.lost()
        self._drop_waiting("this pod is stopping")

    def next_id(self) -> int:
        """See `Engine`."""
        self._next_id += 1
        return self._next_id

    def start(self, text: EngineText) -> None:
        """See `Engines`."""
        if self._session is None or not self._is_open:
            raise Busy("the engine cannot be reached")
        text.start(self._session)

    def send_waiting(self) -> None:
        """Send the next of the texts that wait, if the one before it may not be to blame."""
        session = self._session
        if session is None or not session.worked:
            return
        while self._tried is None or not self._tried.suspect:
            if not self._waiting:
                self._tried = None
                self._open()
                return
            self._tried = self._waiting.popleft()
            self._tried.start(session)

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self.listener.open()

    def _shut(self) -> None:
        if self._is_open:
            self._is_open = False
            self.listener.close()

    def _leave(self) -> "_Session | None":
        """Send nothing more to the engine that there is."""
        self._shut()
        self._tried = None
        session, self._session = self._session, None
        return session

    def _connect(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        self._connecting = self._loop.create_task(self._connected())

    async def _connected(self) -> None:
        session = _Session(self, self._tokenizer)
        self._failures = await connect(self._socket_path, session.connection, self._failures)
        assert self._texts is not None, "a connection is wanted while there is a model"
        self._connecting = None
        self._session = session
        session.send(self._bounds(self._texts))
        self.send_waiting()

    def _bounds(self, texts: TextPreparer) -> Configure:
        settings = self._settings
        bounds = texts.description.bounds(settings.max_sequences, settings.max_tokens_per_step)
        self.max_sequences = bounds.sequences
        return Configure(
            max_sequences=bounds.sequences,
            max_tokens_per_step=bounds.tokens,
            token_seconds=settings.target_token_seconds,
        )

    def step_ends(self) -> None:
        """From a session: a step's tokens are told next."""
        self.listener.step_ends()

    def was_cached(self, text: EngineText, tokens: int) -> None:
        """From a session: the engine had so many tokens of its prompts."""
        text.was_cached(tokens)
        self.listener.was_cached(text.request.id, tokens)

    def stepped(self, report: StepReport) -> None:
        """From a session: what a step did."""
        self._failures = 0
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
        self.send_waiting()

    def ended(self, session: "_Session", texts: list[EngineText], *, worked: bool) -> None:
        """From a session: it is gone, with these under way; whether the engine `worked`."""
        was_current = session is self._session
        if was_current:
            self._leave()
        if texts:
            self._shut()
        # In front of the others, as most of them had tokens: an engine that makes some is none that
        # fails whatever it is sent.
        self._waiting.extendleft(reversed([text for text in texts if text.lost()]))
        if session.tokenizer != self._tokenizer:
            self._drop_waiting(_OTHER_TOKENIZER)
        self.send_waiting()
        if was_current and self._texts is not None:
            self._failures += not worked
            self._connect()

    def _drop_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for text in waiting:
            text.broke_off(Unserved(reason, status=503, retry_after=1.0))


class _Session:
    """One engine's connection, and the texts that are made over it."""

    def __init__(self, link: EngineLink, tokenizer: bytes) -> None:
        self._link = link
        self.tokenizer: Final = tokenizer
        """Of the model behind it."""
        self.connection: Final = EngineConnection(self._frame_came, self._ended)
        self._texts: dict[int, EngineText] = {}
        """By the id of each submit; one text may have several."""
        self._retired = False
        self.worked = False
        """Whether the engine has said how it is."""

    def _frame_came(self, frame: Frame) -> None:
        if isinstance(frame, StepReport):
            self._stepped(frame)
        elif isinstance(frame, Refused):
            self._refused(frame)

    def _ended(self) -> None:
        texts = list(dict.fromkeys(self._texts.values()))
        self._texts.clear()
        self._link.ended(self, texts, worked=self.worked)

    def submit(self, text: EngineText, submit: Submit) -> None:
        """See `Engine`."""
        self._texts[submit.id] = text
        self.send(submit)

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """See `Engine`."""
        if choice is None:
            self._texts.pop(request_id, None)
        self.send(Cancel(id=request_id, choice=choice))
        self._close_if_retired()

    def forget(self, request_id: int) -> None:
        """All texts of a submit have ended."""
        self._texts.pop(request_id, None)
        self._close_if_retired()

    def next_id(self) -> int:
        """See `Engine`."""
        return self._link.next_id()

    def send(self, frame: Frame) -> None:
        """Write a frame."""
        self.connection.send(frame)

    def retire(self) -> None:
        """Another connection takes what comes; this one ends with its last text."""
        self._retired = True
        self._close_if_retired()

    def abort(self) -> None:
        """Hang up."""
        self.connection.abort()

    def _close_if_retired(self) -> None:
        if self._retired and not self._texts:
            self.connection.close()

    def _stepped(self, report: StepReport) -> None:
        self.worked = True
        if self._retired:
            self._hand_out(
                report
            )  # how that engine is says nothing of the one that takes texts now
            return
        self._link.step_ends()
        try:
            self._hand_out(report)
        finally:
            self._link.stepped(report)

    def _hand_out(self, report: StepReport) -> None:
        for number, cached in report.cached:
            if (text := self._texts.get(number)) is not None:
                self._link.was_cached(text, cached)
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

    def _refused(self, refused: Refused) -> None:
        text = self._texts.get(refused.id)
        if text is None:
            return
        if refused.why is Refusal.BUSY:
            text.refused(Busy(refused.message))
        else:
            status = _STATUS[refused.why]
            text.refused(Unserved(refused.message, status=status, answered=True))
        self._link.send_waiting()
