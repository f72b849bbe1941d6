"""A model's chat template: messages into one prompt, in Jinja2's sandbox.

Templates come with the model's files and are written for transformers, so they find here what
transformers gives them: `raise_exception`, `strftime_now`, loop controls, `tojson` without HTML's
escapes, and `generation` blocks, which mark what training looks at.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchedmodel_contract.invalid_input import InvalidInput

_SAID_CHARACTERS: Final = 200


class _Raised(Exception):
    """The template itself refuses the messages."""


class _GenerationBlocks(Extension):
    tags = {"generation"}  # noqa: RUF012  as Jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One template, compiled."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Raises `InvalidInput` where it cannot be compiled."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationBlocks],
        )
        environment.filters["tojson"] = _json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise InvalidInput("chat template", f"cannot be compiled: {_said(error)}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], **arguments: Any) -> str:
        """The prompt of a conversation; raises `InvalidInput`."""
        known = {**self._special_tokens, **arguments, "messages": messages}
        try:
            prompt = self._template.render(**known)
        except _Raised as error:
            raise InvalidInput("messages", f"are refused by the model: {_said(error)}") from error
        except InvalidInput:
            raise  # its time is over
        except (MemoryError, RecursionError, ArithmeticError, LookupError) as error:
            raise _failed(error) from error
        except (TemplateError, TypeError, ValueError, AttributeError) as error:
            raise _failed(error) from error
        if arguments.get("continue_final_message"):
            prompt = _up_to_the_end_of(messages[-1]["content"], prompt)
        return prompt


def _up_to_the_end_of(content: str, prompt: str) -> str:
    """The prompt without what the template puts behind the last message."""
    content = content.strip()
    at = prompt.rfind(content)
    if at < 0 or not content:
        rule = "is not possible: the template changes the last message"
        raise InvalidInput("continue_final_message", rule)
    return prompt[: at + len(content)]


def _failed(error: BaseException) -> InvalidInput:
    return InvalidInput("messages", f"make the model's chat template fail: {_said(error)}")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_SAID_CHARACTERS]


def _raise(message: object) -> None:
    raise _Raised(str(message))


def _json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **others: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **others)
