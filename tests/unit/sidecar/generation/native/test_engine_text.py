"""A request at the engine: its texts are told whole and once, whatever happens to engines."""

from __future__ import annotations  # array.array takes no type argument at run time

import asyncio
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import Finish, Sampling, Submit, Token
from batchedmodel_contract.lora import AdapterPhase, AdapterState
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_http.response import Response, Sending
from batchedmodel_scheduling.generation.admission import GenerationRequest
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.errors import Busy, Unserved
from batchedmodel_sidecar.generation.live_text import Admitted, LiveText
from batchedmodel_sidecar.generation.native.engine_text import EngineText, ServedTexts, at_once
from batchedmodel_sidecar.generation.native.preparer import TextEndpoint, TextPreparer, TextRequest
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.lora.served import ChosenAdapter, ServedAdapters
from support.byte_tokenizer import END, described, tokenizer_json

pytestmark = pytest.mark.looptime

_TEXTS = TextPreparer("m", described(), tokenizer_json())
_REQUEST = TextRequest(
    endpoint=TextEndpoint.COMPLETIONS,
    prompts=(array("i", [97, 98]),),
    sampling=Sampling(seed=7),
    seeded=True,
    max_tokens=5,
    stop_ids=(END,),
    streams=True,
    include_usage=True,
)


def _token(ids: Sequence[int], choice: int) -> int:
    """What every engine makes of so much of a text."""
    number = choice
    for one in ids:
        number = (number * 131 + one + 1) % 1_000_003
    return ord("a") + number % 26 if number % 11 else END


@dataclass(eq=False)
class Engine:
    """Has what was submitted, and makes one token of each at a time."""

    submits: dict[int, Submit] = field(default_factory=dict)
    texts: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    """Requests that were told what was found of their prompts."""
    cancelled: list[tuple[int, int | None]] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    last_id: int = 0

    def submit(self, text: EngineText, submit: Submit) -> None:
        # As a frame: what comes to the text later does not change it.
        self.submits[submit.id] = replace(submit, ids=array("i", submit.ids))
        for at in range(submit.choices):
            self.texts[submit.id, submit.first_choice + at] = list(submit.ids)

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        self.cancelled.append((request_id, choice))
        for number, at in list(self.texts):
            if number == request_id and choice in (None, at):
                del self.texts[number, at]

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def found(self, tokens: Sequence[Token]) -> list[int]:
        """Of each prompt that begins with these, and has none of its text, one token less than
        it has."""
        new = {token.id for token in tokens} - self.begun
        self.begun |= new
        prompts = [self.submits[number] for number in new]
        return [len(one.ids) - 1 for one in prompts if not one.given]

    def step(self, rng: random.Random) -> list[Token]:
        tokens = []
        waits = {number for number in self.submits if rng.random() < 0.3}
        for (number, choice), ids in list(self.texts.items()):
            submit = self.submits[number]
            # The choices of a prompt begin together.
            if number in waits or (len(ids) > len(submit.ids) and rng.random() < 0.3):
                continue
            token = _token(ids, choice)
            ids.append(token)
            given = len(ids) - len(submit.ids) + submit.given
            finish = Finish.LENGTH if given >= submit.max_tokens else Finish.NONE
            finish = Finish.STOP if token in submit.stop_ids else finish
            tokens.append(Token(number, choice, token, 0.0, finish))
            if finish is not Finish.NONE:
                del self.texts[number, choice]
        return tokens


