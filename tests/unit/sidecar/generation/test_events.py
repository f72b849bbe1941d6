"""What is read of the events that pass through."""

import json

import pytest

from batchedmodel_contract.outcomes import Outcome
from batchedmodel_sidecar.errors import Expired, Lost
from batchedmodel_sidecar.generation.events import Usage, error_event

TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
CLOSE = b'data:{"choices":[{"text":"a"}]}\r\n\r\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("token", [TOKEN, CLOSE], ids=["a space", "none"])
def test_each_event_counts_as_a_token_and_the_end_does_not(token: bytes) -> None:
    usage = Usage()
    assert usage.events(token) == 1
    assert usage.events(token * 2) == 2
    assert usage.events(b": a comment\n\n") == 0
    assert usage.events(DONE) == 0
    assert usage.output_tokens == 3


def test_what_the_server_says_of_its_usage_goes_before_what_was_counted() -> None:
    usage = Usage()
    usage.events(TOKEN * 5)
    usage.events(
        b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens": 9}}\n\n' + DONE
    )
    assert (usage.prompt_tokens, usage.output_tokens) == (7, 9)


def test_a_text_about_tokens_and_errors_is_only_a_text() -> None:
    said = 'data: {"error"} "completion_tokens": 5 data: {"a"'
    usage = Usage()
    usage.events(b'data: {"choices":[{"text":%b}]}\n\n' % json.dumps(said).encode())
    assert usage.output_tokens == 1
    assert not usage.failed


def test_a_whole_answer_tells_its_usage() -> None:
    usage = Usage()
    usage.body(b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}')
    assert (usage.prompt_tokens, usage.output_tokens) == (7, 9)


def test_an_error_of_the_server_is_seen() -> None:
    usage = Usage()
    usage.events(b'data: {"error": {"message": "out of memory"}}\n\n')
    assert usage.failed


def test_something_may_be_written_only_between_events() -> None:
    usage = Usage()
    assert usage.at_end_of_event
    usage.events(TOKEN[:20])
    assert not usage.at_end_of_event
    usage.events(TOKEN[20:])
    assert usage.at_end_of_event


@pytest.mark.parametrize(
    ("error", "code", "kind"), [(Expired(3.0), 504, Outcome.EXPIRED), (Lost("it"), 503, "failed")]
)
def test_an_error_of_ours_has_the_form_of_the_protocol(
    error: Expired | Lost, code: int, kind: str
) -> None:
    event = error_event(error, "/v1/completions")
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    told = json.loads(event[6:])["error"]
    assert (told["code"], told["type"], told["message"]) == (code, kind, error.message)
