"""Chat templates: what transformers gives them is there, and what they do harms nobody."""

from datetime import datetime

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.generation.native.requests.chat_template import ChatTemplate
from batchedmodel_sidecar.generation.native.requests.cpu_limit import cpu_limit

_USER = [{"role": "user", "content": "hi <b>"}]


def _rendered(source: str, **arguments: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(_USER, **arguments)


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>hi <b>"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi <b>"}'),
        ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{% if thinking %}deep{% endif %}", "deep"),
        ("  {%- if true %}\n  a\n  {%- endif %}", "  a"),
    ],
)
def test_a_template_finds_what_transformers_gives_it(source: str, prompt: str) -> None:
    assert _rendered(source, thinking=True) == prompt


def test_a_template_can_write_the_date() -> None:
    def now() -> datetime:
        return datetime(2026, 1, 2)  # noqa: DTZ001  templates write local dates

    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, now)
    assert template.render(_USER) == "02 Jan 2026"


def test_what_a_template_refuses_its_caller_is_told() -> None:
    with pytest.raises(InvalidInput, match="messages: are refused by the model.*roles must"):
        _rendered("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.nothing.more }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ range(1000000000) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_fails_for_its_caller_alone(source: str) -> None:
    with pytest.raises(InvalidInput, match="messages: "):
        _rendered(source)


def test_a_template_that_cannot_be_compiled_is_named() -> None:
    with pytest.raises(InvalidInput, match="chat template: cannot be compiled"):
        ChatTemplate("{% if %}", {})


def test_a_template_that_loops_ends() -> None:
    loops = (
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}"
    )
    with (
        pytest.raises(InvalidInput, match="over"),
        cpu_limit(0.05, lambda: InvalidInput("messages", "is over")),
    ):
        _rendered(loops)


def test_a_last_message_can_be_gone_on_with() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    template = ChatTemplate(source, {})
    messages = [*_USER, {"role": "assistant", "content": "It is "}]
    prompt = template.render(messages, continue_final_message=True)
    assert prompt == "<user>hi <b></s><assistant>It is"
