"""What looks like a secret is taken out of a pod's last words, and nothing else."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_operator.reconcile.pod_failures import (
    HIDDEN,
    PodFailureReason,
    diagnose,
    redacted,
)
from batchedmodel_operator.reconcile.state import pod_from

_SECRET = "s3cr3tValue0123456789abcdef"


@pytest.mark.parametrize(
    "text",
    [
        "cannot fetch https://user:{}@registry.example/model: 401",
        "cannot fetch https://:{}@registry.example/model: 401",
        "request failed, headers: Authorization: Bearer {}",
        "{{'authorization': 'Basic {}'}}",
        "HF_TOKEN={} is not valid",
        "environ({{'AWS_SECRET_ACCESS_KEY': '{}', 'HOME': '/'}})",
        "GET https://hub.example/file?access_token={}&revision=main",
        'config: {{"api_key": "{}"}}',
        "db_password: {}",
        "invalid token hf_{}",
        "invalid key sk-{}",
        "token eyJhbGciOi.{}.signature is expired",
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_secrets_in_their_usual_forms_are_taken_out(text: str) -> None:
    told = redacted(text.format(_SECRET))
    assert _SECRET not in told
    assert HIDDEN in told


@pytest.mark.parametrize(
    "text",
    [
        'secret "hub-token" not found',
        "couldn't find key token in Secret team/hub-token",
        "references non-existent secret key: ",
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "basic authentication is not supported here",
        "https://hub.example/models/minilm: no such revision: main",
        "pods is forbidden: User system:serviceaccount:team:default cannot list resource",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "the tokenizer has 30522 tokens and the model 30000",
    ],
)
def test_what_people_need_to_know_stays(text: str) -> None:
    assert redacted(text) == text


# Without the beginnings of other forms, which hide more or less of the same words.
_PIECES = st.sampled_from(
    """token|HF_TOKEN|secret|a|-|_|=|:| |"|'|,|u|abcdefgh1|.
password|api_key|/""".replace("\n", "|\n|").split("|")
)


@given(st.lists(_PIECES, max_size=14).map("".join))
def test_what_is_taken_for_a_name_is_what_a_plain_pattern_takes(text: str) -> None:
    plain = re.compile(
        r"""([\w-]*(?:token|secret|passwo?r?d|api[_-]?key|access[_-]?key|credential)[\w-]*"""
        r"""["']?\s*(?:=|:)\s*["']?)([^\s"'`,;&<>)\]}]+)""",
        re.IGNORECASE,
    )
    once = plain.sub(rf"\1{HIDDEN}", text)
    assert redacted(once) == redacted(text)


@pytest.mark.parametrize(
    "piece",
    [
        *("token", "token-", "token ", "token=", "token:", 'token"', "token= ", "secretpassword"),
        *("a.", "a://", "a://:", "https://:", "a:", "::", "://", "bearer ", "basic  ", "bearer"),
        *(
            "eyJaaaa",
            "eyJaaaa-",
            "eyJaaaa.",
            "sk-",
            "hf_",
            "glpat-",
            "-----BEGIN ",
            "A ",
            " ",
            "\n",
        ),
    ],
)
def test_the_time_for_a_text_grows_with_its_length_only(piece: str) -> None:
    # With a pattern that goes back this would take hours.
    for lead in ("", "token", "a://", "eyJaaaa"):
        redacted(lead + piece * 20_000)


@given(st.text())
def test_what_was_redacted_stays_as_it_is(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


def test_what_a_crashing_container_says_of_itself_is_redacted() -> None:
    terminated = {"exitCode": 1, "message": f"HF_TOKEN={_SECRET} was refused"}
    body = {
        "metadata": {"name": "minilm-0", "namespace": "team", "uid": "1"},
        "spec": {},
        "status": {
            "containerStatuses": [
                {
                    "name": "model",
                    "ready": False,
                    "restartCount": 4,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": terminated},
                }
            ]
        },
    }
    found = diagnose(None, None, (pod_from(body),), {})
    assert found is not None
    assert found.trouble is PodFailureReason.CRASH_LOOPING
    assert found.message.endswith(f"exit code 1: HF_TOKEN={HIDDEN} was refused")


def test_what_a_model_server_says_of_its_failure_is_redacted() -> None:
    body = {"metadata": {"name": "minilm-0", "namespace": "team", "uid": "1"}, "spec": {}}
    said = f"the model is FAILED: 401 for https://me:{_SECRET}@hub.example/"
    found = diagnose(None, None, (pod_from(body),), {"1": said})
    assert found is not None
    assert found.message == f"pod minilm-0: 401 for https://{HIDDEN}@hub.example/"
