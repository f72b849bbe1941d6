"""Requests for text of all protocols, read and checked. Pure.

Fields that would change the answer and are not supported are refused by name. vLLM's additions
(`top_k`, `min_p`, `repetition_penalty`, `stop_token_ids`, `ignore_eos`, `chat_template_kwargs`)
mean in OpenAI's chats and completions what they mean there, and so do the parameters of Triton's
generate extension, which have the names of Triton's backend for vLLM:

    {"text_input": "Once upon a time", "parameters": {"max_tokens": 20, "temperature": 0}}
"""

from __future__ import annotations  # array.array takes no type argument at run time

from array import array
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.generation.frames import MOST_LOGPROBS, Sampling
from batchedmodel_contract.generation.sampling_rules import MAX_TOKENS, SAMPLING_RULES
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.reading import ruled
from batchedmodel_contract.schema.rules import Broken, Real, Whole
from batchedmodel_sidecar.generation.fields import SEEDS
from batchedmodel_sidecar.protocols.json_bodies import (
    optional_text,
    require_few,
    require_text,
)

MOST_TEXTS: Final = 128
"""Texts that one request may ask for."""
_MOST_STOPS: Final = 16
_LONGEST_STOP: Final = 128
_TOKEN_IDS: Final = Whole(minimum=0, maximum=2**31 - 1)
_SEED_BITS: Final = 2**63 - 1
_PENALTY: Final = Real(minimum=-2.0, maximum=2.0)
_RULES: Final[Mapping[str, Real | Whole]] = {
    **SAMPLING_RULES,
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
}

