"""A text that our own engine makes, from token to token: all choices of all prompts of a request.

It holds every token that came. When the engine is lost, they go on at the next one: prompt and
tokens are submitted as one prompt, and nothing is written twice.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import secrets
import time
import uuid
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple, Protocol

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.generation.frames import Finish, Submit, Token
from batchedmodel_http.response import Headers
from batchedmodel_scheduling.generation.requests import AtOnce
from batchedmodel_sidecar.errors import Busy, Fatal, Unserved
from batchedmodel_sidecar.generation.fields import Fields
from batchedmodel_sidecar.generation.live_text import Admitted, Draft, LiveText
from batchedmodel_sidecar.generation.native.answers import (
    AnswerForm,
    ChatForm,
    CompletionForm,
    GenerateForm,
    Piece,
    StopString,
    TextDecoder,
    TextUsage,
)
from batchedmodel_sidecar.generation.native.preparer import TextEndpoint, TextPreparer, TextRequest
from batchedmodel_sidecar.lora.served import ChosenAdapter

_MOST_BEHIND_BYTES: Final = 64 * 1024
"""That wait for a caller who reads too slowly; then its texts end."""
_STEPS_BEHIND: Final = 4
"""The same in what the largest step makes: many texts with their probabilities are more."""
_MOST_DEATHS: Final = 2
"""Of engines in a row that made no token of a request; then it is not sent again."""
_SEED_BITS: Final = 63
_EVENTS: Final[Headers] = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-cache"),
)


class Submits(Protocol):
    """The engine where a text is generated."""

    def submit(self, text: EngineText, submit: Submit) -> None:
        """Have choices made; the text gets their tokens."""
        ...

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """Its caller has left."""
        ...

    def forget(self, request_id: int) -> None:
        """All its choices have ended."""
        ...

    def next_id(self) -> int:
        """A number that no submit has had."""
        ...


class ServedTexts(NamedTuple):
    """What makes texts, the same for all requests of a version of the model."""

    start: Callable[[EngineText], None]
    """Has a text started at the engine that takes texts; raises `Busy` where none does."""
    preparer: TextPreparer
    version: str
    sequences: int
    """Texts that the engine runs at once."""


class _Choice:
    """One choice of one prompt."""

    __slots__ = (
        "decoder", "ids", "index", "number", "reason", "token_count", "tokens",
    )  # fmt: skip

    def __init__(self, index: int, number: int, prompt: array[int], decoder: TextDecoder) -> None:
        self.index = index
        """Among all choices of the request."""
        self.number = number
        """Among the choices of its prompt."""
        self.ids = array("i", prompt)
        self.decoder = decoder
        self.token_count = 0
        self.tokens: list[Token] = []
        """Those behind what was written, where probabilities are wanted."""
        self.reason: str | None = None


class EngineText(LiveText):
    """One request at our engine."""

    __slots__ = (
        "_adapter", "_cached", "_choices", "_deaths", "_engine", "_form", "_keep",
        "_largest_step", "_open", "_sampling", "_served", "_text", "_where",
    )  # fmt: skip

    def __init__(
        self,
        served: ServedTexts,
        text: TextRequest,
        adapter: ChosenAdapter | None,
        admitted: Admitted,
    ) -> None:
        super().__init__(admitted)
        self._served = served
        self._text = text
        self._adapter = adapter
        self._keep = admitted.hold.keep
        """Takes so many bytes for an answer that does not stream, if there is room."""
        self._takes_events = self._reads_behind = text.streams
        self._engine: Submits | None = None
        self._sampling = text.sampling
        self._form: AnswerForm
        self._choices: list[_Choice] = []
        """None before it is sent: what waits takes little."""
        self._open = 0
        """Choices that have not ended."""
        self._where: dict[tuple[int, int], _Choice] = {}
        """By what the engine calls them."""
        self._cached = 0
        self._largest_step = 0
        """Bytes that a step made while the caller was behind."""
        self._deaths = 0
        """Of engines in a row that had it; a token sets it back."""

    def _begin_choices(self) -> None:
        text, tokenizer = self._text, self._served.preparer.tokenizer
        if not text.seeded:
            self._sampling = text.sampling._replace(seed=secrets.randbits(_SEED_BITS))
        self._form = self._form_of(self._served, text)
        stops = [StopString(stop) for stop in text.stop]
        self._choices = [
            _Choice(at, choice, prompt, TextDecoder(tokenizer, prompt, stops))
            for at, (prompt, choice) in enumerate(product(text.prompts, range(text.choices)))
        ]
        self._open = len(self._choices)

    def _form_of(self, served: ServedTexts, text: TextRequest) -> AnswerForm:
        model = str(self.request.key)
        if text.endpoint in (TextEndpoint.GENERATE, TextEndpoint.GENERATE_STREAM):
            named = {"model_name": model, "model_version": served.version}
            return GenerateForm(named if text.id is None else {"id": text.id, **named})
        chat = text.endpoint is TextEndpoint.CHAT
        prefix, form = ("chatcmpl", ChatForm) if chat else ("cmpl", CompletionForm)
        fields: dict[str, Any] = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        return form(
            fields,
            served.preparer.tokenizer,
            include_usage=text.include_usage,
            logprobs=self._sampling.logprobs is not None,
        )

    @property
    def tokenizer_json(self) -> bytes:
        """By which its prompts were read."""
        return self._served.preparer.tokenizer_json

    @property
    def suspect(self) -> bool:
        """Whether an engine was lost over it, and none has made a token of it since."""
        return self._deaths > 0 and self.is_at_server

    def _start(self) -> None:
        self._deaths = 0
        if not self._choices:
            self._begin_choices()
        try:
            self._served.start(self)
        except Busy as error:
            self.broke_off(error)

    def start(self, engine: Submits) -> None:
        """Submit all of it to an engine, or what has not ended."""
        if not self.is_at_server:
            return
        self._engine = engine
        self._where.clear()
        choices = self._text.choices
        for at in range(0, len(self._choices), choices):
            same = self._choices[at : at + choices]
            if choices > 1 and not any(choice.token_count for choice in same):
                # So that they share what is computed of their prompt.
                self._submit(engine, same, at // choices)
                continue
            for choice in same:
                if choice.reason is None:
                    self._submit(engine, [choice], at // choices)

    def was_cached(self, tokens: int) -> None:
        """The engine had so many tokens of a prompt; this comes in front of the first tokens."""
        self._cached += tokens

    def took(self, tokens: Sequence[Token]) -> None:
        """A step of the engine made these tokens."""
        if not self.is_at_server:
            return
        data: list[bytes] = []
        count, size = 0, 0
        streams, form, where = self._text.streams, self._form, self._where
        for token in tokens:
            choice = where.get((token.id, token.choice))
            if choice is None or choice.reason is not None:
                continue  # it ended here while the engine went on
            if token.finish is Finish.FAILED:
                self.refused(Unserved("the engine could not go on with this text", status=503))
                return
            count += 1
            piece = self._add(choice, token)
            if not streams:
                size += 0 if piece is None else form.keep(piece)
                continue
            if choice.token_count == 1:
                data.append(form.begin(choice.index))
            if piece is not None:
                data.append(form.piece(piece))
        if not count:
            return
        self._deaths = 0
        if size and not self._keep(size):
            message = (
                "the answers that are made take all of the memory for them; a stream needs none"
            )
            self.refused(Unserved(message, status=503, retry_after=1.0))
            return
        if streams and not self.output_tokens:
            self.begin_answer(_EVENTS)
        self.output_tokens += count
        self.heard(count)
        if data:
            self._write_step(b"".join(data))
        if not self._open and self.is_at_server:
            self._end()

    def refused(self, error: Unserved) -> None:
        """It cannot go on; what the engine still has of it ends."""
        self._withdraw()
        self.broke_off(error)

    def lost(self) -> bool:
        """The engine is gone; whether the text waits for the next one."""
        self._where.clear()
        self._deaths += 1
        if self._deaths >= _MOST_DEATHS:
            self.broke_off(Fatal())
        return self.is_at_server

    def _submit(self, engine: Submits, choices: Sequence[_Choice], prompt: int) -> None:
        number, first, request = engine.next_id(), choices[0], self.request
        sampling = self._sampling
        if prompt and not self._text.seeded:
            # The same prompt twice in a list has two texts.
            sampling = sampling._replace(seed=(sampling.seed + prompt) % (1 << _SEED_BITS))
        for choice in choices:
            self._where[number, choice.number] = choice
        # It means the first token of all: the other prompts of a list begin as they can.
        has_deadline = not self.output_tokens and not prompt
        engine.submit(
            self,
            Submit(
                id=number,
                ids=first.ids,
                given=first.token_count,
                max_tokens=self._text.max_tokens,
                sampling=sampling,
                stop_ids=self._text.stop_ids,
                choices=len(choices),
                first_choice=first.number,
                priority=int(request.priority),
                deadline=max(0.0, request.deadline - self._loop.time()) if has_deadline else None,
                # How fast a prompt is read would tell one tenant what another has asked.
                salt=request.share.tenant,
                adapter=0 if self._adapter is None else self._adapter.number,
                weight=request.share.weight,
            ),
        )

    def _add(self, choice: _Choice, token: Token) -> Piece | None:
        """Note a token; what is to be written of it, if anything."""
        choice.token_count += 1
        choice.ids.append(token.token)
        ended, new = token.finish is not Finish.NONE, ""
        if token.finish is not Finish.STOP:
            new = choice.decoder.add(token.token)
            if self._sampling.logprobs is not None:
                choice.tokens.append(token)
        if choice.decoder.stopped:
            if not ended and self._engine is not None:
                self._engine.cancel(token.id, token.choice)
            choice.reason = "stop"
        elif ended:
            new += choice.decoder.end()
            choice.reason = "length" if token.finish is Finish.LENGTH else "stop"
            if choice.decoder.stopped:
                choice.reason = "stop"
        if choice.reason is not None:
            self._open -= 1
            del self._where[token.id, token.choice]
            others_ended = all(number != token.id for number, _ in self._where)
            if others_ended and self._engine is not None:
                self._engine.forget(token.id)
        if not new and choice.reason is None:
            return None
        tokens, choice.tokens = choice.tokens, []
        return Piece(choice.index, new, choice.reason, tokens)

    def _write_step(self, data: bytes) -> None:
        self.write(data)
        if self._paused_at is None:
            return
        self._largest_step = max(self._largest_step, len(data))
        if len(self._unsent) > max(_MOST_BEHIND_BYTES, _STEPS_BEHIND * self._largest_step):
            self.refused(Unserved("the answer is read more slowly than it is made", status=503))

    def _end(self) -> None:
        text = self._text
        usage = TextUsage(text.prompt_tokens, self.output_tokens, self._cached)
        if text.streams:
            self.write(self._form.end(usage))
            self.ended()
        else:
            self.answer_whole(self._form.whole(usage))

    def _withdraw(self) -> None:
        numbers = dict.fromkeys([number for number, _ in self._where])
        self._where.clear()
        if self._engine is not None:
            for number in numbers:
                self._engine.cancel(number)


def draft_of(served: ServedTexts, request: TextRequest, adapter: ChosenAdapter | None) -> Draft:
    """A request that was read, with what matters of it to the queue."""
    name = None if adapter is None else adapter.name
    return Draft(
        Fields(
            model=name or served.preparer.name,
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            choices=request.texts,
            # Its tokens are seen as they come, whatever its caller gets.
            streams=True,
            adapter=name,
            at_once=at_once(request, served.preparer.description, served.sequences),
            whole=not request.streams,
            # Of each text: nothing but its greatest length may end it, or anything may.
            least_tokens=1 if request.stop or request.stop_ids else request.max_tokens,
        ),
        partial(EngineText, served, request, adapter),
    )


def at_once(request: TextRequest, engine: GenerationDescription, sequences: int) -> AtOnce:
    """How much of it an engine runs at once that runs so many, where it has nothing else.

    Texts of one prompt share it, and begin together where there are places for them. Of a long list
    of prompts each begins where there is room for it.
    """
    if len(request.prompts) == 1:
        return AtOnce(len(request.prompts[0]), min(request.choices, sequences))
    longest = max(map(len, request.prompts))
    texts_in_cache = engine.blocks * engine.block_tokens // (longest + request.max_tokens)
    texts = max(1, min(request.texts, sequences, texts_in_cache))
    return AtOnce(min(request.prompt_tokens, texts * longest), texts)
