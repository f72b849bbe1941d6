"""Chat templates: what transformers gives them is there, and what they do harms nobody."""

from datetime import datetime

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.generation.native.chat_template import ChatTemplate

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
        ("{{ 7 % 4 }}{{ '%s' % 2 }}{{ 2 ** 3 }}{{ '-' * 3 }}{{ 1.5 * 2 }}", "328---3.0"),
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        # As many templates ask; of an undefined name it is true, and what follows fails.
        ("{% if tools is not none %}{{ tools[0].name }}{% endif %}x", "x"),
        ("  {%- if true %}\n  a\n  {%- endif %}", "  a"),
    ],
)
def test_a_template_finds_what_transformers_gives_it(source: str, prompt: str) -> None:
    assert _rendered(source, thinking=True) == prompt


def test_a_caller_may_give_a_template_documents() -> None:
    assert _rendered("{{ documents[0].text }}", documents=[{"text": "a"}]) == "a"


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
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(x=10 ** 999) %}{% for i in range(40) %}{% set n.x = n.x * n.x %}"
        "{% endfor %}",
        "{{ [].pop() }}",
        "{{ messages[0].content.encode('latin-1').decode('utf-32') }}",
        "{{ cycler() }}",
        "{{ '%d' % 'a' }}",
        "{% include 'another' %}",
        "{{ strftime_now(5) }}",
        "{{ 'x' * 5000000 }}",
    ],
)
def test_a_template_that_fails_fails_for_its_caller_alone(source: str) -> None:
    with pytest.raises(InvalidInput, match="messages: "):
        _rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{{ " + "-" * 5000 + "1 }}",
    ],
    ids=["syntax", "loops", "brackets", "signs"],
)
def test_a_template_that_cannot_be_compiled_is_named(source: str) -> None:
    with pytest.raises(InvalidInput, match="chat template: cannot be compiled"):
        ChatTemplate(source, {})


def test_a_template_that_loops_ends() -> None:
    loops = (
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(loops, {}, render_seconds=0.05)
    with pytest.raises(InvalidInput, match="messages: keep the chat template busy for more than"):
        template.render(_USER)


_ALL = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
_TRIMMED = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"


@pytest.mark.parametrize(
    ("source", "content", "prompt"),
    [
        (_ALL, "It is ", "<user>hi <b></s><assistant>It is "),
        (_TRIMMED, " It is", "<user>hi <b></s><assistant>It is"),
        (_ALL, "", "<user>hi <b></s><assistant>"),
        (_ALL + "Now say: It is", "It is", "<user>hi <b></s><assistant>It is"),
        (_ALL, "s", "<user>hi <b></s><assistant>s"),
    ],
)
def test_a_last_message_can_be_gone_on_with(source: str, content: str, prompt: str) -> None:
    messages = [*_USER, {"role": "assistant", "content": content}]
    assert ChatTemplate(source, {}).render(messages, continue_final_message=True) == prompt
    assert messages[1] == {"role": "assistant", "content": content}


@pytest.mark.parametrize("source", ["{{ messages[-1].content[:2] }}", "nothing", _ALL + _ALL])
def test_a_last_message_whose_end_is_not_there_once_cannot_be_gone_on_with(source: str) -> None:
    with pytest.raises(InvalidInput, match="continue_final_message: is not possible"):
        ChatTemplate(source, {}).render(_USER, continue_final_message=True)