class Caller:
    """Whoever asked, with the connection that takes the answer, and who hears of the text."""

    def __init__(self, request: TextRequest, adapter: ChosenAdapter | None, room: int) -> None:
        self.count = 0
        self.outcomes: list[Outcome] = []
        self.whole: bool | None = None
        self._body = b""
        self._begun = False
        self.engines = Engines()
        now = asyncio.get_running_loop().time()
        queued = GenerationRequest(
            id=1, share=Share("team"), key="m", prompt_tokens=1, max_tokens=None, choices=1,
            arrived=now, deadline=now + 30.0, streams=True,
        )  # fmt: skip
        head = RequestHead(method="POST", target="/v1/completions", headers={}, declared=0)
        budget = ByteBudget(room)
        budget.hold_answers(1)  # whoever is alone always has room
        held = budget.hold(Share("team"))
        admitted = Admitted(self, queued, head, held, 30.0, 0.5)
        served = ServedTexts(self.engines.start, _TEXTS, "1", 8)
        self.text = EngineText(served, request, adapter, admitted)

    def heard(self, text: LiveText, tokens: int, now: float) -> None:
        self.count += tokens

    def comes_back(self, text: LiveText, rest_seconds: float) -> None:
        raise AssertionError("no engine here asks for that")

    def ended(self, text: LiveText, outcome: Outcome, *, waited: bool) -> None:
        self.outcomes.append(outcome)

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        assert self.whole is None
        self._body += data

    def has_ended(self, whole: bool) -> None:
        self.whole = whole

    @property
    def answers(self) -> int:
        """How many there are, for which the caller's connection is ready."""
        answer = self.text.answer
        if not answer.done() or answer.exception() is not None:
            return 0
        if not self._begun:
            self._begun, response = True, answer.result()
            if isinstance(response, Response):
                self._body = b"".join(response.parts)
            else:
                transport: Any = self
                sending = Sending(
                    response, transport, close=True, chunked=False, ended=self.has_ended
                )
                self._body = b""  # what was written is the head
                response.source.begin(sending)
        return 1

    @property
    def ends(self) -> int:
        """How often it was answered whole."""
        assert self.answers in (0, 1)
        return self.outcomes.count(Outcome.COMPLETED)

    @property
    def body(self) -> bytes:
        assert self.answers in (0, 1)
        return self._body

    @property
    def errors(self) -> list[Unserved]:
        """What it is told in the place of an answer."""
        answer = self.text.answer
        error = answer.exception() if answer.done() else None
        return [error] if isinstance(error, Unserved) else []

    @property
    def events_so_far(self) -> list[bytes]:
        return self.body.split(b"\n\n")[:-1]

    @property
    def events(self) -> list[dict]:  # type: ignore[type-arg]
        *events, done, rest = self.body.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        return [orjson.loads(event.removeprefix(b"data: ")) for event in events]


class Engines:
    """Has texts started at an engine of the test."""

    def __init__(self) -> None:
        self.engine = Engine()

    def start(self, text: EngineText) -> None:
        text.start(self.engine)


def _sent(
    request: TextRequest = _REQUEST,
    engine: Engine | None = None,
    adapter: ChosenAdapter | None = None,
    room: int = 10**9,
) -> tuple[Caller, EngineText]:
    """A request that its first engine has."""
    caller = Caller(request, adapter, room)
    caller.engines.engine = engine or caller.engines.engine
    caller.text.send()
    return caller, caller.text


def _expected(prompt: Sequence[int], choice: int, most: int) -> tuple[str, str, int]:
    ids, text = list(prompt), ""
    while len(ids) - len(prompt) < most:
        token = _token(ids, choice)
        ids.append(token)
        if token == END:
            return text, "stop", len(ids) - len(prompt)
        text += chr(token)
    return text, "length", most


async def test_a_text_asks_each_engine_for_its_adapter_by_the_number_that_it_has_there() -> None:
    served = ServedAdapters("m")
    served.told([AdapterState(name="sql", number=3, phase=AdapterPhase.READY)])
    engine, next_one = Engine(), Engine(last_id=1)
    _, text = _sent(engine=engine, adapter=served.choose("sql"))
    text.took(engine.step(random.Random(1)) or engine.step(random.Random(2)))
    assert text.lost()
    served.lost()
    served.told([AdapterState(name="sql", number=1, phase=AdapterPhase.READY)])
    text.start(next_one)
    assert [one.adapter for one in (*engine.submits.values(), *next_one.submits.values())] == [3, 1]
    _sent(engine=engine)
    assert engine.submits[engine.last_id].adapter == 0


