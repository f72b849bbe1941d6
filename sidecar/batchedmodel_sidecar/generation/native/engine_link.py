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

from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Frame,
    Refusal,
    Refused,
    StepReport,
    Submit,
    Token,
)
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_sidecar.errors import Busy, Unserved
from batchedmodel_sidecar.generation.native.engine_connection import EngineConnection, connect
from batchedmodel_sidecar.generation.native.exchange import NativeExchange
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


class LinkListener(Protocol):
    """Who hears of the engine."""

    def open(self) -> None:
        """It takes texts."""
        ...

    def close_engine(self) -> None:
        """It takes none at present."""
        ...

    def step_ends(self) -> None:
        """Tokens of a step are told next."""
        ...

    def found(self, request_id: int, tokens: int) -> None:
        """The engine had so many tokens of a request's prompts; its first tokens are told next."""
        ...

    def stepped(self, report: StepReport) -> None:
        """All of them were; how the engine is behind the step."""
        ...


class EngineLink:
    """Keeps a connection while the model is ready."""

    def __init__(self, socket_path: str, listener: LinkListener, settings: BatchSettings) -> None:
        """Needs a running loop."""
        self._socket_path = socket_path
        self._listener = listener
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._texts: TextPreparer | None = None
        self._version = ""
        self._tokenizer = b""
        """Of the model that is ready, or was last."""
        self._session: _Session | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[NativeExchange] = deque()
        """Texts whose engine was lost, and that were not sent to the next one."""
        self._tried: NativeExchange | None = None
        """The last of them that was."""
        self._is_open = False
        """Whether others are sent."""
        self._failures = 0
        """Connections in a row that could not be made, or ended before the engine said anything."""
        self._next_id = 0

    def ready(self, version: str, texts: TextPreparer) -> None:
        """The model is ready; another version of it has a connection of its own."""
        is_known = texts is self._texts and version == self._version
        if is_known and (self._session or self._connecting):
            return
        self._version = version
        if texts.tokenizer_json != self._tokenizer:
            self._drop_waiting(_OTHER_TOKENIZER)
        self._texts, self._tokenizer = texts, texts.tokenizer_json
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
        if self._session is not None and self._texts is not None:
            self._session.send(self._bounds(self._texts))

    def sequences(self, texts: TextPreparer) -> int:
        """Texts that the engine of this model runs at once, as it was told."""
        return self._bounds(texts).max_sequences

    async def close(self) -> None:
        """Hang up."""
        self.lost()
        self._drop_waiting("this pod is stopping")

    def next_id(self) -> int:
        """See `Submits`."""
        self._next_id += 1
        return self._next_id

    def start(self, exchange: NativeExchange) -> None:
        """Begin with texts; they hear it where none are taken now."""
        if self._session is not None and self._is_open:
            exchange.start(self._session)
        else:
            # Who asks is not told before it has what it asks with.
            self._loop.call_soon(exchange.drop, Busy("the engine cannot be reached"))

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
            self._listener.open()

    def _shut(self) -> None:
        if self._is_open:
            self._is_open = False
            self._listener.close_engine()

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
        return Configure(
            max_sequences=bounds.sequences,
            max_tokens_per_step=bounds.tokens,
            token_seconds=settings.target_token_seconds,
        )

    def step_ends(self) -> None:
        """From a session: a step's tokens are told next."""
        self._listener.step_ends()

    def found(self, exchange: NativeExchange, tokens: int) -> None:
        """From a session: the engine had so many tokens of its prompts."""
        exchange.found(tokens)
        self._listener.found(exchange.request_id, tokens)

    def stepped(self, report: StepReport) -> None:
        """From a session: what a step did."""
        self._failures = 0
        self._listener.stepped(report)
        self.send_waiting()

    def ended(self, session: "_Session", exchanges: list[NativeExchange], *, worked: bool) -> None:
        """From a session: it is gone, with these under way; whether the engine `worked`."""
        was_current = session is self._session
        if was_current:
            self._leave()
        if exchanges:
            self._shut()
        # In front of the others, as most of them had tokens: an engine that makes some is none that
        # fails whatever it is sent.
        self._waiting.extendleft(reversed([exchange for exchange in exchanges if exchange.lost()]))
        if session.tokenizer != self._tokenizer:
            self._drop_waiting(_OTHER_TOKENIZER)
        self.send_waiting()
        if was_current and self._texts is not None:
            self._failures += not worked
            self._connect()

    def _drop_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for exchange in waiting:
            exchange.drop(Unserved(reason, status=503, retry_after=1.0))


class _Session:
    """One engine's connection, and the texts that are made over it."""

    def __init__(self, link: EngineLink, tokenizer: bytes) -> None:
        self._link = link
        self.tokenizer: Final = tokenizer
        """Of the model behind it."""
        self.connection: Final = EngineConnection(self._frame_came, self._ended)
        self._exchanges: dict[int, NativeExchange] = {}
        """By the id of each submit; one exchange may have several."""
        self._retired = False
        self.worked = False
        """Whether the engine has said how it is."""

    def _frame_came(self, frame: Frame) -> None:
        if isinstance(frame, StepReport):
            self._stepped(frame)
        elif isinstance(frame, Refused):
            self._refused(frame)

    def _ended(self) -> None:
        exchanges = list(dict.fromkeys(self._exchanges.values()))
        self._exchanges.clear()
        self._link.ended(self, exchanges, worked=self.worked)

    def submit(self, exchange: NativeExchange, submit: Submit) -> None:
        """See `Submits`."""
        self._exchanges[submit.id] = exchange
        self.send(submit)

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """See `Submits`."""
        if choice is None:
            self._exchanges.pop(request_id, None)
        self.send(Cancel(id=request_id, choice=choice))
        self._close_if_retired()

    def forget(self, request_id: int) -> None:
        """All texts of a submit have ended."""
        self._exchanges.pop(request_id, None)
        self._close_if_retired()

    def next_id(self) -> int:
        """See `Submits`."""
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
        if self._retired and not self._exchanges:
            self.connection.close()

    def _stepped(self, report: StepReport) -> None:
        self.worked = True
        if self._retired:
            self._tell(report)  # how that engine is says nothing of the one that takes texts now
            return
        self._link.step_ends()
        try:
            self._tell(report)
        finally:
            self._link.stepped(report)

    def _tell(self, report: StepReport) -> None:
        for number, found in report.cached:
            if (asked := self._exchanges.get(number)) is not None:
                self._link.found(asked, found)
        told: dict[NativeExchange, list[Token]] = {}
        for token in report.tokens:
            exchange = self._exchanges.get(token.id)
            if exchange is None:
                continue
            tokens = told.get(exchange)
            if tokens is None:
                told[exchange] = [token]
            else:
                tokens.append(token)
        for exchange, tokens in told.items():
            try:
                exchange.told(tokens)
            except Exception as bug:
                # The other texts of this step must hear of their tokens.
                logger.error("telling a text", exc_info=bug)
                exchange.failed(Unserved("error in the sidecar while telling a text", status=500))

    def _refused(self, refused: Refused) -> None:
        exchange = self._exchanges.get(refused.id)
        if exchange is None:
            return
        if refused.why is Refusal.BUSY:
            exchange.failed(Busy(refused.message))
        else:
            status = _STATUS[refused.why]
            exchange.failed(Unserved(refused.message, status=status, answered=True))
        self._link.send_waiting()
