"""Bodies become requests for text; what cannot be served is refused by its field's name."""

from typing import Any

import orjson
import pytest

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.errors import ModelNotFound
from batchedmodel_sidecar.generation.native.preparer import TextEndpoint, TextPreparer, TextRequest
from batchedmodel_sidecar.generation.native.requests import IGNORED, chat_of
from support.byte_tokenizer import BEGIN, END, described, tokenizer_json

_PREPARER = TextPreparer("m", described(), tokenizer_json())
_USER = {"role": "user", "content": "hi"}


def _prepared(endpoint: TextEndpoint, **fields: Any) -> TextRequest:
    return _PREPARER.prepare(endpoint, orjson.dumps(fields))


def _chat(**fields: Any) -> TextRequest:
    return _prepared(TextEndpoint.CHAT, **{"model": "m", "messages": [_USER], **fields})


def _completion(**fields: Any) -> TextRequest:
    return _prepared(TextEndpoint.COMPLETIONS, **{"model": "m", "prompt": "ab", **fields})


def _generate(**fields: Any) -> TextRequest:
    return _prepared(TextEndpoint.GENERATE, **{"text_input": "ab", **fields})


def test_a_chat_is_what_its_template_makes_of_it() -> None:
    request = _chat()
    (prompt,) = request.prompts
    assert bytes(prompt.tolist()) == b"<user>hi\n<assistant>"
    assert request.max_tokens == 200 - len(prompt)
    assert request.stop_ids == (END,)
    assert not request.streams


def test_a_completion_begins_with_what_marks_a_beginning() -> None:
    request = _completion()
    assert list(request.prompts[0]) == [BEGIN, *b"ab"]
    assert request.max_tokens == 16


def test_prompts_may_be_token_ids_and_several() -> None:
    assert list(_completion(prompt=[1, 2]).prompts[0]) == [1, 2]
    request = _completion(prompt=[[1, 2], [3]], n=2)
    assert [list(one) for one in request.prompts] == [[1, 2], [3]]
    assert request.texts == 4
    assert len(_completion(prompt=["a", "bc"]).prompts) == 2


def test_tritons_generate_has_parameters() -> None:
    request = _generate(id="7", parameters={"max_tokens": 3, "temperature": 0, "stop": "x"})
    assert (request.id, request.max_tokens, request.stop) == ("7", 3, ("x",))
    assert request.sampling.temperature == 0


def test_parts_of_text_and_answers_of_tools_reach_the_template() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}], "refusal": None}
    tool = {"role": "tool", "content": "42", "tool_call_id": "1"}
    (prompt,) = _chat(messages=[parts, call, tool]).prompts
    assert bytes(prompt.tolist()) == b"<user>ab\n<assistant>\n<tool>42\n<assistant>"


def test_arguments_of_tools_reach_the_template_as_objects() -> None:
    calls = [
        {"id": "1", "function": {"name": "f", "arguments": arguments}}
        for arguments in ('{"city": "Ulm"}', "", {"city": "Bonn"})
    ]
    asked = chat_of({"messages": [{"role": "assistant", "tool_calls": calls}]})
    told = [call["function"]["arguments"] for call in asked.messages[0]["tool_calls"]]
    assert told == [{"city": "Ulm"}, {}, {"city": "Bonn"}]


def test_a_text_of_unknown_length_fits_beside_a_prompt_that_leaves_little_room() -> None:
    most = _PREPARER.description.max_context_tokens
    assert _completion(prompt=[1] * (most - 5)).max_tokens == 5
    assert _completion(prompt=[1] * (most - 50)).max_tokens == 16


def test_more_choices_than_run_at_once_are_taken() -> None:
    assert _chat(n=_PREPARER.description.max_sequences + 1).texts == 9


def test_sampling_is_as_it_was_asked() -> None:
    sampling = _chat(
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        seed=-3,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logprobs=True,
        top_logprobs=2,
    ).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        0.5,
        0.9,
        0,
        0.1,
    )
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.repetition_penalty, sampling.logprobs) == (1.1, 2)
    assert sampling.seed >= 0
    assert _chat(seed=5).seeded
    assert not _chat().seeded


