"""Engines and their texts: each version has its own, and no text is lost over an engine's end."""

from __future__ import annotations  # array.array takes no type argument at run time

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Finish,
    Refusal,
    Refused,
    Sampling,
    StepReport,
    Submit,
    Token,
    read_cancel,
    read_configure,
    read_submit,
    write_refused,
    write_step,
)
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.kinds import Kind
from batchedmodel_contract.link.model_frames import write_engine
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_scheduling.generation.admission import EngineView, GenerationRequest
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.errors import Fatal, Unserved
from batchedmodel_sidecar.generation.live_text import Admitted, LiveText
from batchedmodel_sidecar.generation.native.engine_text import EngineText, ServedTexts
from batchedmodel_sidecar.generation.native.engines import Engines
from batchedmodel_sidecar.generation.native.preparer import TextEndpoint, TextPreparer, TextRequest
from batchedmodel_sidecar.http.request import RequestHead
from support.byte_tokenizer import described, fallback_tokenizer_json, tokenizer_json

_TEXTS = TextPreparer("m", described(), tokenizer_json())
_REQUEST = TextRequest(
    endpoint=TextEndpoint.COMPLETIONS,
    prompts=(array("i", [1, 2]),),
    sampling=Sampling(),
    seeded=True,
    max_tokens=5,
)


@dataclass(eq=False)
class Server:
    """The other end of the link, and its engines in the order in which they came."""

    came: list[list[Submit | Cancel | Configure]] = field(default_factory=list)
    """By engine: what it was sent."""
    versions: list[str] = field(default_factory=list)
    says: bool = True
    """Whether each engine says at once how it is."""
    last_id: int = 0
    link: Any = None

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def send(self, kind: Kind, frame_id: int, parts: Sequence[Buffer] = (b"",)) -> None:
        content = memoryview(b"".join(parts))
        if kind is Kind.SUBMIT:
            number, submit = read_submit(frame_id, content)
            self.came[number - 1].append(submit)
        elif kind is Kind.CANCEL:
            number, cancel = read_cancel(frame_id, content)
            self.came[number - 1].append(cancel)
        else:
            self.came[frame_id - 1].append(read_configure(content))

    def begin(self, version: str = "1") -> None:
        """An engine of this version takes texts."""
        self.came.append([])
        self.versions.append(version)
        self.hand_over(Kind.ENGINE, len(self.came), [write_engine(version)])
        if self.says:
            self.tell(len(self.came) - 1)

    def end(self, number: int) -> None:
        """An engine ends, and another one takes its place."""
        self.hand_over(Kind.ENGINE_ENDED, number + 1, [b""])
        self.begin(self.versions[number])

    def submits(self, number: int) -> list[Submit]:
        return [frame for frame in self.came[number] if isinstance(frame, Submit)]

    def tell(self, number: int, *tokens: Token) -> None:
        report = StepReport(
            seconds=0.01,
            running=1,
            waiting=0,
            free_blocks=9,
            blocks=10,
            backlog=0,
            preemptions=0,
            prefill_tokens=1,
            tokens=tokens,
        )
        self.hand_over(Kind.STEP, number + 1, write_step(report))

    def refuse(self, refused: Refused) -> None:
        self.hand_over(Kind.REFUSED, refused.id, write_refused(refused))

    def hand_over(self, kind: Kind, frame_id: int, parts: Sequence[Buffer]) -> None:
        self.link.frame(kind, frame_id, memoryview(b"".join(parts)))


@dataclass(eq=False)
class Hearing:
    """Who hears of the engine."""

    opened: int = 0
    closed: int = 0
    steps: int = 0

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def step_ends(self) -> None:
        self.steps += 1

    def was_cached(self, request_id: int, tokens: int) -> None:
        assert tokens > 0

    def stepped(self, view: EngineView, preemptions: int) -> None:
        assert self.steps


class Caller:
    """Whoever asked for a text, and who hears of it."""

    def __init__(self, link: Engines) -> None:
        self.tokens = 0
        self.outcomes: list[Outcome] = []
        self.rests: list[float] = []
        now = asyncio.get_running_loop().time()
        queued = GenerationRequest(
            id=1, share=Share("a"), key="m", prompt_tokens=2, max_tokens=5, choices=1,
            arrived=now, deadline=now + 30.0, streams=True,
        )  # fmt: skip
        head = RequestHead(method="POST", target="/v1/completions", headers={}, declared=0)
        held = ByteBudget(10**6).hold(Share("a"))
        served = ServedTexts(link.start, _TEXTS, "1", 3)
        self.text = EngineText(served, _REQUEST, None, Admitted(self, queued, head, held, 30.0, 0))
        self.text.send()

    def heard(self, text: LiveText, tokens: int, now: float) -> None:
        self.tokens += tokens

    def comes_back(self, text: LiveText, rest_seconds: float) -> None:
        self.rests.append(rest_seconds)

    def ended(self, text: LiveText, outcome: Outcome, *, waited: bool) -> None:
        self.outcomes.append(outcome)

    @property
    def ends(self) -> int:
        """How often it was answered whole."""
        return self.outcomes.count(Outcome.COMPLETED)


