"""A request at the engine: its texts are told whole and once, whatever happens to engines."""

from __future__ import annotations  # array.array takes no type argument at run time

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from batchedmodel_contract.adapters.state import AdapterPhase, AdapterState
from batchedmodel_contract.generation.frames import Finish, Sampling, Submit, Token
from batchedmodel_sidecar.adapters.served import ChosenAdapter, ServedAdapters
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.generation.engine_client import EngineHead
from batchedmodel_sidecar.generation.native.answers.answer_form import AnswerForm
from batchedmodel_sidecar.generation.native.answers.openai_answers import ChatForm, CompletionForm
from batchedmodel_sidecar.generation.native.exchange import NativeExchange
from batchedmodel_sidecar.generation.native.requests.text_request import TextEndpoint, TextRequest
from support.byte_tokenizer import END, tokenizer_json

_TOKENIZER = Tokenizer.from_buffer(tokenizer_json())
_KNOWN = {"id": "1", "created": 2, "model": "m"}
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

    def submit(self, exchange: NativeExchange, submit: Submit) -> None:
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


@dataclass(eq=False)
class Listener:
    """Whoever asked."""

    heads: list[EngineHead] = field(default_factory=list)
    count: int = 0
    body: bytes = b""
    ends: int = 0
    errors: list[Unserved] = field(default_factory=list)

    def answered(self, head: EngineHead) -> None:
        self.heads.append(head)

    def tokens(self, count: int) -> None:
        self.count += count

    def piece(self, data: bytes) -> None:
        assert self.heads
        assert data, "a piece without bytes would end a body in chunks"
        assert not self.ends
        self.body += data

    def ended(self) -> None:
        self.ends += 1

    def broke_off(self, error: Unserved) -> None:
        self.errors.append(error)

    @property
    def events_so_far(self) -> list[bytes]:
        return self.body.split(b"\n\n")[:-1]

    @property
    def events(self) -> list[dict]:  # type: ignore[type-arg]
        *events, done, rest = self.body.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        return [orjson.loads(event.removeprefix(b"data: ")) for event in events]


def _exchange(
    request: TextRequest = _REQUEST,
    form: AnswerForm | None = None,
    keep: Callable[[int], bool] = lambda size: True,
    adapter: ChosenAdapter | None = None,
) -> tuple[Listener, NativeExchange]:
    listener = Listener()
    form = form or CompletionForm(
        _KNOWN, _TOKENIZER, include_usage=request.include_usage, logprobs=False
    )
    sampling, deadline = request.sampling, lambda: 30.0
    exchange = NativeExchange(
        *(listener, request, form, _TOKENIZER, sampling, 2, deadline, keep),
        salt="team",
        adapter=adapter,
    )
    return listener, exchange


def _expected(prompt: Sequence[int], choice: int, most: int) -> tuple[str, str, int]:
    ids, text = list(prompt), ""
    while len(ids) - len(prompt) < most:
        token = _token(ids, choice)
        ids.append(token)
        if token == END:
            return text, "stop", len(ids) - len(prompt)
        text += chr(token)
    return text, "length", most


def test_a_text_asks_each_engine_for_its_adapter_by_the_number_that_it_has_there() -> None:
    served = ServedAdapters("m")
    served.told([AdapterState(name="sql", number=3, phase=AdapterPhase.READY)])
    _, exchange = _exchange(adapter=served.choose("sql"))
    engine, next_one = Engine(), Engine(last_id=1)
    exchange.start(engine)
    exchange.told(engine.step(random.Random(1)) or engine.step(random.Random(2)))
    assert exchange.lost()
    served.lost()
    served.told([AdapterState(name="sql", number=1, phase=AdapterPhase.READY)])
    exchange.start(next_one)
    assert [one.adapter for one in (*engine.submits.values(), *next_one.submits.values())] == [3, 1]
    _, plain = _exchange()
    plain.start(engine)
    assert engine.submits[engine.last_id].adapter == 0