def test_what_the_model_asks_for_holds_where_a_caller_says_nothing() -> None:
    """Callers got temperature 1 of models that were made for 0.6."""
    defaults = {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.05,
        "max_new_tokens": 40,
    }
    preparer = TextPreparer("m", described(sampling_defaults=defaults), tokenizer_json())

    def sampled(**fields: Any) -> TextRequest:
        body = {"model": "m", "messages": [_USER], **fields}
        return preparer.prepare(TextEndpoint.CHAT, orjson.dumps(body))

    own = sampled(temperature=None)
    assert own.sampling == Sampling(
        temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.05
    )
    assert own.max_tokens == 40
    asked = sampled(temperature=0, top_p=1, top_k=0, min_p=0, repetition_penalty=1, max_tokens=99)
    assert (asked.sampling, asked.max_tokens) == (Sampling(temperature=0.0), 99)
    completion = orjson.dumps({"model": "m", "prompt": "a"})
    assert preparer.prepare(TextEndpoint.COMPLETIONS, completion).max_tokens == 16
    generate = orjson.dumps({"text_input": "a", "parameters": {"top_k": 3}})
    found = preparer.prepare(TextEndpoint.GENERATE, generate).sampling
    assert (found.temperature, found.top_k) == (0.6, 3)


@pytest.mark.parametrize(
    ("eos", "stops"),
    [("</s>", (7, END)), ("<s>", (7, BEGIN)), ("not a token", (7,)), (None, (7,))],
)
def test_the_tokenizers_eos_stops_a_text_beside_the_configs(
    eos: str | None, stops: tuple[int, ...]
) -> None:
    """Chats went on behind `<|im_end|>` where only the tokenizer's files name it."""
    tokens = {} if eos is None else {"eos_token": eos}
    preparer = TextPreparer("m", described(stop_ids=(7,), special_tokens=tokens), tokenizer_json())
    body = {"model": "m", "prompt": "ab"}
    assert preparer.prepare(TextEndpoint.COMPLETIONS, orjson.dumps(body)).stop_ids == stops
    ignoring = orjson.dumps({**body, "ignore_eos": True})
    assert preparer.prepare(TextEndpoint.COMPLETIONS, ignoring).stop_ids == ()