def _served() -> tuple[Server, Engines, Hearing]:
    """A model that is ready, with an engine that takes texts."""
    server, hearing = Server(), Hearing()
    link = server.link = Engines(server, BatchSettings(max_sequences=3))
    link.listener = hearing
    link.ready("1", _TEXTS)
    server.begin()
    assert hearing.opened == 1
    return server, link, hearing


async def test_the_engine_is_told_its_bounds_first_and_again_when_they_change() -> None:
    server, link, _ = _served()
    link.configure(BatchSettings(max_sequences=5))
    bounds = [frame for frame in server.came[0] if isinstance(frame, Configure)]
    assert [one.max_sequences for one in bounds] == [3, 5]
    assert len(server.came[0]) == 2


async def test_another_version_of_the_same_files_has_an_engine_of_its_own() -> None:
    server, link, hearing = _served()
    caller = Caller(link)
    link.ready("1", _TEXTS)  # nothing has changed
    server.begin("2")
    assert (hearing.opened, hearing.closed) == (1, 0)
    link.ready("2", _TEXTS)
    assert (hearing.opened, hearing.closed) == (2, 1)
    Caller(link)
    assert server.submits(1)
    # What runs at the old version ends there.
    steps = hearing.steps
    server.tell(0, _token(server.submits(0)[0], "a", Finish.LENGTH))
    assert caller.ends
    assert hearing.steps == steps, "how the old engine is says nothing of the new one"
    server.hand_over(Kind.ENGINE_ENDED, 1, [b""])
    assert (hearing.opened, hearing.closed) == (2, 1)


async def test_an_engine_that_comes_before_or_behind_its_model_is_used() -> None:
    server, hearing = Server(), Hearing()
    link = server.link = Engines(server, BatchSettings())
    link.listener = hearing
    server.begin()
    link.ready("1", _TEXTS)
    assert hearing.opened == 1
    link.ready("2", _TEXTS)
    assert hearing.closed == 1
    server.begin("2")
    assert hearing.opened == 2


async def test_a_text_that_has_begun_goes_on_at_the_next_engine() -> None:
    server, link, hearing = _served()
    (caller,) = _begun(server, link, texts=1)
    server.end(0)
    again = server.submits(1)[0]
    assert (list(again.ids), again.given) == ([1, 2, ord("a")], 1)
    server.tell(1, _token(again, "b", Finish.LENGTH))
    assert caller.ends
    assert hearing.closed == 1


async def test_a_text_goes_on_when_a_model_that_was_not_ready_is_ready_again() -> None:
    """As after a pass that took too long: the engine is the same, and must not go on with it."""
    server, link, hearing = _served()
    (caller,) = _begun(server, link, texts=1)
    link.lost()
    first = server.submits(0)[0].id
    assert server.came[0][-1] == Cancel(id=first)
    server.tell(0, Token(first, 0, ord("x"), 0.0, Finish.NONE))
    link.ready("1", _TEXTS)
    again = server.submits(0)[1]
    assert (list(again.ids), again.given) == ([1, 2, ord("a")], 1)
    server.tell(0, _token(again, "b", Finish.LENGTH))
    assert caller.ends
    assert hearing.opened == 2


def _begun(server: Server, link: Engines, texts: int) -> list[Caller]:
    """Texts of which the first engine has made a token each."""
    callers = [Caller(link) for _ in range(texts)]
    assert len(server.submits(0)) == texts
    server.tell(0, *(_token(one, "a") for one in server.submits(0)))
    assert all(one.tokens for one in callers)
    return callers


def _token(submit: Submit, text: str, finish: Finish = Finish.NONE) -> Token:
    return Token(submit.id, 0, ord(text), 0.0, finish)


async def test_texts_of_a_connection_that_ends_go_on_over_the_next_one() -> None:
    server, link, hearing = _served()
    (caller,) = _begun(server, link, texts=1)
    link.disconnected()
    link.lost()
    link.ready("1", _TEXTS)
    server.begin()
    server.tell(1, _token(server.submits(1)[0], "a", Finish.LENGTH))
    assert caller.ends
    assert hearing.opened == 2


async def test_texts_of_a_lost_engine_are_sent_to_the_next_one_behind_the_other() -> None:
    """An engine that died at once again would end all of them otherwise."""
    server, link, hearing = _served()
    callers = _begun(server, link, texts=2)
    new = Caller(link)
    assert len(server.submits(0)) == 3
    server.end(0)
    for sent in (1, 2, 3):
        assert len(server.submits(1)) == sent
        server.tell(1)  # a step that made no token of it
        assert len(server.submits(1)) == sent
        assert hearing.opened == 1, "others come behind all that wait"
        server.tell(1, _token(server.submits(1)[-1], "b"))
    assert hearing.opened == 2
    assert [one.outcomes for one in (*callers, new)] == [[], [], []]


