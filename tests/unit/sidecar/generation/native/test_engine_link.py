"""The connection to the engine: one for each version, and no text is lost over its end."""

from __future__ import annotations  # array.array takes no type argument at run time

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchedmodel_contract.generation.frames import (
    Configure,
    Finish,
    Frame,
    FrameReader,
    Refusal,
    Refused,
    Sampling,
    StepReport,
    Submit,
    Token,
    write_frame,
)
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_scheduling.generation.admission import EngineView, GenerationRequest
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.errors import Fatal, Unserved
from batchedmodel_sidecar.generation.live_text import Admitted, LiveText
from batchedmodel_sidecar.generation.native.engine_link import EngineLink
from batchedmodel_sidecar.generation.native.engine_text import EngineText, ServedTexts
from batchedmodel_sidecar.generation.native.requests.preparer import TextPreparer
from batchedmodel_sidecar.generation.native.requests.text_request import TextEndpoint, TextRequest
from batchedmodel_sidecar.http.routed_head import RequestHead
from support.byte_tokenizer import described, fallback_tokenizer_json, tokenizer_json

_TEXTS = TextPreparer("m", described(), tokenizer_json())
_SECONDS = 10.0
_REQUEST = TextRequest(
    endpoint=TextEndpoint.COMPLETIONS,
    prompts=(array("i", [1, 2]),),
    sampling=Sampling(),
    seeded=True,
    max_tokens=5,
)


@dataclass(eq=False)
class Server:
    """An engine's end of the socket; each connection notes what came."""

    path: Path
    came: list[list[Frame]] = field(default_factory=list)
    transports: list[Any] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    says: bool = True
    """Whether whoever comes is told at once how the engine is."""

    def connection(self) -> asyncio.Protocol:
        return _Accepted(self)

    def submits(self, number: int) -> list[Submit]:
        came = self.came[number] if number < len(self.came) else []
        return [frame for frame in came if isinstance(frame, Submit)]

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
        self.transports[number].write(write_frame(report))