@given(st.integers(0, 2**32))
def test_texts_are_told_whole_and_once_over_lost_engines(seed: int) -> None:
    rng = random.Random(seed)
    request = replace(
        _REQUEST,
        prompts=tuple(
            array("i", [rng.randrange(97, 123) for _ in range(rng.randint(1, 5))])
            for _ in range(rng.randint(1, 3))
        ),
        choices=rng.randint(1, 3),
        max_tokens=rng.randint(1, 12),
        streams=rng.random() < 0.5,
        include_usage=True,
    )
    listener, exchange = _exchange(request)
    engine = Engine()
    exchange.start(engine)
    dies_after = rng.randint(1, 40)
    died = False
    while not listener.ends:
        tokens = engine.step(rng)
        for found in engine.found(tokens):
            exchange.found(found)
        exchange.told(tokens)
        if listener.count >= dies_after and not (died or listener.ends):
            died = True
            assert exchange.lost()
            engine = Engine(last_id=engine.last_id)
            exchange.start(engine)
    assert not listener.errors
    assert len(listener.heads) == 1
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
    assert listener.count == given
    if request.streams:
        *events, last = listener.events
        assert last["usage"] == usage
        for at, (text, reason, _) in enumerate(wanted):
            mine = [one["choices"][0] for one in events if one["choices"][0]["index"] == at]
            assert "".join(one["text"] for one in mine) == text
            assert [one["finish_reason"] for one in mine if one["finish_reason"]] == [reason]
    else:
        document = orjson.loads(listener.body)
        assert document["usage"] == usage
        told = [(one["text"], one["finish_reason"]) for one in document["choices"]]
        assert told == [(text, reason) for text, reason, _ in wanted]


def test_a_text_whose_first_token_tells_nothing_is_told_whole() -> None:
    listener, exchange = _exchange(replace(_REQUEST, stop=("ab",)))
    exchange.start(Engine())
    for at, byte in enumerate("aé".encode()):
        finish = Finish.LENGTH if at == 2 else Finish.NONE
        exchange.told([Token(1, 0, byte, 0.0, finish)])
    *events, _ = listener.events
    assert "".join(one["choices"][0]["text"] for one in events) == "aé"


def test_of_a_list_of_prompts_each_has_draws_of_its_own_and_the_first_has_the_deadline() -> None:
    prompts = (array("i", [97]),) * 3
    for seeded in (False, True):
        _, exchange = _exchange(replace(_REQUEST, prompts=prompts, seeded=seeded))
        engine = Engine()
        exchange.start(engine)
        submits = list(engine.submits.values())
        assert len({one.sampling.seed for one in submits}) == (1 if seeded else 3)
        assert [one.deadline for one in submits] == [30.0, None, None]


def test_an_engine_is_told_with_whom_a_request_shares_what_is_computed() -> None:
    _, exchange = _exchange()
    engine = Engine()
    exchange.start(engine)
    assert engine.submits[1].salt == "team"


def test_a_text_of_which_two_engines_in_a_row_made_nothing_is_not_sent_to_a_third() -> None:
    listener, exchange = _exchange()
    exchange.start(Engine())
    assert not exchange.suspect
    assert exchange.lost()
    assert exchange.suspect
    exchange.start(Engine())
    assert not exchange.lost()
    assert not exchange.suspect
    assert [error.status for error in listener.errors] == [502]
    assert not exchange.lost()
    assert len(listener.errors) == 1


def test_a_text_goes_on_for_as_long_as_each_engine_makes_some_of_it() -> None:
    """A text that engines died over twice ended others that were in work, however far they were."""
    listener, exchange = _exchange()
    for _ in range(5):
        engine = Engine()
        exchange.start(engine)
        exchange.told([Token(engine.last_id, 0, ord("x"), 0.0, Finish.NONE)])
        assert not exchange.suspect
        assert exchange.lost()
    assert not listener.errors


def test_a_stop_string_ends_one_choice_at_the_engine_and_no_other() -> None:
    request = replace(_REQUEST, stop=("x",), choices=2)
    _, exchange = _exchange(request)
    engine = Engine()
    exchange.start(engine)
    exchange.told([Token(1, at, ord(one), 0.0, Finish.NONE) for at, one in enumerate("xy")])
    assert engine.cancelled == [(1, 0)]
    exchange.told([Token(1, 1, ord("x"), 0.0, Finish.NONE)])
    assert engine.cancelled == [(1, 0), (1, 1)]
    assert engine.forgotten == [1]


def _logprobs(answer: Listener, *, streams: bool) -> dict[str, list[object]]:
    """What was told of the probabilities of all tokens, list by list."""
    documents = answer.events if streams else [orjson.loads(answer.body)]
    told: dict[str, list[object]] = {}
    for document in documents:
        for name, values in (document["choices"][0]["logprobs"] or {}).items():
            told.setdefault(name, []).extend(values or ())
    return told


