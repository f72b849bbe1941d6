"""A model's chat template: messages into one prompt, in Jinja2's sandbox, in bounded time.

Templates come with the model's files and are written for transformers, so they find here what
transformers gives them: `raise_exception`, `strftime_now`, loop controls, `tojson` without HTML's
escapes, `generation` blocks, which mark what training looks at, and None for `tools` and
`documents` where there are none.
"""

import json
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any, Final

from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchedmodel_contract.invalid_input import InvalidInput

_SAID_CHARACTERS: Final = 200
_LONGEST_PROMPT: Final = 4 << 20
"""Characters; a body has half as many at most."""
_MOST_BITS: Final = 4096
_RENDER_SECONDS: Final = 1.0
_COMPILE_SECONDS: Final = 5.0


class _Raised(Exception):
    """The template itself refuses the messages."""


class _GenerationBlocks(Extension):
    tags = {"generation"}  # noqa: RUF012  as Jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Has no product so large that to make it takes long: a signal only ends what comes next.

    What is intercepted is not computed when the template is compiled either.
    """

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator != "%" and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length()
            bits = bits + right.bit_length() if operator == "*" else bits * abs(right)
            if bits > _MOST_BITS:
                raise OverflowError(f"a number of {bits} bits")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """One template, compiled."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        *,
        render_seconds: float = _RENDER_SECONDS,
    ) -> None:
        """For the main thread only. Raises `InvalidInput` where it cannot be compiled.

        `render_seconds`: of CPU, which a prompt takes at most.
        """
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationBlocks],
        )
        environment.filters["tojson"] = _json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            too_long = f"takes more than {_COMPILE_SECONDS:g} s to compile"
            with _cpu_limit(_COMPILE_SECONDS, InvalidInput("chat template", too_long)):
                self._template = environment.from_string(source)
        except InvalidInput:
            raise  # its time is over
        except Exception as error:
            # Not only the library's own: what it makes of the source may be no Python.
            raise InvalidInput("chat template", f"cannot be compiled: {_said(error)}") from error
        self._special_tokens = dict(special_tokens)
        self._render_seconds = render_seconds

    def render(self, messages: Sequence[Mapping[str, Any]], **arguments: Any) -> str:
        """The prompt of a conversation; raises `InvalidInput`."""
        render = self._begun if arguments.get("continue_final_message") else self._rendered
        too_slow = f"keep the chat template busy for more than {self._render_seconds:g} s"
        with _cpu_limit(self._render_seconds, InvalidInput("messages", too_slow)):
            return render(messages, arguments)

    def _begun(self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> str:
        """The prompt without what the template puts behind the last message.

        As transformers does it: where the message ends a mark shows, which no text can know.
        """
        mark, last = secrets.token_hex(16), messages[-1]
        # Whether a template trims messages is seen by the space behind it.
        marked = {**last, "content": f"{last['content']}{mark} "}
        prompt = self._rendered([*messages[:-1], marked], arguments)
        before, mark_found, behind = prompt.rpartition(mark)
        if not mark_found:
            rule = "is not possible: the template leaves the end of the last message out"
            raise InvalidInput("continue_final_message", rule)
        if mark in before:
            rule = "is not possible: the template writes the last message more than once"
            raise InvalidInput("continue_final_message", rule)
        return before if behind.startswith(" ") else before.rstrip()

    def _rendered(self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> str:
        absent = {"tools": None, "documents": None}
        fields = {**absent, **self._special_tokens, **arguments, "messages": messages}
        try:
            prompt = self._template.render(**fields)
        except _Raised as error:
            raise InvalidInput("messages", f"are refused by the model: {_said(error)}") from error
        except InvalidInput:
            raise  # its time is over
        except Exception as error:
            # Templates call methods of any value, so anything may come of them.
            rule = f"make the model's chat template fail: {_said(error)}"
            raise InvalidInput("messages", rule) from error
        if len(prompt) > _LONGEST_PROMPT:
            rule = f"become {len(prompt)} characters in the model's chat template"
            raise InvalidInput("messages", f"{rule}; {_LONGEST_PROMPT} are taken")
        return prompt


@contextmanager
def _cpu_limit(seconds: float, error: Exception) -> Iterator[None]:
    """Raise the error within it once it has used so much of a CPU.

    On a machine whose cores are busy otherwise the work is not ended sooner. Only the main thread
    can do this, one at a time.
    """

    def over(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_SAID_CHARACTERS]


def _raise(message: object) -> None:
    raise _Raised(str(message))


def _json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **others: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **others)
