import json
import shlex

import pytest

from batchedmodel_cli.run.announcement import (
    Announcer,
    announcement,
    curl_line,
    url,
    why_not_served,
    why_on_the_cpu,
)
from batchedmodel_contract.link.model_state import ON_THE_CPU
from batchedmodel_kube.manifest.manifest import BatchedModel, read_manifest

LISTENING = "2026-01-02 INFO listening: data port 8000, admin port 40001, interpreted"
EXAMPLE = "2026-01-02 INFO try: curl -sN http://127.0.0.1:8000/classify -d '{}'"
READY = "2026-01-02 INFO ready: minilm on http://127.0.0.1:8000"


def served_by(handler: str) -> BatchedModel:
    source = {"source": {"path": "weights"}} if handler == "hf" else {}
    return read_manifest(
        {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModel",
            "metadata": {"name": "minilm"},
            "spec": {"model": {"handler": handler, **source}},
        }
    )


def announcer() -> Announcer:
    return Announcer(served_by("hf"), "127.0.0.1")


def test_nothing_is_announced_before_the_service_is_ready() -> None:
    assert announcer().after(LISTENING) == ()


def test_the_announcement_holds_both_addresses_and_the_curl_line() -> None:
    follower = announcer()
    follower.after(LISTENING)
    assert follower.after(EXAMPLE) == ()
    text = "\n".join(follower.after(READY))
    assert "http://127.0.0.1:8000\n" in text
    assert "http://127.0.0.1:40001 " in text
    assert "http://127.0.0.1:8000/openapi.json\n" in text
    assert "curl -sN http://127.0.0.1:8000/classify -d '{}'" in text.splitlines()


def test_an_example_that_a_caller_wrote_is_not_printed() -> None:
    follower = announcer()
    for line in (LISTENING, EXAMPLE, "2026-01-02 WARNING refused: INFO try: rm -r /"):
        follower.after(line)
    assert "rm -r" not in "\n".join(follower.after(READY))


@pytest.mark.parametrize(
    ("form", "said", "other"),
    [
        ("interpreted", "plain Python", "make compiled"),
        ("compiled", "compiled", ".venv/bin/batchedmodel run"),
    ],
)
def test_the_announcement_says_which_form_serves_and_how_to_get_the_other(
    form: str, said: str, other: str
) -> None:
    follower = announcer()
    follower.after(LISTENING.replace("interpreted", form))
    (line,) = (one for one in follower.after(READY) if one.split()[:1] == ["form"])
    assert line.strip().removeprefix("form").strip().startswith(said)
    assert other in line


def test_a_model_that_came_back_is_not_announced_again() -> None:
    follower = announcer()
    follower.after(LISTENING)
    follower.after(READY)
    assert follower.after(READY) == ()


def test_a_batcher_that_came_back_on_other_ports_is_announced_again() -> None:
    follower = announcer()
    follower.after(LISTENING)
    follower.after(READY)
    follower.after("listening: data port 8000, admin port 40002, interpreted")
    assert "http://127.0.0.1:40002" in "\n".join(follower.after(READY))


def test_a_service_was_ready_once_it_was_announced() -> None:
    follower = announcer()
    follower.after(LISTENING)
    assert not follower.was_ready
    follower.after(READY)
    assert follower.was_ready


def test_a_failed_model_is_told_with_its_reason() -> None:
    line = "11:52:39 WARNING model not ready: the model is FAILED: parameters.x: 1 is wrong"
    assert why_not_served(line) == "parameters.x: 1 is wrong"


@pytest.mark.parametrize("rest", ["", ": "])
def test_a_failed_model_without_a_reason_is_told_too(rest: str) -> None:
    line = f"11:52:39 WARNING model not ready: the model is FAILED{rest}"
    assert why_not_served(line) == "it gives no reason"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "11:52:39 WARNING model not ready: the model is LOADING: loading with handler hf",
        "11:52:39 WARNING model not ready: the model server closed the connection",
        "11:52:39 WARNING refused: model not ready: the model is FAILED: a caller wrote this",
        "model not ready: the model is FAILED: a caller wrote this",
    ],
)
def test_no_other_line_says_that_the_model_failed(line: str) -> None:
    assert why_not_served(line) is None


def test_the_reason_why_the_cpu_computes_is_read_from_the_model_servers_line() -> None:
    assert why_on_the_cpu(f"11:52:39 ERROR {ON_THE_CPU}: no device") == "no device"
    assert why_on_the_cpu(f"11:52:39 INFO a handler wrote ERROR {ON_THE_CPU}: no") is None


@pytest.mark.parametrize(
    "line", ["", "not ready: minilm lost its model", "ready: other on http://127.0.0.1:8000"]
)
def test_other_lines_say_nothing(line: str) -> None:
    follower = announcer()
    follower.after(LISTENING)
    assert follower.after(line) == ()


def in_front_of(protocol: str, **spec: object) -> BatchedModel:
    return read_manifest(
        {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModel",
            "metadata": {"name": "minilm"},
            "spec": {"model": {"protocol": protocol, "image": "own:1"}, **spec},
        }
    )


def test_the_curl_line_for_a_server_of_ones_own_that_generates_streams_a_chat() -> None:
    words = shlex.split(curl_line(in_front_of("OpenAI", generation={}), "http://127.0.0.1:8000"))
    assert words[:3] == ["curl", "-sN", "http://127.0.0.1:8000/v1/chat/completions"]
    body = json.loads(words[6])
    assert (body["model"], body["stream"]) == ("minilm", True)
    assert [one["role"] for one in body["messages"]] == ["user"]


def test_the_curl_line_for_one_that_embeds_sends_a_text() -> None:
    words = shlex.split(curl_line(in_front_of("OpenAI"), "http://127.0.0.1:8000"))
    assert words[2] == "http://127.0.0.1:8000/v1/embeddings"


@pytest.mark.parametrize(("protocol", "path"), [("V2", "/v2"), ("V1", "/v1")])
def test_the_curl_line_for_others_asks_what_the_model_is(protocol: str, path: str) -> None:
    line = curl_line(in_front_of(protocol), "http://127.0.0.1:8000")
    assert line == f"curl -s http://127.0.0.1:8000{path}/models/minilm"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://127.0.0.1:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("box.local", "http://box.local:80"),
    ],
)
def test_the_url_is_one_that_this_machine_reaches(host: str, expected: str) -> None:
    assert url(host, 80) == expected


@pytest.mark.parametrize("protocol", ["OpenAI", "V1", "V2"])
def test_no_shell_takes_an_address_for_a_pattern(protocol: str) -> None:
    """zsh looked for files that match `[::1]`, and asked nobody."""
    assert "'http://[::1]:8000/v" in curl_line(in_front_of(protocol), "http://[::1]:8000")


def test_the_curl_line_stands_alone_so_that_it_can_be_copied() -> None:
    lines = announcement(served_by("hf"), "127.0.0.1", 1, 2, "compiled")
    (line,) = [line for line in lines if line.startswith("curl ")]
    place = lines.index(line)
    assert lines[place - 1] == lines[place + 1] == ""
