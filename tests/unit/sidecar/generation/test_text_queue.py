"""Requests for generated text in front of a pretended server: let in, let go, settled once."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.response import Response, Sending, StreamedResponse
from batchedmodel_sidecar.backends.upstream.connection import AnswerHead, AnswerListener
from batchedmodel_sidecar.body.byte_budget import ByteBudget, Hold
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.generation.live_text import Draft
from batchedmodel_sidecar.generation.text_queue import TextQueue
from batchedmodel_sidecar.generation.upstream_texts import AskText, UpstreamTexts
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.http.responses import Refusals
from batchedmodel_sidecar.protocols.table import public_protocols
from batchedmodel_sidecar.telemetry.generation_counts import GenerationCounts
from batchedmodel_sidecar.telemetry.ledger import Ledger

pytestmark = pytest.mark.looptime

TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
EVENTS = AnswerHead(200, "OK", (("Content-Type", "text/event-stream"),), None)
SETTINGS = BatchSettings(request_timeout_seconds=10.0, max_concurrent_requests=2)


@dataclass
class Asked:
    """A request at the server."""

    listener: AnswerListener
    answered: bool = False
    gone: bool = False

    def cancel(self) -> None:
        self.gone = True

    def pause(self) -> None:
        """It has nothing to hold back."""

    def resume(self) -> None:
        """Nor to go on with."""


@dataclass
class Engine:
    """A server that answers what a test says."""

    asked: list[Asked] = field(default_factory=list)

    def ask(self, listener: AnswerListener, target: str, headers: Any, body: Any) -> Any:
        self.asked.append(Asked(listener))
        return self.asked[-1]

    @property
    def there(self) -> list[Asked]:
        return [one for one in self.asked if not one.gone]


@dataclass
class Transport:
    written: bytearray = field(default_factory=bytearray)

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        """The caller sees it."""


@dataclass
class Caller:
    """Whoever asked, and how often it was answered."""

    world: "World"
    running: Any = None
    sending: Sending | None = None
    status: int | None = None
    answers: int = 0
    ends: int = 0
    left: bool = False

    def reply(
        self, response: Response | StreamedResponse | None, error: BaseException | None
    ) -> None:
        assert response is not None
        self.answers += 1
        self.status = response.status
        if isinstance(response, StreamedResponse):
            transport: Any = Transport()
            self.sending = Sending(
                response, transport, close=False, chunked=True, ended=self._ended
            )
            response.source.begin(self.sending)
        else:
            self.ends += 1

    def _ended(self, whole: bool) -> None:
        self.ends += 1

    def leaves(self) -> None:
        if not self.left and not self.ends:
            self.left = True
            (self.sending or self.running).cancel()


class SlowReader:
    """Reads no request before a test says so."""

    def __init__(self, ask: AskText) -> None:
        self._texts = UpstreamTexts(ask)
        self.may_go = asyncio.Event()
        self.ended = 0

    async def read(self, asked: RequestHead, body: Buffer, held: Hold) -> Draft:
        await self.may_go.wait()
        self.ended += 1
        return await self._texts.read(asked, body, held)


class World:
    """A queue, its server and its callers."""

    def __init__(
        self,
        settings: BatchSettings = SETTINGS,
        make: type[UpstreamTexts | SlowReader] = UpstreamTexts,
    ) -> None:
        self.engine, self.ledger, self.budget = Engine(), Ledger(), ByteBudget(100_000)
        self.callers: list[Caller] = []
        self.server = make(self.engine.ask)
        refusals = Refusals(self.ledger, public_protocols())
        counts = GenerationCounts(self.ledger, asyncio.get_running_loop().time())
        self.queue = TextQueue(settings, counts, refusals, lambda: None)
        self.queue.server = self.server
        self.queue.open()

    def calls(self, tenant: str = "a", body: bytes = b'{"model":"m"}', **headers: str) -> Caller:
        head = RequestHead(
            method="POST", target="/v1/chat/completions", headers=headers, declared=len(body)
        )
        held = self.budget.hold(Share(tenant))
        held.grow(len(body))
        caller = Caller(self)
        self.callers.append(caller)
        answer = self.queue.answer(head, body, held)
        caller.running = EagerCoroutine(answer, caller.reply, asyncio.get_running_loop())
        return caller

    def assert_all_is_settled_once(self) -> None:
        for caller in self.callers:
            assert caller.answers <= 1
            assert caller.ends + caller.left == 1, caller
        ledger = self.ledger
        assert ledger.offered == len(self.callers)
        assert ledger.accepted == ledger.settled.total()
        assert (ledger.waiting, ledger.in_flight, ledger.rows_live) == (0, 0, 0)
        assert (ledger.waiting_rows.value, ledger.rows_at_model.value) == (0, 0)
        assert abs(ledger.work_live) < 1e-6
        assert self.budget.in_use == 0
        assert (self.queue.admission.running, self.queue.admission.waiting) == (0, 0)


async def turn() -> None:
    """What was answered is on its way to its caller behind it."""
    await asyncio.sleep(0)


async def test_as_many_are_at_the_server_as_the_settings_say() -> None:
    world = World()
    callers = [world.calls() for _ in range(5)]
    assert len(world.engine.there) == 2
    first = world.engine.there[0]
    first.listener.answered(EVENTS)
    first.listener.piece(TOKEN)
    first.listener.ended()
    first.gone = True
    await turn()
    assert len(world.engine.there) == 2
    assert callers[0].ends == 1
    world.queue.configure(BatchSettings(max_concurrent_requests=4))
    assert len(world.engine.there) == 4


async def test_the_target_of_batches_is_none_of_generated_text() -> None:
    refuses = BatchSettings(lateness=Lateness.REFUSE, target_seconds=0.1)
    world = World(refuses)
    caller = world.calls()
    await asyncio.sleep(1.0)
    assert caller.answers == 0
    timed: dict[str, Any] = {"x-request-timeout-ms": "500"}
    shorter = world.calls(**timed)
    await asyncio.sleep(1.0)
    assert shorter.status == 504


@pytest.mark.parametrize(("target", "late"), [(0.5, 0), (0.3, 1), (None, 0)])
async def test_a_first_token_after_its_target_makes_a_text_late(
    target: float | None, late: int
) -> None:
    world = World(BatchSettings(target_first_token_seconds=target))
    world.calls()
    asked = world.engine.there[0]
    await asyncio.sleep(0.4)
    asked.listener.answered(EVENTS)
    asked.listener.piece(TOKEN)
    await asyncio.sleep(1.0)  # the rest of the text has no target
    assert world.ledger.late == 0, "it has not ended"
    asked.listener.ended()
    assert world.ledger.settled == {Outcome.COMPLETED: 1}
    assert world.ledger.late == late


async def test_a_server_that_is_away_gets_nothing_and_what_waits_goes_on_when_it_is_back() -> None:
    world = World()
    world.queue.close()
    world.calls()
    assert not world.engine.asked
    world.queue.open()
    assert len(world.engine.there) == 1


async def test_a_request_that_is_not_read_in_time_is_told_so_once_and_its_work_is_dropped() -> None:
    world = World(make=SlowReader)
    reader = world.server
    assert isinstance(reader, SlowReader)
    timed: dict[str, Any] = {"x-request-timeout-ms": "500"}
    sooner, later, leaver = world.calls(**timed), world.calls(), world.calls(**timed)
    leaver.leaves()
    await asyncio.sleep(0.6)
    assert (sooner.status, later.status) == (504, None)
    reader.may_go.set()
    await asyncio.sleep(0.1)
    assert reader.ended == 1
    assert len(world.engine.there) == 1
    world.queue.give_up("the test is over")
    await world.queue.idle()
    await turn()
    world.assert_all_is_settled_once()
    await asyncio.sleep(20.0)
    assert world.ledger.rejected[Rejection.EXPIRED] == 1


@pytest.mark.interpreted
async def test_a_request_that_no_policy_can_be_asked_about_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    running = [world.calls() for _ in range(2)]

    def broken(now: float, *, is_open: bool) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(world.queue.admission, "poll", broken)
    waiting = world.calls()
    assert waiting.status == 500
    assert "KeyError" in caplog.text
    # What is at the server is answered, and who comes next is served.
    for asked in world.engine.there:
        asked.listener.answered(EVENTS)
        asked.listener.ended()
        asked.gone = True
    await turn()
    assert [one.status for one in running] == [200, 200]
    later = world.calls()
    world.engine.there[0].listener.answered(EVENTS)
    world.engine.there[0].listener.ended()
    await turn()
    assert later.status == 200
    world.assert_all_is_settled_once()


async def test_a_drain_whose_time_is_over_tells_everybody() -> None:
    world = World()
    callers = [world.calls() for _ in range(3)]
    world.engine.asked[0].listener.answered(EVENTS)
    world.queue.give_up("this pod is stopping")
    await turn()
    assert [one.ends for one in callers] == [1, 1, 1]
    assert [one.status for one in callers] == [200, 503, 503]
    assert world.ledger.settled[Outcome.FAILED] == 3
    await world.queue.idle()
    world.assert_all_is_settled_once()


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_happens_every_request_is_settled_once(seed: int) -> None:
    rng = random.Random(seed)
    limit = rng.choice([None, 1, 3])
    world = World(BatchSettings(request_timeout_seconds=5.0, max_concurrent_requests=limit))
    endings = [Lost("it"), Busy("away"), Unserved("nonsense", status=502)]
    for _ in range(300):
        there = world.engine.there
        one = rng.choice(there) if there else None
        match rng.randrange(12):
            case 0 | 1 | 2:
                timed = {"x-request-timeout-ms": str(rng.choice([100, 3000]))}
                body = rng.choice([b'{"model":"m"}', b'{"model":"n","stream":true,"n":2}', b"no"])
                world.calls(rng.choice("abc"), body, **rng.choice([{}, timed]))
            case 3:
                rng.choice(world.callers).leaves() if world.callers else None
            case 4 if one is not None and not one.answered:
                status = rng.choice([200, 429, 503, 400])
                one.answered = status < 429
                one.listener.answered(EVENTS._replace(status=status))
            case 5 | 6 if one is not None and one.answered:
                one.listener.piece(TOKEN)
            case 7 if one is not None and one.answered:
                one.gone = True
                one.listener.ended()
            case 8 if one is not None:
                one.gone = True
                one.listener.broke_off(rng.choice(endings))
            case 9:
                rng.choice([world.queue.open, world.queue.close])()
            case 10:
                more = rng.choice([None, 1, 2, 5])
                world.queue.configure(BatchSettings(max_concurrent_requests=more))
            case 11:
                await asyncio.sleep(rng.choice([0.01, 0.3, 2.0]))
    world.queue.open()
    for _ in range(100):
        for one in world.engine.there:
            one.gone = True
            one.listener.broke_off(endings[2])
        await asyncio.sleep(0.5)
    world.assert_all_is_settled_once()