SAMPLING: Final = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    }
)
"""The fields that say how tokens are chosen, the same in all protocols."""
STOPPING: Final = frozenset({"stop", "stop_token_ids", "ignore_eos"})
IGNORED: Final = frozenset(
    {
        *("user", "metadata", "safety_identifier", "store", "service_tier", "prediction"),
        *("prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "verbosity"),
    }
)
"""What changes no text here, whatever it is."""
_COMMON: Final = IGNORED | {
    *("model", "stream", "stream_options", "max_tokens", "n", "best_of", "logprobs", "logit_bias"),
}
_NO_TOOLS: Final[Mapping[str, tuple[Any, ...]]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logit_bias": ({},),
}
"""What is not supported, with the values that ask for nothing."""
_NO_COMPLETION: Final[Mapping[str, tuple[Any, ...]]] = {
    "suffix": ("",),
    "echo": (False,),
    "logit_bias": ({},),
}
CHAT: Final = frozenset(
    {
        *_COMMON,
        *SAMPLING,
        *STOPPING,
        *_NO_TOOLS,
        *("messages", "max_completion_tokens", "top_logprobs"),
        *("chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
    }
)
COMPLETIONS: Final = frozenset({*_COMMON, *SAMPLING, *STOPPING, *_NO_COMPLETION, "prompt"})
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_OF_A_MESSAGE: Final = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_THOUGHTS: Final = ("reasoning_content", "reasoning")
"""Which other servers tell apart from a message, and which their clients send back."""
_STREAM_OPTIONS: Final = ("include_usage", "include_obfuscation")
_COUNTS: Final = Whole(minimum=1, maximum=MOST_TEXTS)
GENERATE: Final = frozenset({"id", "text_input", "parameters"})
_PARAMETERS: Final = SAMPLING | STOPPING | {"max_tokens", "stream"}


class Stopping(NamedTuple):
    """What ends a text before its length."""

    texts: tuple[str, ...]
    ids: tuple[int, ...]


def sampling_of(fields: Mapping[str, Any], logprobs: int | None) -> tuple[Sampling, bool]:
    """How tokens are chosen, and whether the caller gave the seed; raises `InvalidInput`."""
    seed = optional_whole(fields, "seed", SEEDS)
    sampling = Sampling(
        temperature=optional_real(fields, "temperature", 1.0),
        top_p=optional_real(fields, "top_p", 1.0),
        top_k=max(0, int(optional_real(fields, "top_k", 0))),  # -1 is vLLM's word for all
        min_p=optional_real(fields, "min_p", 0.0),
        presence_penalty=optional_real(fields, "presence_penalty", 0.0),
        frequency_penalty=optional_real(fields, "frequency_penalty", 0.0),
        repetition_penalty=optional_real(fields, "repetition_penalty", 1.0),
        seed=0 if seed is None else seed & _SEED_BITS,
        logprobs=logprobs,
    )
    return sampling, seed is not None


def stopping_of(fields: Mapping[str, Any], model_stops: tuple[int, ...]) -> Stopping:
    """What ends its texts; raises `InvalidInput`. `model_stops`: tokens that end any text."""
    value = fields.get("stop")
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > _MOST_STOPS:
        raise InvalidInput("stop", f"is not a text or a list of at most {_MOST_STOPS}", value)
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_STOP:
            rule = f"holds something else than texts of 1 to {_LONGEST_STOP} characters"
            raise InvalidInput("stop", rule, text)
    ids = fields.get("stop_token_ids")
    ids = [] if ids is None else ids
    if not isinstance(ids, list) or len(ids) > _MOST_STOPS:
        raise InvalidInput("stop_token_ids", f"is not a list of at most {_MOST_STOPS}", ids)
    stops = tuple(ruled(_TOKEN_IDS, one, "stop_token_ids") for one in ids)
    return Stopping(tuple(texts), stops if flag_of(fields, "ignore_eos") else stops + model_stops)


def max_tokens_of(fields: Mapping[str, Any], *names: str) -> int | None:
    """The first of these fields that is there; raises `InvalidInput`."""
    values = [optional_whole(fields, field, MAX_TOKENS) for field in names]
    return next((one for one in values if one is not None), None)


def logprobs_of(fields: Mapping[str, Any], field: str) -> int | None:
    """How many tokens are told with each one; raises `InvalidInput`."""
    return optional_whole(fields, field, Whole(minimum=0, maximum=MOST_LOGPROBS))


def optional_whole(fields: Mapping[str, Any], field: str, rule: Whole) -> int | None:
    """A whole number, None where it is absent; raises `InvalidInput`."""
    value = fields.get(field)
    return None if value is None else ruled(rule, value, field)


def optional_real(fields: Mapping[str, Any], field: str, default: float) -> float:
    """A number; raises `InvalidInput`."""
    value = fields.get(field)
    if value is None:
        return default
    try:
        return _RULES[field].read(value)
    except Broken as broken:
        raise InvalidInput(field, str(broken), value) from broken


def flag_of(fields: Mapping[str, Any], field: str) -> bool:
    """True or false, which is what is absent; raises `InvalidInput`."""
    value = fields.get(field)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidInput(field, "is not true or false", value)
    return value


def require_neutral(fields: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise `InvalidInput` for a field that is not supported, unless it changes nothing."""
    for field, values in neutral.items():
        value = fields.get(field)
        # 0 is no false here, although Python takes them for equal.
        if value is not None and not any(
            type(one) is type(value) and one == value for one in values
        ):
            raise InvalidInput(field, "is not supported here", value)


def optional_object(fields: Mapping[str, Any], field: str) -> dict[str, Any]:
    """An object, which is empty where it is absent; raises `InvalidInput`."""
    value = fields.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(field, "is not an object", value)
    return value


class Streaming(NamedTuple):
    """How an answer comes."""

    streams: bool
    include_usage: bool


class Chat(NamedTuple):
    """A conversation, as its template takes it."""

    messages: list[dict[str, Any]]
    arguments: dict[str, Any]
    """Of the template, beside the messages."""


def streaming_of(fields: Mapping[str, Any]) -> Streaming:
    """How the answer is wanted; raises `InvalidInput`."""
    streams, options = flag_of(fields, "stream"), fields.get("stream_options")
    if options is None:
        return Streaming(streams, include_usage=False)
    if not isinstance(options, dict) or options.keys() - _STREAM_OPTIONS:
        rule = f"holds something else than {', '.join(_STREAM_OPTIONS)}"
        raise InvalidInput("stream_options", rule, options)
    if not streams:
        raise InvalidInput("stream_options", "needs stream: true")
    return Streaming(streams, flag_of(options, "include_usage"))


def choices_of(fields: Mapping[str, Any]) -> int:
    """How many texts each prompt has; raises `InvalidInput`."""
    choices = optional_whole(fields, "n", _COUNTS) or 1
    best = optional_whole(fields, "best_of", _COUNTS)
    if best is not None and best != choices:
        raise InvalidInput("best_of", f"is not n, which is {choices}", best)
    return choices


def chat_of(fields: Mapping[str, Any]) -> Chat:
    """The conversation; raises `InvalidInput`."""
    require_neutral(fields, _NO_TOOLS)
    value = fields.get("messages")
    if not isinstance(value, list) or not value:
        raise InvalidInput("messages", "is not a list of messages", value)
    require_few(value, "messages")
    messages = [_message(one, f"messages[{at}]") for at, one in enumerate(value)]
    arguments = optional_object(fields, "chat_template_kwargs")
    for name in ("messages", "self"):
        if name in arguments:
            raise InvalidInput(f"chat_template_kwargs.{name}", "is not the caller's to give")
    goes_on = flag_of(fields, "continue_final_message")
    begins = fields.get("add_generation_prompt")
    if begins is not None and not isinstance(begins, bool):
        raise InvalidInput("add_generation_prompt", "is not true or false", begins)
    begins = not goes_on if begins is None else begins
    if goes_on and begins:
        raise InvalidInput("continue_final_message", "contradicts add_generation_prompt")
    named = {"add_generation_prompt": begins, "continue_final_message": goes_on}
    return Chat(messages, {**arguments, **named})


def chat_logprobs_of(fields: Mapping[str, Any]) -> int | None:
    """How many tokens are told with each one; raises `InvalidInput`."""
    top = logprobs_of(fields, "top_logprobs")
    if flag_of(fields, "logprobs"):
        return top or 0
    if top:
        raise InvalidInput("top_logprobs", "needs logprobs: true", top)
    return None


def prompts_of(fields: Mapping[str, Any]) -> list[str] | list[array[int]]:
    """The prompts of a completion, as texts or as token ids; raises `InvalidInput`."""
    require_neutral(fields, _NO_COMPLETION)
    value = fields.get("prompt")
    rule = "is not a text, a list of texts, a list of token ids or a list of such lists"
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise InvalidInput("prompt", rule, value)
    if all(isinstance(one, str) for one in value):
        _require_at_most(len(value))
        return value
    if type(value[0]) is int:
        return [_ids(value, "prompt")]
    if not all(isinstance(one, list) for one in value):
        raise InvalidInput("prompt", rule, value)
    _require_at_most(len(value))
    return [_ids(one, f"prompt[{at}]") for at, one in enumerate(value)]


def _require_at_most(count: int) -> None:
    if count > MOST_TEXTS:
        raise InvalidInput("prompt", f"has {count} entries; at most {MOST_TEXTS} are taken")


def _ids(value: list[Any], field: str) -> array[int]:
    if set(map(type, value)) - {int}:
        raise InvalidInput(field, "holds something else than token ids")
    try:
        return array("i", value)
    except OverflowError as error:
        raise InvalidInput(field, "holds a token id beyond 32 bits") from error


def _message(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(field, "is not a message", value)
    # Clients send back what they were answered, with fields that hold nothing.
    fields = {name: item for name, item in value.items() if item not in (None, [])}
    message = {name: item for name, item in fields.items() if name not in _THOUGHTS}
    for name in message:
        if name not in _OF_A_MESSAGE:
            raise InvalidInput(f"{field}.{name}", "is not supported here")
    if message.get("role") not in _ROLES:
        raise InvalidInput(f"{field}.role", f"is not one of {', '.join(_ROLES)}", value.get("role"))
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise InvalidInput(f"{field}.tool_calls", "is not a list of objects", calls)
        message["tool_calls"] = [
            _tool_call(call, f"{field}.tool_calls[{at}]") for at, call in enumerate(calls)
        ]
    for name in ("name", "tool_call_id"):
        optional_text(message, name)
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = "".join(
            _part(part, f"{field}.content[{at}]") for at, part in enumerate(content)
        )
    elif content is None:
        if calls is None and message["role"] != "assistant":
            raise InvalidInput(f"{field}.content", "is required")
        message["content"] = ""
    elif not isinstance(content, str):
        raise InvalidInput(f"{field}.content", "is not a text or a list of parts", content)
    return message


def _tool_call(value: Any, field: str) -> dict[str, Any]:
    """Templates take the arguments as an object; OpenAI's clients send its text."""
    if not isinstance(value, dict):
        raise InvalidInput(field, "is not an object", value)
    function = value.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return value
    field = f"{field}.function.arguments"
    try:
        arguments = orjson.loads(function["arguments"] or "{}")
    except orjson.JSONDecodeError as error:
        raise InvalidInput(field, "is not the text of a JSON object") from error
    if not isinstance(arguments, dict):
        raise InvalidInput(field, "is not the text of a JSON object")
    return {**value, "function": {**function, "arguments": arguments}}


def _part(value: Any, field: str) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind != "text" or not isinstance(value.get("text"), str):
        raise InvalidInput(field, "is not a part of type text", kind)
    text: str = value["text"]
    return text


class Generate(NamedTuple):
    """What is asked."""

    id: str | None
    text: str
    parameters: Mapping[str, Any]


def generate_of(fields: dict[str, Any]) -> Generate:
    """The request; raises `InvalidInput`."""
    name = None if fields.get("id") is None else require_text(fields, "id")
    parameters = optional_object(fields, "parameters")
    for field in parameters:
        if field not in _PARAMETERS:
            rule = f"is not taken here; known: {', '.join(sorted(_PARAMETERS))}"
            raise InvalidInput(f"parameters.{field}", rule)
    return Generate(name, require_text(fields, "text_input"), parameters)
