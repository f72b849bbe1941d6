"""A tokenizer is read by a process of its own first, and refused with the reason."""

import json

import pytest

from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers import tokenizer_trial
from batchedmodel_model_server.handlers.tokenizer_trial import try_tokenizer
from support.hostile_tokenizers import ENDS_ITS_PROCESS, PANICS_OVER_TEXT, PANICS_WHEN_READ
from support.text_handlers import tokenizer_json

pytestmark = pytest.mark.slow


def test_right_file_is_taken() -> None:
    try_tokenizer(tokenizer_json(), 16)


def test_file_that_has_no_tokens_for_some_texts_is_taken() -> None:
    words = {"type": "WordLevel", "vocab": {"text": 0}, "unk_token": "[UNK]"}
    plain = {**json.loads(tokenizer_json()), "model": words, "post_processor": None}
    try_tokenizer(json.dumps(plain).encode(), 16)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (PANICS_OVER_TEXT, "PanicException: chunk size must be non-zero"),
        (PANICS_WHEN_READ, "PanicException: Precompiled: "),
        (ENDS_ITS_PROCESS, "it ended the process that read it by SIGABRT"),
        (b"{}", "ValueError: "),
    ],
    ids=["panics over text", "panics when read", "ends its process", "none"],
)
def test_file_that_serves_nobody_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(CannotLoad, match=f"tokenizer.json cannot be used: {reason}"):
        try_tokenizer(content, 16)


def test_file_is_tried_with_the_length_that_the_model_cuts_texts_to() -> None:
    with pytest.raises(CannotLoad, match=r"tokenizer.json cannot be used: OverflowError: "):
        try_tokenizer(tokenizer_json(), -1)


def test_file_that_is_not_read_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_trial, "_SECONDS", 0.001)
    with pytest.raises(CannotLoad, match=r"is not read within 0\.001 s"):
        try_tokenizer(tokenizer_json(), 16)