@given(st.integers(0, 2**32))
def test_texts_are_told_whole_and_once_over_lost_engines(seed: int) -> None:
    asyncio.run(_told_over_lost_engines(random.Random(seed)))


async def _told_over_lost_engines(rng: random.Random) -> None:
    request = _REQUEST._replace(
        prompts=tuple(
            array("i", [rng.randrange(97, 123) for _ in range(rng.randint(1, 5))])
            for _ in range(rng.randint(1, 3))
        ),
        choices=rng.randint(1, 3),
        max_tokens=rng.randint(1, 12),
        streams=rng.random() < 0.5,
        include_usage=True,
    )
    engine = Engine()
    caller, text = _sent(request, engine)
    dies_after = rng.randint(1, 40)
    died = False
    while not caller.outcomes:
        tokens = engine.step(rng)
        for found in engine.found(tokens):
            text.was_cached(found)
        text.took(tokens)
        assert caller.answers <= 1
        if caller.count >= dies_after and not (died or caller.outcomes):
            died = True
            assert text.lost()
            engine = Engine(last_id=engine.last_id)
            text.start(engine)
    assert not caller.errors
    assert (caller.answers, caller.ends) == (1, 1)
    assert not engine.texts
    wanted = [
        _expected(prompt, choice, request.max_tokens)
        for prompt in request.prompts
        for choice in range(request.choices)
    ]
    prompted, given = request.prompt_tokens, sum(tokens for _, _, tokens in wanted)
    usage = {
        "prompt_tokens": prompted,
        "completion_tokens": given,
        "total_tokens": prompted + given,
        "prompt_tokens_details": {"cached_tokens": prompted - len(request.prompts)},
    }
    assert caller.count == given
    if request.streams:
        *events, last = caller.events
        assert last["usage"] == usage
        for at, (wanted_text, reason, _) in enumerate(wanted):
            mine = [one["choices"][0] for one in events if one["choices"][0]["index"] == at]
            assert "".join(one["text"] for one in mine) == wanted_text
            assert [one["finish_reason"] for one in mine if one["finish_reason"]] == [reason]
    else:
        document = orjson.loads(caller.body)
        assert document["usage"] == usage
        told = [(one["text"], one["finish_reason"]) for one in document["choices"]]
        assert told == [(text, reason) for text, reason, _ in wanted]


async def test_a_text_whose_first_token_tells_nothing_is_told_whole() -> None:
    caller, text = _sent(_REQUEST._replace(stop=("ab",)))
    for at, byte in enumerate("aé".encode()):
        finish = Finish.LENGTH if at == 2 else Finish.NONE
        text.took([Token(1, 0, byte, 0.0, finish)])
    *events, _ = caller.events
    assert "".join(one["choices"][0]["text"] for one in events) == "aé"


async def test_each_prompt_of_a_list_has_draws_of_its_own_and_the_first_has_the_deadline() -> None:
    prompts = (array("i", [97]),) * 3
    for seeded in (False, True):
        engine = Engine()
        _sent(_REQUEST._replace(prompts=prompts, seeded=seeded), engine)
        submits = list(engine.submits.values())
        assert len({one.sampling.seed for one in submits}) == (1 if seeded else 3)
        assert [one.deadline for one in submits] == [30.0, None, None]


async def test_an_engine_is_told_with_whom_a_request_shares_what_is_computed() -> None:
    engine = Engine()
    _sent(engine=engine)
    assert engine.submits[1].salt == "team"


