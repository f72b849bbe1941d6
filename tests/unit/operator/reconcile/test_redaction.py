"""What looks like a secret is taken out of a pod's last words, and nothing else."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_operator.observed.pod_failures import (
    HIDDEN,
    PodFailureReason,
    diagnose,
    redacted,
)
from batchedmodel_operator.observed.state import pod_from

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
        "secret_key: -----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_secrets_in_their_usual_forms_are_taken_out(text: str) -> None:
    told = redacted(text.format(_SECRET))
    assert _SECRET not in told
    assert HIDDEN in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("401 for Basic dXNlcjpwYXNz", "401 for Basic ***"),
        ("'authorization': 'basic dTpwYXNz'", "'authorization': 'basic ***'"),
        ("pwd=hunter2 is wrong", "pwd=*** is wrong"),
        ("cookie: session=abcdef123", "cookie: ***"),
        ("Cookie: a=b; session=abc was refused", "Cookie: *** was refused"),
        ("{'set-cookie': 'session=a b; Path=/', 'x': 1}", "{'set-cookie': '***', 'x': 1}"),
        ("serve --token abc12345678 --port 8080", "serve --token *** --port 8080"),
        ("serve --api-key 'two words'", "serve --api-key '***'"),
        ("['--password', 'hunter', '--port', '80']", "['--password', '***', '--port', '80']"),
        (
            "https://x?sig=abcd1234efgh&X-Amz-Signature=deadbeef&v=1: 403",
            "https://x?sig=***&X-Amz-Signature=***&v=1: 403",
        ),
        ('"https://x?v=1\\u0026sig=abcd"', '"https://x?v=1\\u0026sig=***"'),
        ('PASSWORD = "hunter two" in .env', 'PASSWORD = "***" in .env'),
        ("{'password': 'hunter \"2\", \\'two\\'', 'x': 1}", "{'password': '***', 'x': 1}"),
        (
            r'{"config": "{\"password\": \"hunter two\", \"x\": 1}"}',
            r'{"config": "{\"password\": \"***\", \"x\": 1}"}',
        ),
        ('token: "hunter tw', 'token: "***'),
        ("https://u:p@ss@h/x@y: 401", "https://***@h/x@y: 401"),
    ],
)
def test_secret_is_taken_out_whole_and_nothing_beside_it(text: str, told: str) -> None:
    assert redacted(text) == told
    assert redacted(told) == told


@pytest.mark.parametrize(
    "text",
    [
        "basic block 0 has no successor",
        "Basic AuthenticationFilter failed",
        "Basic Operations are not supported. Basic Only.",
        "token limit exceeded",
        "no session; invalid cookie: none was sent",
        "--token is required, as is --password",
        "vllm: --max-num-batched-tokens 8192 is below --max-model-len 40960",
        "unknown flags '--token', '--password'",
        "tokenizer: cannot be read: PanicException",
        "option 'hf_token:' is none of \"hub_token='\"",
        "the signature: of forward, not sig=1",
        "cannot reach https://h:8080/ for me@h",
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


WORD = r"""[^\s"'`,;&<>)\]}]"""


@given(st.lists(_PIECES, max_size=14).map("".join))
def test_what_is_taken_for_a_name_is_what_a_plain_pattern_takes(text: str) -> None:
    plain = re.compile(
        r"""([\w-]*(?:token|secret|passwo?r?d|api[_-]?key|access[_-]?key|credential)[\w-]*"""
        r"""["']?\s*(?:=|:)\s*)"""
        r"""(?:(")(?=WORD)[^"]+|(')(?=WORD)[^']+|WORD+)""".replace("WORD", WORD),
        re.IGNORECASE,
    )
    once = plain.sub(rf"\1\2\3{HIDDEN}", text)
    assert redacted(once) == redacted(text)


@pytest.mark.parametrize(
    "piece",
    [
        *("token", "token-", "token ", "token=", "token:", 'token"', "token= ", "secretpassword"),
        *("token='", 'token="a', "token='\\", 'token=\\"a', 'token="a\\"', "pwd", "--token "),
        *("--token", "--token 'a", "--tokens ", "--", "cookie", "cookie:", "cookie:a", "cookie:'a"),
        *("cookie:a=", "; a=", "?sig", "&sig=", "&signature", "signature", "&", "basic aaaa", "@"),
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
    for lead in ("", "token", "token='", "a://", "a://:", "cookie:a=b&", "--token ", "eyJaaaa"):
        short, long = (processor_time(lead + piece * times) for times in (2_000, 8_000))
        # 16 times as much with a pattern that goes back, and that would be above 0.1 s.
        assert long < 10 * short + 0.1


def processor_time(text: str) -> float:
    began = time.process_time()
    redacted(text)
    return time.process_time() - began


@given(st.text())
def test_what_was_redacted_stays_as_it_is(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


@pytest.mark.parametrize(
    "said",
    [
        "HF_TOKEN={} was refused",
        '{{"level": "error", "message": "HF_TOKEN={} was refused"}}',
        '{{"message": "failed", "exception": "first\\nHF_TOKEN={} was refused"}}',
    ],
    ids=["text", "JSON", "JSON with a traceback"],
)
def test_what_a_crashing_container_says_of_itself_is_redacted(said: str) -> None:
    terminated = {"exitCode": 1, "message": said.format(_SECRET)}
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
    assert found.message.endswith(f"HF_TOKEN={HIDDEN} was refused")


def test_what_a_model_server_says_of_its_failure_is_redacted() -> None:
    body = {"metadata": {"name": "minilm-0", "namespace": "team", "uid": "1"}, "spec": {}}
    said = f"the model is FAILED: 401 for https://me:{_SECRET}@hub.example/"
    found = diagnose(None, None, (pod_from(body),), {"1": said})
    assert found is not None
    assert found.message == f"pod minilm-0: 401 for https://{HIDDEN}@hub.example/"