def test_the_models_own_stops_may_be_ignored() -> None:
    assert _chat(ignore_eos=True, stop_token_ids=[3]).stop_ids == (3,)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": 7}, "is not served here"),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role: "),
        ({"messages": [{"role": "user"}]}, "messages[0].content: is required"),
        ({"messages": [{**_USER, "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{**_USER, "audio": {"id": 1}}]}, "messages[0].audio: "),
        ({"tools": [{"type": "function"}]}, "tools: "),
        ({"response_format": {"type": "json_object"}}, "response_format: "),
        ({"logit_bias": {"5": 1}}, "logit_bias: "),
        ({"frobnicate": 1}, "frobnicate: "),
        ({"temperature": "hot"}, "temperature: "),
        ({"temperature": -1}, "temperature: "),
        ({"top_p": 0}, "top_p: "),
        ({"n": 0}, "n: "),
        ({"n": 200}, "n: "),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"max_tokens": 500}, "max_tokens: 500 is above 180: the prompt has 20 tokens"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "messages: has 318 tokens"),
        ({"stop": ["a"] * 17}, "stop: "),
        ({"stop": [""]}, "stop: "),
        ({"top_logprobs": 3}, "top_logprobs: 3 needs logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options: needs stream"),
        ({"stream": 1}, "stream: "),
        ({"seed": 2**63}, "seed: "),
        ({"best_of": 2}, "best_of: 2 is not n, which is 1"),
        ({"model": ""}, 'model: "" is not served here'),
        ({"cache_salt": "a"}, "cache_salt: "),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options: "),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls: 1 is not supported"),
        ({"stop_token_ids": 0}, "stop_token_ids: 0 is not a list"),
        ({"messages": [{**_USER, "tool_calls": 1}]}, "messages[0].tool_calls: "),
        ({"messages": [{**_USER, "tool_calls": [1]}]}, "messages[0].tool_calls[0]: "),
        (
            {"messages": [{**_USER, "tool_calls": [{"function": {"arguments": "[1"}}]}]},
            "messages[0].tool_calls[0].function.arguments: is not the text of a JSON object",
        ),
        (
            {"messages": [{**_USER, "tool_calls": [{"function": {"arguments": "[1]"}}]}]},
            "messages[0].tool_calls[0].function.arguments: is not the text of a JSON object",
        ),
        ({"chat_template_kwargs": ""}, "chat_template_kwargs: "),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self: "),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages: "),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message: ",
        ),
    ],
)
def test_a_chat_that_cannot_be_served_is_refused_by_its_field(
    fields: dict[str, Any], told: str
) -> None:
    with pytest.raises((InvalidInput, ModelNotFound)) as refused:
        _chat(**fields)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"prompt": None}, "prompt: "),
        ({"prompt": []}, "prompt: "),
        ({"prompt": [[]]}, "prompt: is empty"),
        ({"prompt": [1, "a"]}, "prompt: "),
        ({"prompt": [300]}, "prompt: 300 holds a token id that is not from 0 to 257"),
        ({"prompt": [-1]}, "prompt: -1 holds"),
        ({"prompt": [2**40]}, "prompt: holds a token id beyond 32 bits"),
        ({"prompt": ["a"] * 129}, "prompt: has 129"),
        ({"prompt": ["a"] * 60, "n": 3}, "n: asks for 60 x 3"),
        ({"suffix": "x"}, "suffix: "),
        ({"echo": True}, "echo: "),
        ({"best_of": 4}, "best_of: "),
        ({"logprobs": 21}, "logprobs: "),
    ],
)
def test_a_completion_that_cannot_be_served_is_refused_by_its_field(
    fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        _completion(**fields)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"text_input": 5}, "text_input: "),
        ({"parameters": [1]}, "parameters: "),
        ({"parameters": 0}, "parameters: 0 is not an object"),
        ({"parameters": {"stream": 0}}, "stream: 0 is not true or false"),
        ({"parameters": {"bad_words": ["x"]}}, "parameters.bad_words: "),
        ({"parameters": {"stream": True}}, "parameters.stream: "),
    ],
)
def test_a_generate_that_cannot_be_served_is_refused_by_its_field(
    fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        _generate(**fields)
    assert told in str(refused.value)


@pytest.mark.parametrize("field", sorted(IGNORED))
def test_what_changes_no_text_is_taken_whatever_it_is(field: str) -> None:
    """Clients of OpenAI send these unasked; each was a 400, or one unless it was neutral."""
    for value in ("high", True, 5, {"a": [1]}, None):
        assert _chat(**{field: value}) == _chat()
        assert _completion(**{field: value}) == _completion()


def test_thoughts_that_clients_send_back_are_no_part_of_a_prompt() -> None:
    said = {"role": "assistant", "content": "hello"}
    for name in ("reasoning_content", "reasoning"):
        messages = [_USER, said | {name: "hmm"}, _USER]
        assert _chat(messages=messages) == _chat(messages=[_USER, said, _USER])


def test_a_stream_may_ask_for_no_obfuscation() -> None:
    options = {"include_usage": True, "include_obfuscation": False}
    asked = _chat(stream=True, stream_options=options)
    assert (asked.streams, asked.include_usage) == (True, True)


def test_a_model_without_a_template_takes_no_chats() -> None:
    preparer = TextPreparer("m", described(chat_template=None), tokenizer_json())
    with pytest.raises(InvalidInput, match="no chat template"):
        preparer.prepare(TextEndpoint.CHAT, orjson.dumps({"model": "m", "messages": [_USER]}))


def test_a_template_that_cannot_be_compiled_is_told_to_every_chat() -> None:
    preparer = TextPreparer("m", described(chat_template="{% if %}"), tokenizer_json())
    body = orjson.dumps({"model": "m", "messages": [_USER]})
    for _ in range(2):
        with pytest.raises(InvalidInput, match="messages: cannot be read.* chat template: cannot"):
            preparer.prepare(TextEndpoint.CHAT, body)


def test_a_prompt_is_bounded_by_the_cache_too() -> None:
    preparer = TextPreparer("m", described(blocks=2, block_tokens=4), tokenizer_json())
    asked = {"model": "m", "prompt": "ab"}
    assert preparer.prepare(TextEndpoint.COMPLETIONS, orjson.dumps(asked)).max_tokens == 5
    with pytest.raises(InvalidInput, match="max_tokens: 16 is above 5"):
        preparer.prepare(TextEndpoint.COMPLETIONS, orjson.dumps({**asked, "max_tokens": 16}))


def test_a_text_that_cannot_fit_is_refused_without_its_tokens() -> None:
    # Its longest token, "</s>", is four bytes.
    with pytest.raises(InvalidInput, match="prompt: has at least 2500 tokens; with a text"):
        _completion(prompt="x" * 10_000)
    larger = TextPreparer("m", described(max_context_tokens=2500, blocks=999), tokenizer_json())
    body = orjson.dumps({"model": "m", "prompt": "x" * 10_000})
    with pytest.raises(InvalidInput, match="prompt: has 10001 tokens; with a text"):
        larger.prepare(TextEndpoint.COMPLETIONS, body)


def test_a_long_text_has_the_tokens_that_it_has_in_parts() -> None:
    preparer = TextPreparer(
        "m", described(max_context_tokens=20_000, blocks=9999), tokenizer_json()
    )
    body = orjson.dumps({"model": "m", "prompt": "x</s>" * 2000})
    request = preparer.prepare(TextEndpoint.COMPLETIONS, body)
    assert list(request.prompts[0]) == [BEGIN, *[ord("x"), END] * 2000]