async def test_a_text_of_which_two_engines_in_a_row_made_nothing_is_not_sent_to_a_third() -> None:
    caller, text = _sent()
    assert not text.suspect
    assert text.lost()
    assert text.suspect
    text.start(Engine())
    assert not text.lost()
    assert not text.suspect
    assert [error.status for error in caller.errors] == [502]
    assert not text.lost()
    assert caller.outcomes == [Outcome.FAILED]


async def test_a_text_goes_on_for_as_long_as_each_engine_makes_some_of_it() -> None:
    """A text that engines died over twice ended others that were in work, however far they were."""
    engine = Engine()
    caller, text = _sent(engine=engine)
    for _ in range(5):
        text.took([Token(engine.last_id, 0, ord("x"), 0.0, Finish.NONE)])
        assert not text.suspect
        assert text.lost()
        engine = Engine()
        text.start(engine)
    assert not caller.outcomes


async def test_a_stop_string_ends_one_choice_at_the_engine_and_no_other() -> None:
    request = _REQUEST._replace(stop=("x",), choices=2)
    engine = Engine()
    _, text = _sent(request, engine)
    text.took([Token(1, at, ord(one), 0.0, Finish.NONE) for at, one in enumerate("xy")])
    assert engine.cancelled == [(1, 0)]
    text.took([Token(1, 1, ord("x"), 0.0, Finish.NONE)])
    assert engine.cancelled == [(1, 0), (1, 1)]
    assert engine.forgotten == [1]


def _logprobs(answer: Caller, *, streams: bool) -> dict[str, list[object]]:
    """What was told of the probabilities of all tokens, list by list."""
    documents = answer.events if streams else [orjson.loads(answer.body)]
    told: dict[str, list[object]] = {}
    for document in documents:
        for name, values in (document["choices"][0]["logprobs"] or {}).items():
            told.setdefault(name, []).extend(values or ())
    return told


@pytest.mark.parametrize("endpoint", [TextEndpoint.CHAT, TextEndpoint.COMPLETIONS])
async def test_a_whole_answer_tells_the_probabilities_that_a_stream_tells(
    endpoint: TextEndpoint,
) -> None:
    told = []
    for streams in (True, False):
        sampling = Sampling(logprobs=1)
        request = _REQUEST._replace(
            endpoint=endpoint,
            streams=streams,
            sampling=sampling,
            include_usage=False,
        )
        caller, text = _sent(request)
        for at, byte in enumerate("a \N{BULLET}".encode()):
            finish = Finish.LENGTH if at == 4 else Finish.NONE
            text.took([Token(1, 0, byte, -0.5 * at, finish, ((byte, -0.5 * at), (98, -9.0)))])
        assert caller.ends == 1
        told.append(_logprobs(caller, streams=streams))
    assert told[0] == told[1]
    assert {len(values) for values in told[0].values()} <= {0, 5}


async def test_a_completion_tells_where_each_token_begins_behind_text_that_was_held_back() -> None:
    sampling = Sampling(logprobs=1)
    request = _REQUEST._replace(sampling=sampling, stop=("bX",), include_usage=False)
    caller, text = _sent(request)
    for at, byte in enumerate(b"abcd"):
        finish = Finish.LENGTH if at == 3 else Finish.NONE
        text.took([Token(1, 0, byte, -0.5, finish, ((98, -0.25),))])
    told = _logprobs(caller, streams=True)
    assert told["text_offset"] == [0, 1, 2, 3]
    # The likeliest one and the chosen one, where they are two.
    assert told["top_logprobs"][:2] == [{"b": -0.25, "a": -0.5}, {"b": -0.5}]


async def test_an_answer_that_finds_no_room_ends_at_the_engine_and_says_so() -> None:
    engine = Engine()
    caller, text = _sent(_REQUEST._replace(streams=False, choices=2), engine, room=300)
    for _ in range(2):
        text.took([Token(1, choice, ord("x"), 0.0, Finish.NONE) for choice in (0, 1)])
    assert [(one.status, one.retry_after) for one in caller.errors] == [(503, 1.0)]
    assert engine.cancelled == [(1, None)]
    assert caller.outcomes == [Outcome.FAILED]


