"""One engine of our model server, and the texts that it makes.

Engines have numbers on the link. A step of one is one frame, and one callback here tells all texts
of it.
"""

import logging
from typing import Final, Protocol

from batchedmodel_contract.generation.frames import (
    Configure,
    Refusal,
    Refused,
    StepReport,
    Submit,
    Token,
    write_cancel,
    write_configure,
    write_submit,
)
from batchedmodel_contract.link.kinds import Kind
from batchedmodel_sidecar.errors import Busy, Unserved
from batchedmodel_sidecar.generation.native.engine_text import EngineText
from batchedmodel_sidecar.model import FrameChannel

logger: Final = logging.getLogger(__name__)

_STATUS: Final[dict[Refusal, int]] = {
    Refusal.INVALID: 400,
    Refusal.LATE: 504,
    Refusal.FAILED: 500,
}


class StepListener(Protocol):
    """What is told of an engine's requests."""

    def was_cached(self, text: EngineText, tokens: int) -> None:
        """The engine had so many tokens of its prompts; its first tokens come next."""
        ...


class EngineConnection:
    """What goes to one engine, and what comes from it."""

    def __init__(
        self, channel: FrameChannel, number: int, version: str, listener: StepListener
    ) -> None:
        """`version`: of the model whose texts it makes."""
        self._channel = channel
        self._listener = listener
        self._texts: dict[int, EngineText] = {}
        """By the id of each submit; one text may have several."""
        self.number: Final = number
        self.version: Final = version
        self.tokenizer = b""
        """Of the model behind it."""
        self.worked = False
        """Whether the engine has said how it is."""

    def submit(self, text: EngineText, submit: Submit) -> None:
        """See `Engine`."""
        self._texts[submit.id] = text
        self._channel.send(Kind.SUBMIT, submit.id, write_submit(submit, self.number))

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """See `Engine`."""
        if choice is None:
            self._texts.pop(request_id, None)
        self._channel.send(Kind.CANCEL, request_id, [write_cancel(self.number, choice)])

    def forget(self, request_id: int) -> None:
        """All texts of a submit have ended."""
        self._texts.pop(request_id, None)

    def next_id(self) -> int:
        """See `Engine`."""
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
                self._listener.was_cached(text, cached)
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