@pytest.mark.parametrize("form", [ChatForm, CompletionForm])
def test_a_whole_answer_tells_the_probabilities_that_a_stream_tells(
    form: type[ChatForm | CompletionForm],
) -> None:
    told = []
    for streams in (True, False):
        sampling = Sampling(logprobs=1)
        request = replace(_REQUEST, streams=streams, sampling=sampling, include_usage=False)
        listener, exchange = _exchange(
            request, form(_KNOWN, _TOKENIZER, include_usage=False, logprobs=True)
        )
        exchange.start(Engine())
        for at, byte in enumerate("a \N{BULLET}".encode()):
            finish = Finish.LENGTH if at == 4 else Finish.NONE
            exchange.told([Token(1, 0, byte, -0.5 * at, finish, ((byte, -0.5 * at), (98, -9.0)))])
        assert listener.ends == 1
        told.append(_logprobs(listener, streams=streams))
    assert told[0] == told[1]
    assert {len(values) for values in told[0].values()} <= {0, 5}


def test_a_completion_tells_where_each_token_begins_also_behind_text_that_was_held_back() -> None:
    sampling = Sampling(logprobs=1)
    request = replace(_REQUEST, sampling=sampling, stop=("bX",), include_usage=False)
    form = CompletionForm(_KNOWN, _TOKENIZER, include_usage=False, logprobs=True)
    listener, exchange = _exchange(request, form)
    exchange.start(Engine())
    for at, byte in enumerate(b"abcd"):
        finish = Finish.LENGTH if at == 3 else Finish.NONE
        exchange.told([Token(1, 0, byte, -0.5, finish, ((98, -0.25),))])
    told = _logprobs(listener, streams=True)
    assert told["text_offset"] == [0, 1, 2, 3]
    # The likeliest one and the chosen one, where they are two.
    assert told["top_logprobs"][:2] == [{"b": -0.25, "a": -0.5}, {"b": -0.5}]


def test_an_answer_that_finds_no_room_ends_at_the_engine_and_says_so() -> None:
    room = 300

    def keep(size: int) -> bool:
        nonlocal room
        room -= size
        return room >= 0

    listener, exchange = _exchange(replace(_REQUEST, streams=False, choices=2), keep=keep)
    engine = Engine()
    exchange.start(engine)
    for _ in range(2):
        exchange.told([Token(1, choice, ord("x"), 0.0, Finish.NONE) for choice in (0, 1)])
    assert [(one.status, one.retry_after) for one in listener.errors] == [(503, 1.0)]
    assert engine.cancelled == [(1, None)]
    assert not listener.heads


def test_a_caller_that_leaves_has_its_texts_cancelled() -> None:
    listener, exchange = _exchange(replace(_REQUEST, prompts=(array("i", [1]), array("i", [2]))))
    engine = Engine()
    exchange.start(engine)
    exchange.cancel()
    assert engine.cancelled == [(1, None), (2, None)]
    exchange.told([Token(1, 0, ord("x"), 0.0, Finish.NONE)])
    assert not listener.heads


def test_a_reader_that_falls_far_behind_ends() -> None:
    listener, exchange = _exchange(replace(_REQUEST, max_tokens=10**6))
    engine = Engine()
    exchange.start(engine)
    exchange.told([Token(1, 0, ord("x"), 0.0, Finish.NONE)])
    exchange.pause()
    told = len(listener.body)
    for _ in range(1000):
        exchange.told([Token(1, 0, ord("x"), 0.0, Finish.NONE)])
    assert len(listener.body) == told
    assert engine.cancelled == [(1, None)]
    assert "more slowly" in listener.errors[0].message


def test_a_reader_that_catches_up_has_all_of_its_text() -> None:
    listener, exchange = _exchange()
    exchange.start(Engine())
    exchange.told([Token(1, 0, ord("a"), 0.0, Finish.NONE)])
    exchange.pause()
    exchange.told([Token(1, 0, ord("b"), 0.0, Finish.NONE)])
    exchange.told([Token(1, 0, ord("c"), 0.0, Finish.LENGTH)])
    told_before = len(listener.events_so_far)
    exchange.resume()
    assert told_before == 1
    assert listener.ends == 1
    texts = [one["choices"][0]["text"] for one in listener.events[:-1]]
    assert "".join(texts) == "abc"


@pytest.mark.parametrize("streams", [True, False])
def test_an_engine_that_gives_a_text_up_ends_the_request(streams: bool) -> None:
    listener, exchange = _exchange(replace(_REQUEST, streams=streams, choices=2))
    engine = Engine()
    exchange.start(engine)
    exchange.told([Token(1, 0, ord("a"), 0.0, Finish.NONE)])
    exchange.told([Token(1, 1, 0, 0.0, Finish.FAILED)])
    assert [error.status for error in listener.errors] == [503]
    assert engine.cancelled == [(1, None)]
