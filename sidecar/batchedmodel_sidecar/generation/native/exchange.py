"""One request at the engine: its texts, from token to token, and what its caller is told of them.

It holds every token that came. When the engine is lost, they go on at the next one: prompt and
tokens are submitted as one prompt, and nothing is told twice.
"""

from __future__ import annotations  # array.array takes no type argument at run time

from array import array
from collections.abc import Callable, Sequence
from itertools import product
from typing import Final, Protocol

from tokenizers import Tokenizer

from batchedmodel_contract.generation.frames import Finish, Sampling, Submit, Token
from batchedmodel_http.response import Headers
from batchedmodel_sidecar.adapters.served import ChosenAdapter
from batchedmodel_sidecar.errors import Fatal, Unserved
from batchedmodel_sidecar.generation.engine_client import AnswerListener, EngineHead
from batchedmodel_sidecar.generation.native.answers.answer_form import AnswerForm, Piece, TextUsage
from batchedmodel_sidecar.generation.native.answers.text_decoder import StopString, TextDecoder
from batchedmodel_sidecar.generation.native.requests.text_request import TextRequest

_MOST_BEHIND: Final = 64 * 1024
"""Bytes that wait for a caller who reads too slowly; then its texts end."""
_STEPS_BEHIND: Final = 4
"""The same in what the largest step makes."""
_MOST_DEATHS: Final = 2
"""Of engines in a row that made no token of a request; then it is not sent again."""
_SEEDS: Final = 1 << 63
_EVENTS: Final[Headers] = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-cache"),
)
_JSON: Final[Headers] = (("Content-Type", "application/json"),)


class Submits(Protocol):
    """Where texts are generated."""

    def submit(self, exchange: NativeExchange, submit: Submit) -> None:
        """Have a text made; its tokens are told to the exchange."""
        ...

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """Nobody waits for it."""
        ...

    def forget(self, request_id: int) -> None:
        """All its texts have ended."""
        ...

    def next_id(self) -> int:
        """A number that no submit has had."""
        ...


class _Text:
    """One choice of one prompt."""

    __slots__ = (
        "decoder", "given", "ids", "index", "number", "prompt_tokens", "reason", "tokens",
    )  # fmt: skip

    def __init__(self, index: int, number: int, prompt: array[int], decoder: TextDecoder) -> None:
        self.index = index
        """Among all texts of the request."""
        self.number = number
        """Among the choices of its prompt."""
        self.prompt_tokens = len(prompt)
        self.ids = array("i", prompt)
        self.decoder = decoder
        self.given = 0
        self.tokens: list[Token] = []
        """Those behind what was told, where probabilities are wanted."""
        self.reason: str | None = None


