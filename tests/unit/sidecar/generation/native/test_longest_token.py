"""How much text a token stands for at most: known for usual tokenizers, and never too little."""

import unicodedata
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as some
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from batchedmodel_sidecar.generation.native.preparer import bytes_of_longest_token
from support.byte_tokenizer import fallback_tokenizer_json, tokenizer_json

_ALPHABET = pre_tokenizers.ByteLevel.alphabet()
_WORDS = "the thermostat ththth aaaaaaaa      \u00e9t\u00e9 \u2603"
_CHARACTERS = "athe5 \n\u00e9\u0301\u212a\u2603\ufb01\U0001f600"


def _trained(normalizer: Any = None, *cuts: Any) -> Tokenizer:
    made = Tokenizer(models.BPE())
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cuts)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=_ALPHABET, show_progress=False, special_tokens=["<|end|>"]
    )
    made.train_from_iterator([_WORDS] * 20, trainer)
    return made


_BYTE_LEVEL = _trained()
_COMPOSED = _trained(normalizers.NFC(), pre_tokenizers.Split(Regex(r"\p{N}|[^\p{N}]+"), "isolated"))
_FALLBACK = Tokenizer.from_buffer(fallback_tokenizer_json())


@pytest.mark.parametrize("tokenizer", [_BYTE_LEVEL, _COMPOSED, _FALLBACK], ids=["a", "b", "c"])
@given(text=some.text(_CHARACTERS) | some.sampled_from(_WORDS.split()).map(lambda one: one * 9))
def test_no_text_has_fewer_tokens_than_is_said(tokenizer: Tokenizer, text: str) -> None:
    longest = bytes_of_longest_token(tokenizer.to_str().encode(), _ALPHABET)
    assert longest is not None
    for form in (text, unicodedata.normalize("NFD", text), text + "<|end|>"):
        ids = tokenizer.encode(form, add_special_tokens=False).ids
        assert len(ids) * longest >= len(form.encode())


def test_bytes_are_counted_and_not_the_characters_that_stand_for_them() -> None:
    assert bytes_of_longest_token(tokenizer_json(), _ALPHABET) == len("</s>")


def _changed(**changes: Any) -> bytes:
    said = orjson.loads(_BYTE_LEVEL.to_str())
    for name, value in changes.items():
        within, _, last = name.rpartition("__")
        (said[within] if within else said)[last] = value
    return orjson.dumps(said)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": None},
        {"model__type": "Unigram"},
        {"model__vocab": {"a": 0}},
        {"model__end_of_word_suffix": "</w>"},
        {"added_tokens": [{"content": "<x>", "lstrip": False, "rstrip": True}]},
        {"model": None},
    ],
    ids=str,
)
def test_of_other_tokenizers_nothing_is_said(changes: dict[str, Any]) -> None:
    assert bytes_of_longest_token(_changed(), _ALPHABET) is not None
    assert bytes_of_longest_token(_changed(**changes), _ALPHABET) is None


def test_of_what_is_no_tokenizer_nothing_is_said() -> None:
    assert bytes_of_longest_token(b"[", _ALPHABET) is None
    assert bytes_of_longest_token(b"[]", _ALPHABET) is None