class _Accepted(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._frames = FrameReader()
        self._number = len(server.came)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._server.came.append([])
        self._server.transports.append(transport)
        self._server.ended.append(False)
        if self._server.says:
            self._server.tell(self._number)

    def data_received(self, data: bytes) -> None:
        self._server.came[self._number] += self._frames.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.ended[self._number] = True


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

    def __init__(self, link: EngineLink) -> None:
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
        served = ServedTexts(link, _TEXTS, "1")
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


@asynccontextmanager
async def _served(folder: Path) -> AsyncIterator[tuple[Server, EngineLink, Hearing]]:
    server = Server(folder / "engine")
    loop = asyncio.get_running_loop()
    listening = await loop.create_unix_server(server.connection, server.path)
    hearing = Hearing()
    link = EngineLink(str(server.path), BatchSettings(max_sequences=3))
    link.listener = hearing
    try:
        yield server, link, hearing
    finally:
        await link.close()
        listening.close()
        await asyncio.sleep(0.01)  # what was on its way arrives
        for transport in server.transports:
            transport.abort()
        await asyncio.sleep(0)


async def _until(holds: object) -> None:
    assert callable(holds)
    async with asyncio.timeout(_SECONDS):
        while not holds():  # noqa: ASYNC110  the other end of a socket tells nobody
            await asyncio.sleep(0.005)


async def test_the_engine_is_told_its_bounds_first_and_again_when_they_change(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as (server, link, hearing):
        link.ready("1", _TEXTS)
        await _until(lambda: hearing.opened)
        link.configure(BatchSettings(max_sequences=5))
        await _until(lambda: server.came and len(server.came[0]) == 2)
        bounds = [frame for frame in server.came[0] if isinstance(frame, Configure)]
        assert [one.max_sequences for one in bounds] == [3, 5]


async def test_another_version_of_the_same_files_has_a_connection_of_its_own(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as (server, link, hearing):
        link.ready("1", _TEXTS)
        await _until(lambda: hearing.opened == 1)
        caller = Caller(link)
        link.ready("1", _TEXTS)  # nothing has changed
        assert (hearing.opened, hearing.closed) == (1, 0)
        link.ready("2", _TEXTS)
        await _until(lambda: hearing.opened == 2)
        Caller(link)
        await _until(lambda: len(server.came) == 2 and server.submits(1))
        # What runs at the old version ends there, and its connection behind it.
        number, steps = server.submits(0)[0].id, hearing.steps
        server.tell(0, Token(number, 0, ord("a"), 0.0, Finish.LENGTH))
        await _until(lambda: caller.ends)
        await _until(lambda: server.ended[0])
        assert hearing.steps == steps, "how the old engine is says nothing of the new one"
        assert not server.ended[1]
        assert (hearing.opened, hearing.closed) == (2, 1)


async def test_a_text_that_has_begun_goes_on_at_the_next_engine(tmp_path: Path) -> None:
    async with _served(tmp_path) as (server, link, hearing):
        link.ready("1", _TEXTS)
        await _until(lambda: hearing.opened == 1)
        caller = Caller(link)
        await _until(lambda: server.submits(0))
        server.tell(0, Token(server.submits(0)[0].id, 0, ord("a"), 0.0, Finish.NONE))
        await _until(lambda: caller.tokens)
        server.transports[0].abort()
        await _until(lambda: len(server.came) == 2 and server.submits(1))
        again = server.submits(1)[0]
        assert (list(again.ids), again.given) == ([1, 2, ord("a")], 1)
        server.tell(1, Token(again.id, 0, ord("b"), 0.0, Finish.LENGTH))
        await _until(lambda: caller.ends)
        assert hearing.closed == 1


async def _begun(server: Server, link: EngineLink, texts: int) -> list[Caller]:
    """Texts of which the first engine has made a token each."""
    callers = [Caller(link) for _ in range(texts)]
    await _until(lambda: len(server.submits(0)) == texts)
    server.tell(0, *(_token(one, "a") for one in server.submits(0)))
    await _until(lambda: all(one.tokens for one in callers))
    return callers


def _token(submit: Submit, text: str, finish: Finish = Finish.NONE) -> Token:
    return Token(submit.id, 0, ord(text), 0.0, finish)


async def test_nonsense_ends_the_connection_and_its_texts_go_on_at_the_next_one(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as (server, link, hearing):
        link.ready("1", _TEXTS)
        await _until(lambda: hearing.opened == 1)
        caller = Caller(link)
        await _until(lambda: server.submits(0))
        server.transports[0].write(b"\xff" * 64)
        await _until(lambda: len(server.came) == 2 and server.submits(1))
        server.tell(1, _token(server.submits(1)[0], "a", Finish.LENGTH))
        await _until(lambda: caller.ends)
        assert hearing.opened == 2


async def test_texts_of_a_lost_engine_are_sent_to_the_next_one_behind_the_other(
    tmp_path: Path,
) -> None:
    """An engine that died at once again would end all of them otherwise."""
    async with _served(tmp_path) as (server, link, hearing):
        link.ready("1", _TEXTS)
        await _until(lambda: hearing.opened == 1)
        callers = await _begun(server, link, texts=2)
        new = Caller(link)
        await _until(lambda: len(server.submits(0)) == 3)
        server.transports[0].abort()
        for sent in (1, 2, 3):
            await _until(lambda sent=sent: len(server.submits(1)) == sent)
            server.tell(1)  # a step that made no token of it
            await asyncio.sleep(0.02)
            assert len(server.submits(1)) == sent
            assert hearing.opened == 1, "others come behind all that wait"
            server.tell(1, _token(server.submits(1)[-1], "b"))
        await _until(lambda: hearing.opened == 2)
        assert [one.outcomes for one in (*callers, new)] == [[], [], []]


async def test_of_the_texts_of_a_lost_engine_only_that_ends_over_which_the_next_one_is_lost(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as (server, link, hearing):
        link.ready("1", _TEXTS)
        await _until(lambda: hearing.opened == 1)
        callers = await _begun(server, link, texts=3)
        server.transports[0].abort()
        await _until(lambda: server.submits(1))
        server.tell(1, _token(server.submits(1)[0], "b"))
        await _until(lambda: len(server.submits(1)) == 2)
        server.transports[1].abort()
        for sent in (1, 2):
            await _until(lambda sent=sent: len(server.submits(2)) == sent)
            server.tell(2, _token(server.submits(2)[-1], "c", Finish.LENGTH))
        await _until(lambda: hearing.opened == 2)
        assert [one.ends for one in callers] == [1, 0, 1]
        assert isinstance(callers[1].text.answer.exception(), Fatal)


async def test_texts_are_sent_once_the_engine_has_said_how_it_is(tmp_path: Path) -> None:
    """One that dies over its bounds, at once, has died over no text."""
    async with _served(tmp_path) as (server, link, hearing):
        link.ready("1", _TEXTS)
        await _until(lambda: hearing.opened == 1)
        (caller,) = await _begun(server, link, texts=1)
        server.says = False
        server.transports[0].abort()
        for number in (1, 2, 3):
            await _until(lambda number=number: len(server.came) == number + 1)
            await _until(lambda number=number: server.came[number])
            assert not server.submits(number)
            server.says = number == 3
            server.transports[number].abort()
        await _until(lambda: server.submits(4))
        server.tell(4, _token(server.submits(4)[0], "b", Finish.LENGTH))
        await _until(lambda: caller.ends)


async def test_what_ends_without_a_token_keeps_no_other_from_the_next_engine(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as (server, link, hearing):
        link.ready("1", _TEXTS)
        await _until(lambda: hearing.opened == 1)
        refused, busy, left, last = await _begun(server, link, texts=4)
        server.transports[0].abort()
        await _until(lambda: len(server.submits(1)) == 1)
        for at, why in enumerate((Refusal.FAILED, Refusal.BUSY)):
            refusal = Refused(id=server.submits(1)[at].id, why=why, message="no")
            server.transports[1].write(write_frame(refusal))
            await _until(lambda at=at: len(server.submits(1)) == at + 2)
        left.text.cancel()
        server.tell(1)  # as an engine does that lets go of one
        await _until(lambda: len(server.submits(1)) == 4)
        server.tell(1, _token(server.submits(1)[3], "b", Finish.LENGTH))
        await _until(lambda: hearing.opened == 2)
        ends = [one.outcomes for one in (refused, busy, left, last)]
        assert ends == [[Outcome.FAILED], [], [Outcome.CANCELLED], [Outcome.COMPLETED]]
        assert busy.rests


async def test_without_a_connection_nobody_takes_a_text(tmp_path: Path) -> None:
    async with _served(tmp_path) as (_, link, _hearing):
        caller = Caller(link)
        assert caller.rests
        assert caller.text.waits


async def test_a_text_does_not_go_on_at_a_model_with_another_tokenizer(tmp_path: Path) -> None:
    other = TextPreparer("m", described(), fallback_tokenizer_json())
    async with _served(tmp_path) as (server, link, hearing):
        link.ready("1", _TEXTS)
        await _until(lambda: hearing.opened == 1)
        caller = Caller(link)
        await _until(lambda: server.submits(0))
        server.tell(0, Token(server.submits(0)[0].id, 0, ord("a"), 0.0, Finish.NONE))
        await _until(lambda: caller.tokens)
        link.lost()
        await _until(lambda: server.ended[0])
        link.ready("1", other)
        assert caller.outcomes == [Outcome.FAILED]
        error = caller.text.answer.exception()
        assert isinstance(error, Unserved)
        assert error.status == 503
        await _until(lambda: hearing.opened == 2)
        assert not server.submits(1)