class NativeExchange:
    """What `GenerationStream` asked for."""

    __slots__ = (
        "_adapter", "_begun", "_behind", "_cached", "_deadline", "_deaths", "_engine", "_form",
        "_keep", "_largest", "_listener", "_open", "_paused", "_priority", "_request", "_salt",
        "_sampling", "_texts", "_weight", "_where", "request_id",
    )  # fmt: skip

    def __init__(
        self,
        listener: AnswerListener,
        request: TextRequest,
        form: AnswerForm,
        tokenizer: Tokenizer,
        sampling: Sampling,
        priority: int,
        deadline: Callable[[], float],
        keep: Callable[[int], bool],
        *,
        salt: str,
        adapter: ChosenAdapter | None = None,
        weight: float = 1.0,
        request_id: int = 0,
    ) -> None:
        """`deadline`: seconds that are left for the first token. `keep`: takes so many bytes for an
        answer that does not stream, if there is room. `salt`: with requests of the same one it
        shares what is computed of its prompts, and what is due by `weight` to them."""
        self._engine: Submits | None = None
        self._listener: AnswerListener | None = listener
        self._request = request
        self._form = form
        self._sampling = sampling
        self._priority = priority
        self._deadline = deadline
        self._keep = keep
        self._salt = salt
        self._adapter = adapter
        self._weight = weight
        self.request_id = request_id
        """By which the admission knows it."""
        self._cached = 0
        self._begun = False
        self._paused = False
        self._behind = bytearray()
        self._largest = 0
        """Bytes that a step made while the caller was behind."""
        self._deaths = 0
        """Of engines in a row that had it; a token sets it back."""
        stops = [StopString(stop) for stop in request.stop]
        self._texts = [
            _Text(at, choice, prompt, TextDecoder(tokenizer, prompt, stops))
            for at, (prompt, choice) in enumerate(product(request.prompts, range(request.choices)))
        ]
        self._open = len(self._texts)
        """Texts that have not ended."""
        self._where: dict[tuple[int, int], _Text] = {}
        """By what the engine calls them."""

    @property
    def suspect(self) -> bool:
        """Whether an engine was lost over it, and none has made a token of it since."""
        return self._deaths > 0 and self._listener is not None

    def start(self, engine: Submits) -> None:
        """Submit all of it to an engine, or what has not ended."""
        if self._listener is None:
            return
        self._engine = engine
        self._where.clear()
        choices = self._request.choices
        for at in range(0, len(self._texts), choices):
            texts = self._texts[at : at + choices]
            if choices > 1 and not any(text.given for text in texts):
                # So that they share what is computed of their prompt.
                self._submit(engine, texts, at // choices)
                continue
            for text in texts:
                if text.reason is None:
                    self._submit(engine, [text], at // choices)

    def found(self, tokens: int) -> None:
        """The engine had so many tokens of a prompt; it is told in front of the first tokens."""
        self._cached += tokens

    def told(self, tokens: Sequence[Token]) -> None:
        """A step of the engine made these tokens."""
        listener = self._listener
        if listener is None:
            return
        data: list[bytes] = []
        count, kept = 0, 0
        for token in tokens:
            text = self._where.get((token.id, token.choice))
            if text is None or text.reason is not None:
                continue  # it ended here while the engine went on
            if token.finish is Finish.FAILED:
                self.failed(Unserved("the engine could not go on with this text", status=503))
                return
            count += 1
            piece = self._add(text, token)
            if not self._request.streams:
                kept += 0 if piece is None else self._form.keep(piece)
                continue
            if text.given == 1:
                data.append(self._form.begin(text.index))
            if piece is not None:
                data.append(self._form.piece(piece))
        if not count:
            return
        self._deaths = 0
        if kept and not self._keep(kept):
            message = (
                "the answers that are made take all of the memory for them; a stream needs none"
            )
            self.failed(Unserved(message, status=503, retry_after=1.0))
            return
        if not self._begun:
            self._begun = True
            if self._request.streams:
                listener.answered(EngineHead(200, "OK", _EVENTS, None, counted=True))
        if self._listener is None:
            return  # its caller left over the head
        listener.tokens(count)
        if joined := b"".join(data):
            self._write(listener, joined)
        if not self._open and self._listener is not None:
            self._end(listener)

    def failed(self, error: Unserved) -> None:
        """It cannot go on; what the engine still has of it ends."""
        self._withdraw()
        self._drop(error)

    def lost(self) -> bool:
        """The engine is gone; whether the texts wait for the next one."""
        self._where.clear()
        self._deaths += 1
        if self._deaths >= _MOST_DEATHS:
            self._drop(Fatal())
        return self._listener is not None

    def drop(self, error: Unserved) -> None:
        """No engine will go on with it."""
        self._drop(error)

    def cancel(self) -> None:
        """Nobody waits for the answer."""
        self._listener = None
        self._withdraw()

    def pause(self) -> None:
        """The caller reads more slowly than tokens come."""
        self._paused = True

    def resume(self) -> None:
        """It has caught up."""
        self._paused = False
        behind, self._behind = bytes(self._behind), bytearray()
        if behind and self._listener is not None:
            self._listener.piece(behind)
        if not self._open and self._listener is not None and self._begun:
            self._end(self._listener)

    def _submit(self, engine: Submits, texts: Sequence[_Text], prompt: int) -> None:
        number, first = engine.next_id(), texts[0]
        sampling = self._sampling
        if prompt and not self._request.seeded:
            # The same prompt twice in a list has two texts.
            sampling = sampling._replace(seed=(sampling.seed + prompt) % _SEEDS)
        for text in texts:
            self._where[number, text.number] = text
        engine.submit(
            self,
            Submit(
                id=number,
                ids=first.ids,
                given=first.given,
                max_tokens=self._request.max_tokens,
                sampling=sampling,
                stop_ids=self._request.stop_ids,
                choices=len(texts),
                first_choice=first.number,
                priority=self._priority,
                # It means the first token of all: the other prompts of a list begin as they can.
                deadline=None if self._begun or prompt else max(0.0, self._deadline()),
                salt=self._salt,
                adapter=0 if self._adapter is None else self._adapter.number,
                weight=self._weight,
            ),
        )

    def _add(self, text: _Text, token: Token) -> Piece | None:
        """Note a token; what is to be told of it, if anything."""
        text.given += 1
        text.ids.append(token.token)
        ended, new = token.finish is not Finish.NONE, ""
        if token.finish is not Finish.STOP:
            new = text.decoder.add(token.token)
            if self._sampling.logprobs is not None:
                text.tokens.append(token)
        if text.decoder.stopped:
            if not ended and self._engine is not None:
                self._engine.cancel(token.id, token.choice)
            text.reason = "stop"
        elif ended:
            new += text.decoder.end()
            text.reason = "length" if token.finish is Finish.LENGTH else "stop"
            if text.decoder.stopped:
                text.reason = "stop"
        if text.reason is not None:
            self._open -= 1
            del self._where[token.id, token.choice]
            others_ended = all(number != token.id for number, _ in self._where)
            if others_ended and self._engine is not None:
                self._engine.forget(token.id)
        if not new and text.reason is None:
            return None
        tokens, text.tokens = text.tokens, []
        return Piece(text.index, new, text.reason, tokens)

    def _write(self, listener: AnswerListener, data: bytes) -> None:
        if not self._paused:
            listener.piece(data)
            return
        self._behind += data
        # What one step makes of many texts with their probabilities may be more than that.
        self._largest = max(self._largest, len(data))
        if len(self._behind) > max(_MOST_BEHIND, _STEPS_BEHIND * self._largest):
            self.failed(Unserved("the answer is read more slowly than it is made", status=503))

    def _end(self, listener: AnswerListener) -> None:
        if self._paused:
            return  # what is behind comes first
        self._listener = None
        given = sum([text.given for text in self._texts])
        usage = TextUsage(self._request.prompt_tokens, given, self._cached)
        if self._request.streams:
            data = self._form.end(usage)
        else:
            data = self._form.whole(usage)
            listener.answered(EngineHead(200, "OK", _JSON, len(data), counted=True))
        if data:
            listener.piece(data)
        listener.ended()

    def _drop(self, error: Unserved) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.broke_off(error)

    def _withdraw(self) -> None:
        """Have the engine forget what it still has."""
        numbers = dict.fromkeys([number for number, _ in self._where])
        self._where.clear()
        if self._engine is not None:
            for number in numbers:
                self._engine.cancel(number)
