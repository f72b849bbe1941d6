"""Requests of OpenAI's chat and completions, read and checked. Pure.

Fields that would change the answer and are not supported are refused by name. vLLM's additions
(`top_k`, `min_p`, `repetition_penalty`, `stop_token_ids`, `ignore_eos`, `chat_template_kwargs`)
mean here what they mean there.
"""

from __future__ import annotations  # array.array takes no type argument at run time

from array import array
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.rules import Whole
from batchedmodel_sidecar.generation.native.requests.request_fields import (
    SAMPLING,
    STOPPING,
    flag_of,
    logprobs_of,
    optional_object,
    optional_whole,
    require_neutral,
)
from batchedmodel_sidecar.generation.native.requests.text_request import MOST_TEXTS
from batchedmodel_sidecar.protocols.json_bodies import optional_text, require_few

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


class Streaming(NamedTuple):
    """How an answer comes."""

    streams: bool
    include_usage: bool


class Chat(NamedTuple):
    """A conversation, as its template takes it."""

    messages: list[dict[str, Any]]
    arguments: dict[str, Any]
    """Of the template, beside the messages."""


def streaming_of(asked: Mapping[str, Any]) -> Streaming:
    """How the answer is wanted; raises `InvalidInput`."""
    streams, options = flag_of(asked, "stream"), asked.get("stream_options")
    if options is None:
        return Streaming(streams, include_usage=False)
    if not isinstance(options, dict) or options.keys() - _STREAM_OPTIONS:
        rule = f"holds something else than {', '.join(_STREAM_OPTIONS)}"
        raise InvalidInput("stream_options", rule, options)
    if not streams:
        raise InvalidInput("stream_options", "needs stream: true")
    return Streaming(streams, flag_of(options, "include_usage"))


def choices_of(asked: Mapping[str, Any]) -> int:
    """How many texts each prompt has; raises `InvalidInput`."""
    choices = optional_whole(asked, "n", _COUNTS) or 1
    best = optional_whole(asked, "best_of", _COUNTS)
    if best is not None and best != choices:
        raise InvalidInput("best_of", f"is not n, which is {choices}", best)
    return choices


def chat_of(asked: Mapping[str, Any]) -> Chat:
    """The conversation; raises `InvalidInput`."""
    require_neutral(asked, _NO_TOOLS)
    given = asked.get("messages")
    if not isinstance(given, list) or not given:
        raise InvalidInput("messages", "is not a list of messages", given)
    require_few(given, "messages")
    messages = [_message(one, f"messages[{at}]") for at, one in enumerate(given)]
    arguments = optional_object(asked, "chat_template_kwargs")
    for name in ("messages", "self"):
        if name in arguments:
            raise InvalidInput(f"chat_template_kwargs.{name}", "is not the caller's to give")
    goes_on = flag_of(asked, "continue_final_message")
    begins = asked.get("add_generation_prompt")
    if begins is not None and not isinstance(begins, bool):
        raise InvalidInput("add_generation_prompt", "is not true or false", begins)
    begins = not goes_on if begins is None else begins
    if goes_on and begins:
        raise InvalidInput("continue_final_message", "contradicts add_generation_prompt")
    named = {"add_generation_prompt": begins, "continue_final_message": goes_on}
    return Chat(messages, {**arguments, **named})


def chat_logprobs_of(asked: Mapping[str, Any]) -> int | None:
    """How many tokens are told with each one; raises `InvalidInput`."""
    top = logprobs_of(asked, "top_logprobs")
    if flag_of(asked, "logprobs"):
        return top or 0
    if top:
        raise InvalidInput("top_logprobs", "needs logprobs: true", top)
    return None


def prompts_of(asked: Mapping[str, Any]) -> list[str] | list[array[int]]:
    """The prompts of a completion, as texts or as token ids; raises `InvalidInput`."""
    require_neutral(asked, _NO_COMPLETION)
    given = asked.get("prompt")
    rule = "is not a text, a list of texts, a list of token ids or a list of such lists"
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise InvalidInput("prompt", rule, given)
    if all(isinstance(one, str) for one in given):
        _require_at_most(len(given))
        return given
    if type(given[0]) is int:
        return [_ids(given, "prompt")]
    if not all(isinstance(one, list) for one in given):
        raise InvalidInput("prompt", rule, given)
    _require_at_most(len(given))
    return [_ids(one, f"prompt[{at}]") for at, one in enumerate(given)]


def _require_at_most(count: int) -> None:
    if count > MOST_TEXTS:
        raise InvalidInput("prompt", f"has {count} entries; at most {MOST_TEXTS} are taken")


def _ids(given: list[Any], field: str) -> array[int]:
    if set(map(type, given)) - {int}:
        raise InvalidInput(field, "holds something else than token ids")
    try:
        return array("i", given)
    except OverflowError as error:
        raise InvalidInput(field, "holds a token id beyond 32 bits") from error


def _message(given: Any, field: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidInput(field, "is not a message", given)
    # Clients send back what they were answered, with fields that hold nothing.
    held = {name: value for name, value in given.items() if value not in (None, [])}
    message = {name: value for name, value in held.items() if name not in _THOUGHTS}
    for name in message:
        if name not in _OF_A_MESSAGE:
            raise InvalidInput(f"{field}.{name}", "is not supported here")
    if message.get("role") not in _ROLES:
        raise InvalidInput(f"{field}.role", f"is not one of {', '.join(_ROLES)}", given.get("role"))
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


def _tool_call(given: Any, field: str) -> dict[str, Any]:
    """Templates take the arguments as an object; OpenAI's clients send its text."""
    if not isinstance(given, dict):
        raise InvalidInput(field, "is not an object", given)
    function = given.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return given
    field = f"{field}.function.arguments"
    try:
        arguments = orjson.loads(function["arguments"] or "{}")
    except orjson.JSONDecodeError as error:
        raise InvalidInput(field, "is not the text of a JSON object") from error
    if not isinstance(arguments, dict):
        raise InvalidInput(field, "is not the text of a JSON object")
    return {**given, "function": {**function, "arguments": arguments}}


def _part(given: Any, field: str) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind != "text" or not isinstance(given.get("text"), str):
        raise InvalidInput(field, "is not a part of type text", kind)
    text: str = given["text"]
    return text