async def test_a_caller_that_leaves_has_its_texts_cancelled() -> None:
    engine = Engine()
    caller, text = _sent(_REQUEST._replace(prompts=(array("i", [1]), array("i", [2]))), engine)
    text.cancel()
    assert engine.cancelled == [(1, None), (2, None)]
    text.took([Token(1, 0, ord("x"), 0.0, Finish.NONE)])
    assert (caller.answers, caller.outcomes) == (0, [Outcome.CANCELLED])


async def test_a_reader_that_falls_far_behind_ends() -> None:
    engine = Engine()
    caller, text = _sent(_REQUEST._replace(max_tokens=10**6), engine)
    text.took([Token(1, 0, ord("x"), 0.0, Finish.NONE)])
    assert caller.answers == 1
    text.pause()
    told = len(caller.events_so_far)
    for _ in range(1000):
        text.took([Token(1, 0, ord("x"), 0.0, Finish.NONE)])
    assert len(caller.events_so_far) == told + 1
    assert engine.cancelled == [(1, None)]
    assert b"more slowly" in caller.events_so_far[-1]
    assert caller.outcomes == [Outcome.FAILED]


async def test_a_begun_stream_that_the_next_engine_refuses_as_busy_ends_with_an_error() -> None:
    """It cannot wait again: what was written of it is there, and its time runs."""
    caller, text = _sent()
    text.took([Token(1, 0, ord("a"), 0.0, Finish.NONE)])
    assert caller.answers == 1
    assert text.lost()
    following = Engine()
    text.start(following)
    assert following.submits[1].given == 1
    text.refused(Busy("no room"))
    *events, error = caller.events_so_far
    assert len(events) == 1
    assert b"no room" in error
    assert following.cancelled == [(1, None)]
    assert (caller.whole, caller.outcomes) == (True, [Outcome.FAILED])


async def test_a_reader_that_catches_up_has_all_of_its_text() -> None:
    caller, text = _sent()
    text.took([Token(1, 0, ord("a"), 0.0, Finish.NONE)])
    assert caller.answers == 1
    text.pause()
    text.took([Token(1, 0, ord("b"), 0.0, Finish.NONE)])
    text.took([Token(1, 0, ord("c"), 0.0, Finish.LENGTH)])
    told_before = len(caller.events_so_far)
    text.resume()
    assert told_before == 1
    assert caller.ends == 1
    texts = [one["choices"][0]["text"] for one in caller.events[:-1]]
    assert "".join(texts) == "abc"


@pytest.mark.parametrize("streams", [True, False])
async def test_an_engine_that_gives_a_text_up_ends_the_request(streams: bool) -> None:
    engine = Engine()
    caller, text = _sent(_REQUEST._replace(streams=streams, choices=2), engine)
    text.took([Token(1, 0, ord("a"), 0.0, Finish.NONE)])
    text.took([Token(1, 1, 0, 0.0, Finish.FAILED)])
    assert caller.outcomes == [Outcome.FAILED]
    if streams:
        assert b'"code":503' in caller.events_so_far[-1]
    else:
        assert [error.status for error in caller.errors] == [503]
    assert engine.cancelled == [(1, None)]


def test_of_a_long_list_as_much_counts_as_runs_at_once() -> None:
    description = described(max_sequences=8, blocks=10, block_tokens=16)
    prompts = (array("i", [1] * 20), array("i", [2] * 10), array("i", [3]))
    request = _REQUEST._replace(prompts=prompts, choices=2, max_tokens=20)
    # Four texts of 40 tokens fill the cache.
    assert at_once(request, description, 8) == (31, 4)
    assert at_once(request, description, 2) == (31, 2)
    assert at_once(_REQUEST._replace(choices=3), description, 8).texts == 3