async def test_of_the_texts_of_a_lost_engine_only_that_ends_over_which_the_next_one_is_lost() -> (
    None
):
    server, link, hearing = _served()
    callers = _begun(server, link, texts=3)
    server.end(0)
    server.tell(1, _token(server.submits(1)[0], "b"))
    assert len(server.submits(1)) == 2
    server.end(1)
    for sent in (1, 2):
        assert len(server.submits(2)) == sent
        server.tell(2, _token(server.submits(2)[-1], "c", Finish.LENGTH))
    assert hearing.opened == 2
    assert [one.ends for one in callers] == [1, 0, 1]
    assert isinstance(callers[1].text.answer.exception(), Fatal)


async def test_texts_are_sent_once_the_engine_has_said_how_it_is() -> None:
    """One that dies over its bounds, at once, has died over no text."""
    server, link, _ = _served()
    (caller,) = _begun(server, link, texts=1)
    server.says = False
    server.end(0)
    for number in (1, 2, 3):
        assert [type(frame) for frame in server.came[number]] == [Configure]
        server.says = number == 3
        server.end(number)
    server.tell(4, _token(server.submits(4)[0], "b", Finish.LENGTH))
    assert caller.ends


async def test_what_ends_without_a_token_keeps_no_other_from_the_next_engine() -> None:
    server, link, hearing = _served()
    refused, busy, left, last = _begun(server, link, texts=4)
    server.end(0)
    assert len(server.submits(1)) == 1
    for at, why in enumerate((Refusal.FAILED, Refusal.BUSY)):
        server.refuse(Refused(id=server.submits(1)[at].id, why=why, message="no"))
        assert len(server.submits(1)) == at + 2
    left.text.cancel()
    server.tell(1)  # as an engine does that lets go of one
    assert len(server.submits(1)) == 4
    server.tell(1, _token(server.submits(1)[3], "b", Finish.LENGTH))
    assert hearing.opened == 2
    ends = [one.outcomes for one in (refused, busy, left, last)]
    assert ends == [[Outcome.FAILED], [], [Outcome.CANCELLED], [Outcome.COMPLETED]]
    assert busy.rests


async def test_without_an_engine_nobody_takes_a_text() -> None:
    caller = Caller(Engines(Server(), BatchSettings()))
    assert caller.rests
    assert caller.text.waits


async def test_a_text_does_not_go_on_at_a_model_with_another_tokenizer() -> None:
    other = TextPreparer("m", described(), fallback_tokenizer_json())
    server, link, hearing = _served()
    (caller,) = _begun(server, link, texts=1)
    link.lost()
    server.begin("2")
    link.ready("2", other)
    assert caller.outcomes == [Outcome.FAILED]
    error = caller.text.answer.exception()
    assert isinstance(error, Unserved)
    assert error.status == 503
    assert hearing.opened == 2
    assert not server.submits(1)


async def test_a_text_that_waited_is_not_sent_to_a_model_with_another_tokenizer() -> None:
    # Its prompt's numbers would name other words there, and it would be answered all the same.
    server, link, _ = _served()
    link.ready("2", TextPreparer("m", described(), fallback_tokenizer_json()))
    server.begin("2")
    caller = Caller(link)
    assert caller.outcomes == [Outcome.FAILED]
    error = caller.text.answer.exception()
    assert isinstance(error, Unserved)
    assert error.status == 503
    assert not server.submits(1)


async def test_an_engine_of_another_version_that_ends_takes_no_waiting_text_along() -> None:
    server, link, _ = _served()
    (caller,) = _begun(server, link, texts=1)
    link.lost()
    server.begin("2")
    server.hand_over(Kind.ENGINE_ENDED, 2, [b""])
    assert not caller.outcomes
    link.ready("1", _TEXTS)
    assert len(server.submits(0)) == 2


async def test_a_pod_that_stops_ends_the_texts_that_wait() -> None:
    server, link, _ = _served()
    (caller,) = _begun(server, link, texts=1)
    await link.close()
    assert "this pod is stopping" in str(caller.text.answer.exception())
    assert isinstance(server.came[0][-1], Cancel)


async def test_an_engine_that_begins_twice_or_beside_too_many_is_nonsense() -> None:
    """Texts of the first waited for ever, and new ones went to an engine that nothing heard."""
    server, _, _ = _served()
    with pytest.raises(InvalidInput, match="engine: 1 has the number of another one"):
        server.hand_over(Kind.ENGINE, 1, [write_engine("1")])
    for number in range(2, 17):
        server.hand_over(Kind.ENGINE, number, [write_engine(str(number))])
    with pytest.raises(InvalidInput, match="engine: 17 has the number"):
        server.hand_over(Kind.ENGINE, 17, [write_engine("17")])
